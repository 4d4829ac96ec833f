/* Streams.  The references to a ps_stream are counted.  A native stream is a
 * stream of the backend, and is identified by a handle.  An owned stream is a
 * ps_stream with a native stream of its own.  When the last reference to an
 * owned stream is dropped, on any thread, its native stream returns to the
 * device's pool. */
#ifndef PYSTREAMS_CORE_STREAM_H
#define PYSTREAMS_CORE_STREAM_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "refs.h"

struct ps_block;
struct ps_block_use;
struct ps_device;
struct ps_event;
struct ps_partition;

enum ps_stream_kind {
    /* Stands for the default stream of whichever thread calls.  It is replaced
     * with that thread's PS_STREAM_THREADS stream before work is queued; see
     * thread_stream.h. */
    PS_STREAM_CALLERS = -1,
    PS_STREAM_DEFAULT,
    /* References are counted only for streams of the kinds below.  Streams of
     * the two kinds above are parts of struct ps_device. */
    PS_STREAM_OWNED,    /* has a native stream of its own */
    PS_STREAM_EXTERNAL, /* was made from a handle; see ps_stream_wrap */
    PS_STREAM_THREADS,  /* a thread's default stream */
};

struct ps_stream {
    atomic_uint refs;
    enum ps_stream_kind kind;
    /* The fork generation in which the stream was created. */
    unsigned generation;
    struct ps_device *device;
    ps_handle handle;
    /* A number that identifies the stream among the device's streams, on every
     * thread.  It is the handle, except for a thread's default stream: such a
     * stream has the same handle on all threads, so its identity is the name
     * that the backend's thread_stream returned. */
    ps_handle identity;
    int priority;
    /* Whether the stream was created to serialize with the default stream. */
    bool blocking;
    /* Whether work may have been queued since the stream was last found
     * idle. */
    atomic_bool used;
    /* The number of Python callables that were submitted to the stream and are
     * not done.  The mutex of the queue in submit.c guards it. */
    unsigned jobs;
    /* A human-readable name, in UTF-8; NULL if the stream has none.  It never
     * changes. */
    char *name;
    /* Only for an external stream: release_owner(owner) is called when the
     * stream is freed.  release_owner may be NULL. */
    void *owner;
    void (*release_owner)(void *owner);
    /* Only for an external stream: a reference to the owned stream that has
     * the same handle; NULL if there is none. */
    struct ps_stream *shared;
    /* The stream's place in the device's list `streams`.  The device's mutex
     * guards it. */
    LIST_ENTRY(ps_stream) neighbours;
    /* The stream's partition, or NULL if the stream is in no partition.  An
     * owned stream has a reference to it, and an external stream borrows that
     * of `shared`. */
    struct ps_partition *partition;
    /* The next stream in the device's list `deferred`. */
    struct ps_stream *next_deferred;
    /* Only for a thread's default stream; see thread_stream.h. */
    struct {
        /* An event with which other threads can wait for the stream.  It is
         * recorded after work that uses blocks of memory has been queued, and
         * when the thread ends. */
        struct ps_event *latest;
        atomic_bool lags;   /* the latest attempt to record `latest` failed */
        atomic_bool ended;  /* the thread has ended */
        atomic_bool adrift; /* captured into a graph that was freed */
        /* Called before the stream is freed. */
        void (*freed)(const struct ps_stream *stream);
        struct ps_stream *next; /* the thread's next stream; only the thread
                                   itself uses this */
    } of_thread;
    /* For retired blocks (see memory.h).  `first` and `last` are the ends of a
     * list of this stream's unfinished uses (see memory_use.h) of retired
     * blocks.  The oldest use comes first.  `held` is a list of blocks that no
     * work uses any more, but that cannot be freed yet; finish() in memory.c
     * says why.  The mutex of the runtime's memory pool guards all members of
     * this struct. */
    struct {
        struct ps_block_use *first;
        struct ps_block_use *last;
        struct ps_block *held;
        bool listed; /* the stream is in the memory pool's list `retired`, or a
                        sweep that took it out is still checking it */
        struct ps_stream *next;
    } memory;
};

/* Create a stream without a handle, with one reference.  Returns NULL if out
 * of memory. */
struct ps_stream *
ps_stream_new(struct ps_device *device, enum ps_stream_kind kind);

/* Create a stream that has its own native stream, from the pool or new.
 * priority is clamped to the device's range.  name is copied; it may be NULL.
 * Returns PS_ERROR_NOT_SUPPORTED if `blocking` is true and the backend has no
 * blocking streams.  May block. */
ps_status
ps_stream_create(struct ps_device *device, int priority, bool blocking,
                 const char *name, struct ps_stream **stream);

/* *blocking becomes 1 if the stream serializes with its device's default
 * stream, else 0.  For the default stream itself, *blocking becomes 1 if the
 * backend has blocking streams, else 0.  Never blocks. */
ps_status ps_stream_blocking(struct ps_stream *stream, int *blocking);

/* Like ps_stream_create, but for a stream of the partition.  Its native stream
 * never returns to the pool, because in the pool it would keep the partition
 * from being destroyed. */
ps_status ps_partition_stream(struct ps_partition *partition, int priority,
                              const char *name, struct ps_stream **stream);

/* Returns the stream's name, or NULL if it has none.  An external stream has
 * the name of the owned stream that it shares.  Valid while the caller holds a
 * reference. */
static inline const char *
ps_stream_name(const struct ps_stream *stream)
{
    return stream->shared != NULL ? stream->shared->name : stream->name;
}

/* Make an external stream from the handle of a native stream that another
 * owner manages.  After success, release_owner(owner) is called when the last
 * reference to the new stream is dropped.  If a live owned stream has this
 * handle, the new stream holds a reference to that owned stream.  But if owner
 * is also NULL, no new stream is made, and *stream becomes a new reference to
 * the owned stream.  Returns PS_ERROR_INVALID_HANDLE for the handle of a
 * pooled stream. */
ps_status
ps_stream_wrap(struct ps_device *device, ps_handle handle, void *owner,
               void (*release_owner)(void *owner), struct ps_stream **stream);

/* Write the identities of the device's default stream, of its live owned
 * streams and of all threads' default streams on it, but at most `room`
 * identities.  Returns how many such streams there are, which may be more than
 * `room`. */
size_t ps_device_identities(struct ps_device *device, ps_handle *identities,
                            size_t room);

/* Returns a new reference to the owned stream or thread's default stream with
 * this identity; NULL if there is none. */
struct ps_stream *ps_stream_find(struct ps_device *device, ps_handle identity);

/* Take a reference.  For the two streams that are part of struct ps_device
 * this does nothing, because they are never freed. */
static inline struct ps_stream *
ps_stream_ref(struct ps_stream *stream)
{
    if (stream->kind > PS_STREAM_DEFAULT) {
        atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    }
    return stream;
}

/* Drop a reference unless it is the last one.  Returns false, and changes
 * nothing, if it is the last one; see ps_refs_drop_shared. */
static inline bool
ps_stream_drop_shared(struct ps_stream *stream)
{
    return stream->kind <= PS_STREAM_DEFAULT ||
           ps_refs_drop_shared(&stream->refs);
}

/* Returns whether this is one of the calling thread's default streams. */
__attribute__((cold)) bool ps_thread_has(const struct ps_stream *stream);

/* Returns whether this is a default stream of another thread, or of a thread
 * that has ended.  No member of the backend may be called with its handle,
 * because on this thread the handle means this thread's own stream. */
static inline bool
ps_stream_is_remote(const struct ps_stream *stream)
{
    return stream->kind == PS_STREAM_THREADS && !ps_thread_has(stream);
}

/* Drop a reference; accepts NULL.  Dropping the last one may block.  Returns
 * the status of the clean-up; even after a failure, the reference is gone. */
ps_status ps_stream_unref(struct ps_stream *stream);

/* Destroy the native streams in the device's pool whose work has failed.  If
 * destroying one fails, the status is stored for ps_runtime_take_failure. */
void ps_device_forget_failed(struct ps_device *device);

/* Release the streams in the device's list `deferred` that can be released
 * now.  A stream stays in the list while it is being captured, or while it
 * belongs to a partition and is busy.  A failure is stored for
 * ps_runtime_take_failure. */
void ps_device_give_up_deferred(struct ps_device *device);

/* Like the backend's stream_query and stream_synchronize.  Return
 * PS_ERROR_FOREIGN if a parent process created the stream, and
 * PS_ERROR_CAPTURE_UNSUPPORTED if the stream is known to be captured. */
ps_status ps_stream_query(struct ps_stream *stream);
ps_status
ps_stream_synchronize(struct ps_stream *stream, const struct ps_limit *limit);

/* Like ps_stream_query, but for core's own housekeeping.  Also returns
 * PS_ERROR_NOT_READY if the stream is being captured, or is the default stream
 * of another thread that has not ended.  Invalidates no capture, unless
 * another thread begins to capture this stream during the call. */
ps_status ps_stream_query_quietly(struct ps_stream *stream);

ps_status ps_stream_wait_room(struct ps_stream *stream, int64_t timeout_ns);

/* The first step of ps_stream_wait_event.  Returns PS_SUCCESS if core knows
 * that no wait needs to be queued; the second step is then left out.  Returns
 * PS_ERROR_NOT_KNOWN if the second step is needed.  Calls no backend. */
ps_status
ps_stream_wait_known(struct ps_stream *stream, struct ps_event *event);

/* The second step of ps_stream_wait_event, which queues the wait.  Call this
 * if ps_stream_wait_known returned PS_ERROR_NOT_KNOWN. */
ps_status
ps_stream_wait_pending(struct ps_stream *stream, struct ps_event *event);

/* Make all work that is queued on the stream after this call wait for the
 * event's latest record.  Records that are made after this call do not matter.
 * Calls no backend if the latest record is known to be done.  Enqueues (see
 * backend.h).  If the stream is being captured and the event is external, a
 * native event is created if the event has none.  Only in this case may the
 * call block. */
ps_status
ps_stream_wait_event(struct ps_stream *stream, struct ps_event *event);

/* Make all work that is queued on `stream` after this call wait for all work
 * that was queued on `other` before this call.  Enqueues, but may block if a
 * native event must be created or destroyed. */
ps_status
ps_stream_wait_stream(struct ps_stream *stream, struct ps_stream *other);

/* Like ps_stream_wait_stream, but calls no trace hook, so that it may be
 * called with a lock held. */
ps_status ps_stream_wait_stream_quietly(struct ps_stream *stream,
                                        struct ps_stream *other);

#endif
