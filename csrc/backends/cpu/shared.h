/* Events and memory that several processes share, the files that are open for
 * them, and the thread that waits for other processes.  The engine's lock
 * guards all of this.  It is held during the system calls here, since none of
 * them waits for another process. */
#ifndef PYSTREAMS_CPU_SHARED_H
#define PYSTREAMS_CPU_SHARED_H

#include "engine.h"

#include <sys/types.h>

/* ---- Shared events ---- */

/* Create an event that other processes may open if the handle is NULL, else
 * open another process's event, as the member event_open does.  Returns
 * PS_ERROR_OUT_OF_MEMORY also if the process has too many open files. */
ps_status cpu_shared_make_locked(struct cpu_engine *engine, int device,
                                 const unsigned char *handle,
                                 struct cpu_shared **shared);
/* Write the event's handle, as the member event_export does. */
void cpu_shared_export_locked(const struct cpu_shared *shared,
                              unsigned char handle[PS_IPC_HANDLE_BYTES]);
/* Call when the event was destroyed.  Does not affect its records and the
 * threads that wait for them. */
void cpu_shared_close_locked(struct cpu_shared *shared);

/* Set event->object to the event's latest record of all processes.  If that
 * record is done, complete it here.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN; PS_ERROR_UNKNOWN if the latest record changes too
 * fast. */
ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event);

/* Prepare a pending record for cpu_shared_publish_locked, so that other
 * processes can wait for it.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record);
/* Make the record the latest one for all processes.  It is done, or has a
 * promise. */
void cpu_shared_publish_locked(struct cpu_shared *shared,
                               const struct cpu_record *record);

/* End the thread that waits for other processes, because the engine is
 * stopping. */
void cpu_poller_stop_locked(struct cpu_engine *engine);

/* ---- Files ---- */

void cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                          int number);
void cpu_file_close_locked(struct cpu_file *file);

enum { CPU_PAGE_BYTES = 4096 };

/* The kinds of shared files.  Their sizes are whole pages. */
enum cpu_share {
    CPU_SHARE_EVENT,
    CPU_SHARE_MEMORY,
};

/* A handle: it tells another process how to find a file of this process, and
 * how to recognize it.  The checksum covers the members before it. */
struct cpu_token {
    char magic[8];
    int32_t device_type;
    int32_t device;
    int32_t process;
    int32_t file; /* its file descriptor in that process */
    uint64_t inode;
    uint64_t nonce[3]; /* the first bytes of the file */
    uint64_t checksum;
};

/* A file's pages, which are mapped behind `front` bytes of private memory. */
struct cpu_pages {
    size_t front;
    size_t nbytes;
};

/* Create a file of zeros after the nonce, map its pages, and write its handle.
 * No process can make the file shorter, and its memory is allocated already.
 * May be called without the engine's lock.  Returns PS_ERROR_OUT_OF_MEMORY
 * also if the process has too many open files. */
ps_status
cpu_token_create(const struct cpu_engine *engine, enum cpu_share share,
                 int device, const struct cpu_pages *pages,
                 struct cpu_token *token, void **mapped);
/* Map the file that a handle names.  Both the handle and the file's contents
 * after the nonce may be any bytes.  May be called without the engine's lock.
 * Statuses: those of event_open. */
ps_status cpu_token_open(const struct cpu_engine *engine, enum cpu_share share,
                         int device, const struct cpu_pages *pages,
                         const unsigned char handle[PS_IPC_HANDLE_BYTES],
                         struct cpu_token *token, void **mapped);
/* `mapped` is the address of the pages, not that of the front.  May be
 * NULL. */
void cpu_pages_unmap(const struct cpu_pages *pages, void *mapped);

/* Create a pipe.  Returns -1 if that fails.  The descriptor is open for
 * reading, too, so that writing never raises SIGPIPE.  Writing never blocks,
 * even if another process fills the pipe. */
int cpu_pipe_create(uint32_t *inode);
/* Open another process's pipe for reading.  The process has it open under some
 * descriptor, most likely `likely`.  Statuses: those of cpu_token_open. */
ps_status cpu_pipe_open(pid_t process, int likely, uint32_t inode, int *pipe);

#endif
