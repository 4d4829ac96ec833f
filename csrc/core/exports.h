/* A list of the interprocess handles that this process exported, for events
 * and for memory.  Core uses the list to refuse to open a handle in the
 * process that exported it, because some backends fail or misbehave if a
 * process does that. */
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
/* Remove a handle from the list.  Must be called in the process that added it,
 * not in a forked child. */
void ps_export_remove(struct ps_export *exported);
bool ps_is_exported(const unsigned char handle[PS_IPC_HANDLE_BYTES]);

/* Called in a forked child: empties the list, since the child has exported
 * nothing itself. */
void ps_exports_reset_in_child(void);

#endif
