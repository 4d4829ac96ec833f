/* The handles of events and memory that this process exported.  They must not
 * be opened in this process: runtimes fail in different ways. */
#ifndef PYSTREAMS_CORE_EXPORTS_H
#define PYSTREAMS_CORE_EXPORTS_H

#include <pystreams/backend.h>

#include <stdbool.h>
#include <sys/queue.h>

struct ps_export {
    unsigned char handle[PS_IPC_HANDLE_BYTES];
    LIST_ENTRY(ps_export) neighbours;
};

void ps_export_add(struct ps_export *exported);
/* Must not be called in a child of the process that added it. */
void ps_export_remove(struct ps_export *exported);
bool ps_is_exported(const unsigned char handle[PS_IPC_HANDLE_BYTES]);

/* Called in the child of a fork: it exported nothing. */
void ps_exports_reset_in_child(void);

#endif
