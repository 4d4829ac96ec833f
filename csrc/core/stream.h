/* Streams.  References to a stream are counted.  When the last one is dropped,
 * on any thread, the native stream of an owned stream returns to its device's
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
    /* Stands for the calling thread's default stream: no work is queued on it,
     * see thread_stream.h. */
    PS_STREAM_CALLERS = -1,
    PS_STREAM_DEFAULT,
    /* The references to the kinds from here on are counted. */
    PS_STREAM_OWNED,
    PS_STREAM_EXTERNAL,
    PS_STREAM_THREADS, /* the default stream of one thread */
};

struct ps_stream {
    atomic_uint refs;
    enum ps_stream_kind kind;
    /* The fork generation that created it. */
    unsigned generation;
    struct ps_device *device;
    ps_handle handle;
    /* Identifies it among the device's streams on any thread: its handle or,
     * for a thread's default stream, the name that the backend gives. */
    ps_handle identity;
    int priority;
    /* Whether it was created to serialize with the default stream. */
    bool blocking;
    /* Whether work may have been queued since the stream was last idle. */
    atomic_bool used;
    /* The number of submitted callables that are not done; guarded by the
     * mutex of submit.c's queue. */
    unsigned jobs;
    /* For people, in UTF-8; NULL if it has none.  Constant. */
    char *name;
    /* Kept alive with an external stream; release may be NULL. */
    void *owner;
    void (*release_owner)(void *owner);
    /* The owned stream that an external one shares its native stream with, or
     * NULL; a reference. */
    struct ps_stream *shared;
    /* Neighbours in the device's list; its mutex guards them. */
    LIST_ENTRY(ps_stream) neighbours;
    /* The partition that it belongs to, a reference; NULL if none. */
    struct ps_partition *partition;
    /* The next stream whose release was deferred. */
    struct ps_stream *next_deferred;
    /* Of a thread's default stream, see thread_stream.h. */
    struct {
        /* Recorded after work with blocks, and when the thread ends. */
        struct ps_event *latest;
        atomic_bool lags;       /* the last attempt to record it failed */
        atomic_bool ended;      /* the thread has */
        atomic_bool adrift;     /* captured, but its graph is gone */
        struct ps_stream *next; /* of the thread, which alone uses this */
    } of_thread;
    /* For retired memory: the uses by this stream's work that are not over,
     * the oldest first, and the blocks to be freed in its order after the end
     * of a capture.  The mutex of the runtime's pool guards it. */
    struct {
        struct ps_block_use *first;
        struct ps_block_use *last;
        struct ps_block *held;
        bool listed; /* in the pool, or taken out by a sweep */
        struct ps_stream *next;
    } memory;
};

/* A stream without a handle and with one reference; NULL when out of
 * memory. */
struct ps_stream *
ps_stream_new(struct ps_device *device, enum ps_stream_kind kind);

/* A stream with a native stream of its own, from the pool or new.  priority is
 * clamped to the device's range; blocking: PS_ERROR_NOT_SUPPORTED if the
 * backend has no such streams; name: copied, or NULL.  May block. */
ps_status
ps_stream_create(struct ps_device *device, int priority, bool blocking,
                 const char *name, struct ps_stream **stream);

/* Whether the stream serializes with the default stream of its device, and for
 * a default stream, whether the backend has blocking streams.  Answers. */
ps_status ps_stream_blocking(struct ps_stream *stream, int *blocking);

/* Likewise, in the partition.  Its streams are not pooled, because it cannot
 * be destroyed before them. */
ps_status ps_partition_stream(struct ps_partition *partition, int priority,
                              const char *name, struct ps_stream **stream);

/* The stream's name, that of the owned stream which an external one shares;
 * NULL if it has none.  Valid while the caller holds a reference. */
static inline const char *
ps_stream_name(const struct ps_stream *stream)
{
    return stream->shared != NULL ? stream->shared->name : stream->name;
}

/* A stream of another owner.  After success, release_owner(owner) is called
 * when the last reference is dropped.  If the handle is that of a live owned
 * stream, the result keeps that stream alive, and without an owner it is that
 * stream itself.  PS_ERROR_INVALID_HANDLE for the handle of a pooled stream.
 */
ps_status
ps_stream_wrap(struct ps_device *device, ps_handle handle, void *owner,
               void (*release_owner)(void *owner), struct ps_stream **stream);

/* Writes the identities of the device's default stream, of its live owned
 * streams and of its threads' default streams, as many as there is room for;
 * returns the number of all. */
size_t ps_device_identities(struct ps_device *device, ps_handle *identities,
                            size_t room);

/* A new reference to such a stream with this identity, or NULL. */
struct ps_stream *ps_stream_find(struct ps_device *device, ps_handle identity);

/* References are counted, except to a device's own streams, which are never
 * freed. */
static inline struct ps_stream *
ps_stream_ref(struct ps_stream *stream)
{
    if (stream->kind > PS_STREAM_DEFAULT) {
        atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    }
    return stream;
}

/* As ps_refs_drop_shared. */
static inline bool
ps_stream_drop_shared(struct ps_stream *stream)
{
    return stream->kind <= PS_STREAM_DEFAULT ||
           ps_refs_drop_shared(&stream->refs);
}

/* Whether it is one of the calling thread's default streams. */
__attribute__((cold)) bool ps_thread_has(const struct ps_stream *stream);

/* Whether it is a default stream of another thread, or of one that has ended:
 * no member may be called with its handle, which means another stream here. */
static inline bool
ps_stream_is_remote(const struct ps_stream *stream)
{
    return stream->kind == PS_STREAM_THREADS && !ps_thread_has(stream);
}

/* Accepts NULL.  Dropping the last reference may block; the status is that of
 * the clean-up, and the stream is gone in any case. */
ps_status ps_stream_unref(struct ps_stream *stream);

/* Destroy the pooled native streams that have failed.  A failure is stored for
 * ps_runtime_take_failure. */
void ps_device_forget_failed(struct ps_device *device);

/* Release the streams that were dropped while they were captured, or busy in a
 * partition, except those that still are.  A failure is stored for
 * ps_runtime_take_failure. */
void ps_device_give_up_deferred(struct ps_device *device);

/* The members of the contract of the same names, for a stream of this
 * process; PS_ERROR_FOREIGN for one of an ancestor, and
 * PS_ERROR_CAPTURE_UNSUPPORTED for one that is known to be captured. */
ps_status ps_stream_query(struct ps_stream *stream);
ps_status
ps_stream_synchronize(struct ps_stream *stream, const struct ps_limit *limit);

/* As ps_stream_query, for core's own housekeeping: disturbs no capture, and
 * reports as busy a stream that is being captured, and another thread's
 * default stream until that thread has ended.  A capture that another thread
 * begins on the stream meanwhile is not seen. */
ps_status ps_stream_query_quietly(struct ps_stream *stream);

ps_status ps_stream_wait_room(struct ps_stream *stream, int64_t timeout_ns);

/* As ps_stream_wait_event, if nothing needs to be queued; else
 * PS_ERROR_NOT_KNOWN.  Calls no backend. */
ps_status
ps_stream_wait_known(struct ps_stream *stream, struct ps_event *event);

/* The rest of ps_stream_wait_event, after PS_ERROR_NOT_KNOWN. */
ps_status
ps_stream_wait_pending(struct ps_stream *stream, struct ps_event *event);

/* Wait for the event's record in effect; calls no backend if the record is
 * known to be done.  Enqueues; may block if an external event has no native
 * event yet, which is then created on the stream's device. */
ps_status
ps_stream_wait_event(struct ps_stream *stream, struct ps_event *event);

/* Work queued on stream from here on waits for all work queued on other.
 * Enqueues. */
ps_status
ps_stream_wait_stream(struct ps_stream *stream, struct ps_stream *other);

/* Likewise, untraced, so that it may be called with a lock held. */
ps_status ps_stream_wait_stream_quietly(struct ps_stream *stream,
                                        struct ps_stream *other);

#endif
