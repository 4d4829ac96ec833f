/* Graphs as people read them: a node for each operation, and an edge from each
 * that it comes after. */
#include "plan.h"

#include <stdlib.h>

static void
print_label(const struct cpu_operation *operation, FILE *file)
{
    switch (operation->kind) {
    case CPU_SLEEP:
        fprintf(file, "sleep\\n%lld ns", (long long)operation->duration);
        break;
    case CPU_FAIL:
        fprintf(file, "fail\\nstatus %d", operation->status);
        break;
    case CPU_COPY:
        fprintf(file, "copy\\n%zu bytes\\n%p to %p",
                operation->transfer.nbytes, operation->transfer.source,
                operation->transfer.destination);
        break;
    case CPU_FILL:
        fprintf(file, "fill with 0x%02x\\n%zu bytes\\n%p", operation->value,
                operation->transfer.nbytes, operation->transfer.destination);
        break;
    case CPU_CALL:
        fprintf(file, "host function");
        break;
    case CPU_RECORD_LATER:
        fprintf(file, "record event\\n0x%zx", (size_t)operation->event);
        break;
    case CPU_WAIT_LATER:
        fprintf(file, "wait for event\\n0x%zx", (size_t)operation->event);
        break;
    default:
        /* Marks and joins, which order others and do nothing. */
        fprintf(file, "empty");
    }
}

static void
print_edge(const struct cpu_operation *from, const struct cpu_operation *to,
           FILE *file)
{
    fprintf(file, "  \"%p\" -> \"%p\";\n", (const void *)from,
            (const void *)to);
}

bool
cpu_plan_print(const struct cpu_plan *plan, const char *name, FILE *file)
{
    const struct cpu_operation **last =
        calloc(plan->branch_count, sizeof(*last));
    if (last == NULL) {
        return false;
    }
    fprintf(file, "digraph \"%s\" {\n  node [shape=box];\n", name);
    for (const struct cpu_operation *operation = plan->first;
         operation != NULL; operation = operation->next) {
        const struct cpu_operation **previous = &last[operation->branch];
        fprintf(file, "  \"%p\" [group=%u, label=\"", (const void *)operation,
                operation->branch);
        print_label(operation, file);
        fprintf(file, "\\ndevice %d, branch %u\"];\n",
                plan->branches[operation->branch].device, operation->branch);
        if (*previous != NULL) {
            print_edge(*previous, operation, file);
        }
        if (operation->kind == CPU_JOIN) {
            print_edge(operation->mark, operation, file);
        }
        *previous = operation;
    }
    fprintf(file, "}\n");
    free(last);
    return true;
}
