/* Events that several processes share, the files that are open for them, and
 * the thread that waits for other processes.  The engine's lock guards all of
 * it, and is held over the system calls that it takes, none of which waits for
 * anybody. */
#ifndef PYSTREAMS_CPU_SHARED_H
#define PYSTREAMS_CPU_SHARED_H

#include "engine.h"

#include <sys/types.h>

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
/* The event is destroyed.  Its records and the threads that wait go on. */
void cpu_shared_close_locked(struct cpu_shared *shared);

/* Make the event's record here that in effect for all processes, known to be
 * done if it is.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event);

/* Prepare to show the others when a record is done that is not yet.
 * Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record);
/* Put the record, done or with a promise, into effect for all processes. */
void cpu_shared_publish_locked(struct cpu_shared *shared,
                               const struct cpu_record *record);

/* The engine is stopping: end the thread that waits for other processes. */
void cpu_watcher_stop_locked(struct cpu_engine *engine);

/* ---- Files ---- */

void cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                          int number);
void cpu_file_close_locked(struct cpu_file *file);

enum { CPU_PAGE_BYTES = 4096 };

/* A new page of zeros, with its file and what that is known by; NULL where
 * there is no room for either.  No process can make it shorter. */
void *cpu_page_create(int *file, uint64_t *inode);
/* The page whose file a process has open under the number; it may have any
 * content.  Statuses: PS_ERROR_INVALID_HANDLE where it has none of this
 * user's, PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_page_open(pid_t process, int number, uint64_t inode, void **page);
void cpu_page_unmap(void *page);

/* A pipe that is open for reading and writing, as one that nobody can read
 * raises SIGPIPE, and that is not waited for when a peer fills it; -1 where
 * there is no room for one. */
int cpu_pipe_create(uint32_t *inode);
/* As cpu_page_open, to read it; the process has it open under any number,
 * most likely this one. */
ps_status cpu_pipe_open(pid_t process, int likely, uint32_t inode, int *pipe);

#endif
