/* Events and memory that several processes share, the files that are open for
 * them, and the thread that waits for records of other processes.  The
 * engine's lock guards all of this.  The lock may be held during all system
 * calls here except epoll_wait, because none of the others waits for another
 * process. */
#ifndef PYSTREAMS_CPU_SHARED_H
#define PYSTREAMS_CPU_SHARED_H

#include "engine.h"

#include <sys/types.h>

/* ---- Shared events ---- */

/* If the handle is NULL, create an event that other processes may open.
 * Otherwise open another process's event by this handle, as event_open does.
 * Returns PS_ERROR_OUT_OF_MEMORY also if the process has too many open
 * files. */
ps_status cpu_shared_make_locked(struct cpu_engine *engine, int device,
                                 const unsigned char *handle,
                                 struct cpu_shared **shared);
/* Write the event's interprocess handle, as event_export does. */
void cpu_shared_export_locked(const struct cpu_shared *shared,
                              unsigned char handle[PS_IPC_HANDLE_BYTES]);
/* Call this when the event was destroyed.  Its records, and the threads that
 * wait for them, are not affected. */
void cpu_shared_close_locked(struct cpu_shared *shared);

/* Set event->object to the event's latest record, whichever process made it.
 * If another process has completed that record, complete it in this process
 * too.  Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN;
 * PS_ERROR_UNKNOWN if other processes record the event so often that its
 * latest record cannot be read. */
ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event);

/* Prepare a pending record for cpu_shared_publish_locked, so that other
 * processes can wait for it.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record);
/* Make the record the event's latest one for all processes.  The record must
 * be done, or have a promise from cpu_promise_make_locked. */
void cpu_shared_publish_locked(struct cpu_shared *shared,
                               const struct cpu_record *record);

/* Tell the thread that waits for records of other processes to end.  Called
 * when the engine stops.  Does not wait for the end of the thread. */
void cpu_poller_stop_locked(struct cpu_engine *engine);

/* ---- Files ---- */

void cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                          int number);
void cpu_file_close_locked(struct cpu_file *file);

enum { CPU_PAGE_BYTES = 4096 };

/* The kinds of shared files.  The size of a file is a multiple of
 * CPU_PAGE_BYTES. */
enum cpu_share {
    CPU_SHARE_EVENT,
    CPU_SHARE_MEMORY,
};

/* The contents of an interprocess handle.  It tells another process how to
 * find a file of the process that wrote the handle, and how to recognize that
 * file.  The checksum covers the members before it. */
struct cpu_token {
    char magic[8];
    int32_t device_type;
    int32_t device;
    int32_t process;
    int32_t file; /* the file's descriptor in the process `process` */
    uint64_t inode;
    uint64_t nonce[3]; /* random; the file begins with the same bytes */
    uint64_t checksum;
};

/* The sizes of the two parts of a mapping.  The first `front` bytes are memory
 * that is private to this process.  The next `nbytes` bytes are the contents
 * of a file. */
struct cpu_pages {
    size_t front;
    size_t nbytes;
};

/* Create a file, map its pages, and write the handle to *token.  The file
 * contains zeros behind the nonce.  No process can make the file shorter, and
 * this call allocates all memory of the file.  So accesses to the mapped pages
 * never raise SIGBUS.  May be called without the engine's lock.  Returns
 * PS_ERROR_OUT_OF_MEMORY also if the process has too many open files. */
ps_status
cpu_token_create(const struct cpu_engine *engine, enum cpu_share share,
                 int device, const struct cpu_pages *pages,
                 struct cpu_token *token, void **mapped);
/* Map the file that an interprocess handle identifies.  The bytes of the
 * handle may be arbitrary.  The caller must be prepared for arbitrary bytes in
 * the file behind the nonce.  May be called without the engine's lock.
 * Statuses: those of event_open, and PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_token_open(const struct cpu_engine *engine, enum cpu_share share,
                         int device, const struct cpu_pages *pages,
                         const unsigned char handle[PS_IPC_HANDLE_BYTES],
                         struct cpu_token *token, void **mapped);
/* Unmap the pages and the private memory in front of them.  `mapped` is the
 * address of the pages. */
void cpu_pages_unmap(const struct cpu_pages *pages, void *mapped);

/* Create a pipe.  Returns one descriptor for both ends, or -1 if that fails.
 * The descriptor is open for reading, too, so that writing never raises
 * SIGPIPE.  Writing never blocks, even if another process has filled the
 * pipe. */
int cpu_pipe_create(uint32_t *inode);
/* Open a pipe of another process for reading.  The pipe is identified by its
 * inode.  `likely` is the descriptor that the pipe most likely has in that
 * process.  If the pipe has another one, this searches all descriptors of the
 * process.  Statuses: PS_ERROR_INVALID_HANDLE if the pipe is not found,
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_pipe_open(pid_t process, int likely, uint32_t inode, int *pipe);

#endif
