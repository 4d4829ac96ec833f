/* What a graph of the engine's holds. */
#ifndef PYSTREAMS_CPU_PLAN_H
#define PYSTREAMS_CPU_PLAN_H

#include <stdio.h>

#include "engine.h"

/* What a stream of the capture was. */
struct cpu_branch {
    int device;
    int priority;
};

/* The work of a graph and of what was made of it; once the capture is over,
 * only its count and the records of its marks change. */
struct cpu_plan {
    unsigned refs;
    size_t operations; /* without marks and joins */
    size_t nodes;
    struct cpu_operation *first; /* items; marks before their joins */
    struct cpu_operation **tail;
    struct cpu_branch *branches;
    size_t branch_count;
};

/* Write the plan in Graphviz' language, for a caller who holds it; needs no
 * lock.  False when out of memory. */
bool cpu_plan_print(const struct cpu_plan *plan, const char *name, FILE *file);

#endif
