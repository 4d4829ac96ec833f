/* Events that several processes share, the files that are open for them, and
 * the thread that hears from other processes.  The engine's lock guards all of
 * it, and is held over the system calls that it takes, none of which waits for
 * anybody. */
#ifndef PYSTREAMS_CPU_SHARED_H
#define PYSTREAMS_CPU_SHARED_H

#include "engine.h"

/* ---- Shared events ---- */

/* Make an event that others may open.  Statuses: PS_ERROR_OUT_OF_MEMORY, also
 * where the process has too many files open. */
ps_status cpu_shared_create_locked(struct cpu_engine *engine, int device,
                                   struct cpu_shared **shared);
/* The members event_export and event_open. */
void cpu_shared_export_locked(const struct cpu_shared *shared,
                              unsigned char handle[PS_IPC_HANDLE_BYTES]);
ps_status
cpu_shared_open_locked(struct cpu_engine *engine, int device,
                       const unsigned char handle[PS_IPC_HANDLE_BYTES],
                       struct cpu_shared **shared);
/* The event is destroyed.  Its records and those who wait go on. */
void cpu_shared_close_locked(struct cpu_shared *shared);

/* Make the event's record here that in effect for all processes, known to be
 * done if it is.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event);

/* Prepare to tell the others when a record is done that is not yet.
 * Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record);
/* Put the record, done or with a promise, into effect for all processes. */
void cpu_shared_publish_locked(struct cpu_shared *shared,
                               struct cpu_record *record);
/* Give up the record's promise, once it is done or was never published. */
void cpu_promise_keep_locked(struct cpu_record *record);

/* ---- Files ---- */

void cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                          int number);
void cpu_file_close_locked(struct cpu_file *file);

/* ---- The watcher ---- */

/* Complete the record once the pipe tells how it ended; the pipe is the
 * watcher's then.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status cpu_watcher_add_locked(struct cpu_engine *engine, int pipe,
                                 struct cpu_record *record);
/* The engine is stopping. */
void cpu_watcher_stop_locked(struct cpu_engine *engine);

#endif
