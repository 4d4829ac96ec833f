/* Events and memory that several processes share, the files that are open for
 * them, and the thread that waits for other processes.  The engine's lock
 * guards all of it, and is held during its system calls, none of which waits
 * for another process. */
#ifndef PYSTREAMS_CPU_SHARED_H
#define PYSTREAMS_CPU_SHARED_H

#include "engine.h"

#include <sys/types.h>

/* ---- Shared events ---- */

/* Create an event that other processes may open, if the handle is NULL, or
 * open another process's, as the member event_open says.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY, also if the process has too many open files. */
ps_status cpu_shared_make_locked(struct cpu_engine *engine, int device,
                                 const unsigned char *handle,
                                 struct cpu_shared **shared);
/* As the member event_export says. */
void cpu_shared_export_locked(const struct cpu_shared *shared,
                              unsigned char handle[PS_IPC_HANDLE_BYTES]);
/* The event was destroyed.  Its records and waiting threads are unaffected. */
void cpu_shared_close_locked(struct cpu_shared *shared);

/* Make event->object the record that is in effect for all processes, and
 * complete it if that record is done.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN,
 * PS_ERROR_UNKNOWN if it changes too fast. */
ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event);

/* Prepare to publish a pending record, so that other processes can wait for
 * it.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record);
/* Publish the record, done or with a promise, to all processes. */
void cpu_shared_publish_locked(struct cpu_shared *shared,
                               const struct cpu_record *record);

/* The engine is stopping: end the thread that waits for other processes. */
void cpu_poller_stop_locked(struct cpu_engine *engine);

/* ---- Files ---- */

void cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                          int number);
void cpu_file_close_locked(struct cpu_file *file);

enum { CPU_PAGE_BYTES = 4096 };

/* The kinds of shared files.  The sizes of all files are whole pages. */
enum cpu_share {
    CPU_SHARE_EVENT,
    CPU_SHARE_MEMORY,
};

/* A handle: how another process finds a file of this one's and recognizes it.
 * The checksum of the members before it comes last. */
struct cpu_token {
    char magic[8];
    int32_t device_type;
    int32_t device;
    int32_t process;
    int32_t file; /* its number there */
    uint64_t inode;
    uint64_t nonce[3]; /* with which the file begins */
    uint64_t checksum;
};

/* Pages of a file, mapped behind `front` bytes of memory of this process's
 * own. */
struct cpu_pages {
    size_t front;
    size_t nbytes;
};

/* A new file of zeros behind the nonce, its pages, and its handle.  No process
 * can make it shorter, and it has its memory already.  May be called without
 * the engine's lock.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, also if the process has too many open
 * files. */
ps_status
cpu_token_create(const struct cpu_engine *engine, enum cpu_share share,
                 int device, const struct cpu_pages *pages,
                 struct cpu_token *token, void **mapped);
/* Map the file that a handle names.  The handle may be any bytes, and so may
 * the file's contents behind the nonce.  May be called without the engine's
 * lock.
 * Statuses: those of event_open. */
ps_status cpu_token_open(const struct cpu_engine *engine, enum cpu_share share,
                         int device, const struct cpu_pages *pages,
                         const unsigned char handle[PS_IPC_HANDLE_BYTES],
                         struct cpu_token *token, void **mapped);
/* Accepts the address of the pages, not that of the front. */
void cpu_pages_unmap(const struct cpu_pages *pages, void *mapped);

/* A pipe; -1 if there is no room for one.  Writing to it never raises SIGPIPE,
 * because it is also open for reading, and never blocks, even if a peer fills
 * it. */
int cpu_pipe_create(uint32_t *inode);
/* Open it for reading.  The process has it open under some number, most likely
 * this one.  Statuses: those of cpu_token_open. */
ps_status cpu_pipe_open(pid_t process, int likely, uint32_t inode, int *pipe);

#endif
