/* Streams.  References to a stream are counted.  When the last one to an owned
 * stream is dropped, on any thread, its native stream returns to the device's
 * pool. */
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
    /* Represents the default stream of whichever thread calls.  No work is
     * queued on it directly; see thread_stream.h. */
    PS_STREAM_CALLERS = -1,
    PS_STREAM_DEFAULT,
    /* References are counted only for the kinds from here on. */
    PS_STREAM_OWNED,
    PS_STREAM_EXTERNAL,
    PS_STREAM_THREADS, /* a thread's default stream */
};

struct ps_stream {
    atomic_uint refs;
    enum ps_stream_kind kind;
    /* The fork generation in which the stream was created. */
    unsigned generation;
    struct ps_device *device;
    ps_handle handle;
    /* A number that names the stream among the device's streams on every
     * thread.  It is the handle or, for a thread's default stream, the name
     * from the backend's thread_stream. */
    ps_handle identity;
    int priority;
    /* Whether the stream was created to serialize with the default stream. */
    bool blocking;
    /* Whether work may have been queued since the stream was last found
     * idle. */
    atomic_bool used;
    /* The number of submitted Python callables that are not done.  The mutex
     * of submit.c's queue guards it. */
    unsigned jobs;
    /* A name for people, in UTF-8; NULL if the stream has none.  Constant. */
    char *name;
    /* Only for an external stream: an object that must outlive it.
     * release_owner may be NULL. */
    void *owner;
    void (*release_owner)(void *owner);
    /* Only for an external stream: a reference to the owned stream that has
     * the same native stream, or NULL. */
    struct ps_stream *shared;
    /* The stream's place in the device's list.  The device's mutex guards
     * it. */
    LIST_ENTRY(ps_stream) neighbours;
    /* A reference to the partition of the stream; NULL if it is in none. */
    struct ps_partition *partition;
    /* The next in the device's list `deferred`. */
    struct ps_stream *next_deferred;
    /* Only for a thread's default stream; see thread_stream.h. */
    struct {
        /* Recorded after work that uses blocks, and when the thread ends. */
        struct ps_event *latest;
        atomic_bool lags;       /* the latest attempt to record failed */
        atomic_bool ended;      /* the thread has ended */
        atomic_bool adrift;     /* being captured for a graph that was freed */
        struct ps_stream *next; /* the thread's next stream; only the thread
                                   itself uses this */
    } of_thread;
    /* For retired blocks: their uses by this stream that are not over, the
     * oldest first; and `held`, the blocks that a later sweep must free, as
     * finish() in memory.c says.  The mutex of the runtime's pool guards all
     * of this. */
    struct {
        struct ps_block_use *first;
        struct ps_block_use *last;
        struct ps_block *held;
        bool listed; /* in the pool's list, or taken out of it by a sweep */
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

/* *blocking becomes whether the stream serializes with its device's default
 * stream.  For the default stream itself, it becomes whether the backend has
 * blocking streams.  Never blocks. */
ps_status ps_stream_blocking(struct ps_stream *stream, int *blocking);

/* As ps_stream_create, in the partition.  The stream will not be pooled,
 * because a pooled stream would keep the partition from being destroyed. */
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

/* Make a stream from a handle that another owner manages.  After success,
 * release_owner(owner) is called when the last reference is dropped.  If a
 * live owned stream has this handle, the result keeps that stream alive; if
 * owner is NULL too, the result is that stream itself.  Returns
 * PS_ERROR_INVALID_HANDLE for the handle of a pooled stream. */
ps_status
ps_stream_wrap(struct ps_device *device, ps_handle handle, void *owner,
               void (*release_owner)(void *owner), struct ps_stream **stream);

/* Write the identities of the device's default stream, its live owned streams
 * and its threads' default streams, at most `room` of them.  Returns how many
 * such streams there are, which may be more than `room`. */
size_t ps_device_identities(struct ps_device *device, ps_handle *identities,
                            size_t room);

/* Returns a new reference to the owned stream or thread's default stream with
 * this identity; NULL if there is none. */
struct ps_stream *ps_stream_find(struct ps_device *device, ps_handle identity);

/* Take a reference.  The streams that are part of a device are never freed,
 * and not counted. */
static inline struct ps_stream *
ps_stream_ref(struct ps_stream *stream)
{
    if (stream->kind > PS_STREAM_DEFAULT) {
        atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    }
    return stream;
}

/* Drop a reference unless it is the last one; see ps_refs_drop_shared. */
static inline bool
ps_stream_drop_shared(struct ps_stream *stream)
{
    return stream->kind <= PS_STREAM_DEFAULT ||
           ps_refs_drop_shared(&stream->refs);
}

/* Returns whether this is one of the calling thread's default streams. */
__attribute__((cold)) bool ps_thread_has(const struct ps_stream *stream);

/* Returns whether this is a default stream of another thread, or of a thread
 * that has ended.  No member may be called with its handle, because on this
 * thread the handle means this thread's own stream. */
static inline bool
ps_stream_is_remote(const struct ps_stream *stream)
{
    return stream->kind == PS_STREAM_THREADS && !ps_thread_has(stream);
}

/* Accepts NULL.  Dropping the last reference may block.  Returns the status of
 * the clean-up; the stream is gone in any case. */
ps_status ps_stream_unref(struct ps_stream *stream);

/* Destroy the pooled native streams that have failed.  If destroying one
 * fails, the status is stored for ps_runtime_take_failure. */
void ps_device_forget_failed(struct ps_device *device);

/* Release the streams in the device's list `deferred`, except those that are
 * still captured, or busy in a partition.  A failure is stored for
 * ps_runtime_take_failure. */
void ps_device_give_up_deferred(struct ps_device *device);

/* The contract's members of the same names.  Return PS_ERROR_FOREIGN for a
 * stream of the parent process, and PS_ERROR_CAPTURE_UNSUPPORTED for a stream
 * that is known to be captured. */
ps_status ps_stream_query(struct ps_stream *stream);
ps_status
ps_stream_synchronize(struct ps_stream *stream, const struct ps_limit *limit);

/* As ps_stream_query, for core's own housekeeping: the query disturbs no
 * capture.  Reports a stream as busy if it is being captured, or if it is the
 * default stream of another thread that has not ended.  Does not notice a
 * capture that another thread begins on the stream during the call. */
ps_status ps_stream_query_quietly(struct ps_stream *stream);

ps_status ps_stream_wait_room(struct ps_stream *stream, int64_t timeout_ns);

/* Do ps_stream_wait_event if nothing needs to be queued.  Otherwise return
 * PS_ERROR_NOT_KNOWN.  Calls no backend. */
ps_status
ps_stream_wait_known(struct ps_stream *stream, struct ps_event *event);

/* The rest of ps_stream_wait_event: call it if ps_stream_wait_known returns
 * PS_ERROR_NOT_KNOWN. */
ps_status
ps_stream_wait_pending(struct ps_stream *stream, struct ps_event *event);

/* Make later work of the stream wait for the event's latest record at the time
 * of the call.  Calls no backend if that record is known to be done.
 * Enqueues.  Creates the native event of an external event that has none, on
 * the stream's device, and may then block. */
ps_status
ps_stream_wait_event(struct ps_stream *stream, struct ps_event *event);

/* Make work that is queued on `stream` from here on wait for all work that is
 * queued on `other` now.  Enqueues. */
ps_status
ps_stream_wait_stream(struct ps_stream *stream, struct ps_stream *other);

/* As ps_stream_wait_stream, but not traced, so that it may be called with a
 * lock held. */
ps_status ps_stream_wait_stream_quietly(struct ps_stream *stream,
                                        struct ps_stream *other);

#endif
