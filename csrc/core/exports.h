/* The interprocess handles of events and memory that this process exported.  A
 * process must not open its own handles: on some runtimes that fails or
 * misbehaves, so core refuses it for all. */
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
/* Must not be called in a forked child of the process that added the
 * handle. */
void ps_export_remove(struct ps_export *exported);
bool ps_is_exported(const unsigned char handle[PS_IPC_HANDLE_BYTES]);

/* Called in a forked child, which has exported nothing itself: empties the
 * list. */
void ps_exports_reset_in_child(void);

#endif
