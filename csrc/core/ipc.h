/* Events that several processes share: handles made of them here, and events
 * made here of handles. */
#ifndef PYSTREAMS_CORE_IPC_H
#define PYSTREAMS_CORE_IPC_H

#include <pystreams/backend.h>

#include "status.h"

struct ps_device;
struct ps_event;

/* The handle of an event made with PS_EVENT_INTERPROCESS, which gets its
 * native event on the device if it has none; of one that was opened, the
 * handle that it was opened by.  Lives as long as the event.  May block.
 * PS_ERROR_NOT_SUPPORTED where the backend has no such events,
 * PS_ERROR_FOREIGN for an event of an ancestor. */
ps_status ps_event_export(struct ps_event *event, struct ps_device *device,
                          const unsigned char **handle);

/* An event of another process's; see event_open.  May block.
 * PS_ERROR_OWN_HANDLE, PS_ERROR_NOT_SUPPORTED. */
ps_status ps_event_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        struct ps_event **event);

/* The event is going. */
void ps_ipc_forget(struct ps_event *event);

/* In the child of a fork: whoever held a lock is gone. */
void ps_ipc_reset_in_child(void);

#endif
