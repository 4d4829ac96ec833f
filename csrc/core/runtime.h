/* Runtimes: the registered backends, and core's state of each device.  A
 * runtime and its devices live until the process ends, so pointers to them
 * need no reference count. */
#ifndef PYSTREAMS_CORE_RUNTIME_H
#define PYSTREAMS_CORE_RUNTIME_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fork.h"
#include "memory.h"
#include "status.h"
#include "stream.h"
#include "table.h"
#include "thread.h"

enum {
    PS_MAX_RUNTIMES = 8,
    /* The number of idle native streams of a device that are kept for reuse.
     * It is small, because a stream holds device memory.  Busy ones are always
     * kept. */
    PS_POOLED_STREAMS = 32,
    PS_IDLE_EVENTS = 1024,
    /* One pool for each combination of PS_EVENT_TIMING and
     * PS_EVENT_BLOCKING. */
    PS_EVENT_POOLS = 4,
};

struct ps_pooled_stream {
    ps_handle handle;
    int priority;
    bool blocking;
    bool unused; /* no work was queued since it was last idle */
};

struct ps_idle_events {
    int count;
    ps_handle handles[PS_IDLE_EVENTS];
};

struct ps_device {
    struct ps_runtime *runtime;
    int index;
    /* The stream with handle 0.  Never freed. */
    struct ps_stream default_stream;
    /* Represents the default stream of whichever thread calls. */
    struct ps_stream callers_stream;
    /* One of the two streams above: the current stream until another is
     * set. */
    struct ps_stream *first_current;

    /* Guards the fields below, up to wait_event.  Held for a few instructions,
     * never across a call of the backend. */
    pthread_mutex_t mutex;
    /* For ps_stream_find: the owned streams that have references, and the
     * threads' default streams. */
    LIST_HEAD(, ps_stream) streams;
    /* Streams whose last reference was dropped during a capture of the stream,
     * or while the stream was busy and in a partition.  They are released
     * later.  Changed under the mutex. */
    struct ps_stream *_Atomic deferred;
    /* The side stream, on which memory for captured work is allocated.
     * Created when it is first needed. */
    struct ps_stream *side;
    /* The pool: an array of native streams that no ps_stream owns, with the
     * array's size.  The count is also read without the mutex. */
    struct ps_pooled_stream *pooled_streams;
    atomic_int pooled_stream_count;
    int pooled_stream_room;
    unsigned pool_turn; /* the next place to check */
    /* The number of multiprocessors in partitions. */
    int partitioned;
    /* Pools of idle native events, indexed by the events' flags. */
    struct ps_idle_events idle_events[PS_EVENT_POOLS];
    struct ps_memory_stats memory;

    /* One more idle native event without flags, or 0.  It is taken and given
     * back without the mutex, which makes ps_stream_wait_stream fast. */
    _Atomic ps_handle wait_event;

    /* Notifications of all the device's work: a ring, the latest number,
     * whether a thread is waiting for the device, and a failure that has not
     * been reported.  The mutex of notify.c guards them. */
    struct ps_notification *notifications;
    uint64_t notified;
    bool notifying;
    ps_status unreported;
};

struct ps_runtime {
    /* `registered` is the table of the backend.  `backend` is the table that
     * core calls: an observer's table while one is installed, else the
     * same. */
    const struct ps_backend *registered;
    const struct ps_backend *_Atomic backend;
    const struct ps_faults *faults;
    /* The runtime's position in the order of registration. */
    int index;
    /* 1 + the fork generation in which a device was first used; 0 if none was
     * used. */
    atomic_uint used;
    /* 0 until a device is used, then constant.  An emulation is the exception:
     * it has memory for `room` devices and shows fewer. */
    atomic_int device_count;
    struct ps_device *devices;
    int room;
    /* Whether another runtime has taken the place of this one for its device
     * type. */
    atomic_bool hidden;
    /* Whether this is an emulation (see emulation.h), and whether it is
     * entered. */
    bool emulation;
    atomic_bool entered;
    struct ps_memory_pool memory;
    /* The first failure of a clean-up that was not reported yet, or
     * PS_SUCCESS. */
    atomic_int failure;
};

/* Store the failure of a clean-up that the program did not ask for.  Such a
 * failure must not fail the operation that caused the clean-up, so a later
 * call reports it.  Only the first failure is stored, for
 * ps_runtime_take_failure. */
static inline void
ps_runtime_note_failure(struct ps_runtime *runtime, ps_status status)
{
    int none = PS_SUCCESS;
    if (status != PS_SUCCESS) {
        atomic_compare_exchange_strong(&runtime->failure, &none, status);
    }
}

/* Return and clear the stored failure, which the caller must report.
 * PS_SUCCESS if there is none. */
static inline ps_status
ps_runtime_take_failure(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->failure, memory_order_relaxed) ==
                   PS_SUCCESS
               ? PS_SUCCESS
               : atomic_exchange(&runtime->failure, PS_SUCCESS);
}

/* Call a member that takes a device.  The arguments are those after
 * `device`. */
#define PS_CALL(device, member, ...)                                   \
    ({                                                                 \
        const struct ps_device *device_ = (device);                    \
        const struct ps_backend *backend_ = device_->runtime->backend; \
        backend_->member(backend_, device_->index, __VA_ARGS__);       \
    })

/* Register a backend.  faults is its fault injection, or NULL if it has none.
 * Both must stay valid
 * until the process ends.  Returns PS_ERROR_INVALID_VALUE, with the reason in
 * *refusal, if a table is incomplete, if the name or the device type is taken,
 * or if PS_MAX_RUNTIMES are registered.  Also PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_runtime_register(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_refusal *refusal);

/* If an observer is installed, mark this thread's calls from here on as the
 * library's own.  The observer must not count the order that such calls create
 * as the program's.  Returns whether ps_own_end must be called. */
static inline bool
ps_own_begin(struct ps_runtime *runtime)
{
    return runtime->backend != runtime->registered &&
           ps_thread_word(PS_THREAD_OWN) == NULL &&
           ps_thread_set_word(PS_THREAD_OWN, runtime) == PS_SUCCESS;
}

static inline void
ps_own_end(bool begun)
{
    if (begun) {
        ps_thread_set_word(PS_THREAD_OWN, NULL);
    }
}

/* Whether a thread's own default stream is its current stream until another is
 * set, on devices of backends that have such streams.  Set before a backend is
 * registered. */
extern bool ps_default_per_thread;

int ps_runtime_count(void);
struct ps_runtime *ps_runtime_at(int index);

/* Add the runtime to the registry, which sets its index.  Everything else in
 * it must be filled in.  Returns PS_ERROR_OUT_OF_MEMORY if there are
 * PS_MAX_RUNTIMES already. */
ps_status ps_runtime_add(struct ps_runtime *runtime);

/* Find the runtime of the device type that is not hidden; NULL if there is
 * none. */
struct ps_runtime *ps_runtime_find(int device_type);

/* Get the number of devices.  If there are none, the status says why.  Calls
 * the backend each time until a device is used.  Initializes nothing. */
ps_status ps_runtime_devices(struct ps_runtime *runtime, int *count);

/* Whether this process, not only its parent, has used a device. */
static inline bool
ps_runtime_is_used(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->used, memory_order_acquire) ==
           ps_generation() + 1;
}

/* Call this before a device is used: it prepares the devices and marks the
 * runtime as used by this process.  Returns PS_ERROR_FOREIGN in a forked
 * child, if the parent used the runtime and the backend is not
 * PS_BACKEND_FORKABLE. */
ps_status ps_runtime_use(struct ps_runtime *runtime);

/* Initialize the device.  `generation` is the fork generation of its default
 * stream. */
void ps_device_init(struct ps_device *device, struct ps_runtime *runtime,
                    int index, unsigned generation);

/* Get a device by its index, after ps_runtime_use.  Returns
 * PS_ERROR_INVALID_DEVICE if the index is out of range. */
ps_status ps_runtime_device(struct ps_runtime *runtime, int index,
                            struct ps_device **device);

/* Get the calling thread's current device, after ps_runtime_use. */
ps_status ps_runtime_current_device(struct ps_runtime *runtime,
                                    struct ps_device **device);

/* Called in a forked child, where no other thread is registering a backend. */
void ps_runtime_reset_in_child(void);

/* Make the device with index `previous` current again after a switch; see
 * device_restore. */
ps_status ps_runtime_restore_device(struct ps_runtime *runtime, int previous);

#endif
