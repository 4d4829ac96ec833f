/* Runtimes: a runtime is a registered backend together with core's state for
 * each of its devices.  A runtime and its devices live until the process ends,
 * so pointers to them need no reference count. */
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
    /* If a device's pool has this many native streams (see stream.h) when
     * another one is created or given back, idle ones in the pool are
     * destroyed.  The number is small, because a native stream takes device
     * memory.  Busy native streams stay in the pool even beyond this
     * number. */
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
    bool unused; /* whether it is known to be idle: no work was queued on it
                    since it was last found idle */
};

struct ps_idle_events {
    int count;
    ps_handle handles[PS_IDLE_EVENTS];
};

struct ps_device {
    struct ps_runtime *runtime;
    int index;
    /* The device's default stream, with handle 0.  Never freed. */
    struct ps_stream default_stream;
    /* The stream of kind PS_STREAM_CALLERS: it stands for the calling thread's
     * own default stream. */
    struct ps_stream callers_stream;
    /* The device's current stream until another one is set: default_stream or
     * callers_stream. */
    struct ps_stream *first_current;

    /* Guards the fields from here to `memory`.  Held for a few instructions,
     * never across a call to the backend. */
    pthread_mutex_t mutex;
    /* The streams that ps_stream_find searches: owned streams that have
     * references, and the threads' default streams. */
    LIST_HEAD(, ps_stream) streams;
    /* A list of the streams whose last reference was dropped, but which cannot
     * be released yet: each is being captured, or is busy and in a partition.
     * The list is changed under the mutex. */
    struct ps_stream *_Atomic deferred;
    /* The side stream.  Core allocates memory for captured work on this
     * stream, since the allocation itself must not be captured.  Core also
     * uses it to free memory that was allocated on the default streams of
     * threads that have since ended.  NULL until it is first needed. */
    struct ps_stream *side;
    /* The pool: an array of native streams that no ps_stream owns.
     * pooled_stream_count of its pooled_stream_room entries are used.  The
     * count is also read without the mutex. */
    struct ps_pooled_stream *pooled_streams;
    atomic_int pooled_stream_count;
    int pooled_stream_room;
    unsigned pool_turn; /* the index of the pooled stream to check next */
    /* The number of the device's multiprocessors that are in partitions. */
    int partitioned;
    /* Pools of native events that no ps_event owns, indexed by the flags of
     * their events. */
    struct ps_idle_events idle_events[PS_EVENT_POOLS];
    struct ps_memory_stats memory;

    /* One more unused native event, without flags; 0 if there is none.  It is
     * taken and given back without the mutex, which makes
     * ps_stream_wait_stream fast. */
    _Atomic ps_handle wait_event;

    /* The state of ps_device_notify: a ring of the pending notifications, the
     * number of the latest one, whether a thread is waiting for the device,
     * and a failure that no notification has reported.  The mutex of notify.c
     * guards these fields. */
    struct ps_notification *notifications;
    uint64_t notified;
    bool notifying;
    ps_status unreported;
};

struct ps_runtime {
    /* `registered` is the backend's own table.  `backend` is the table that
     * core calls.  The two are the same, unless an observer (the race detector
     * or the timeline) is installed: then `backend` is the observer's
     * table. */
    const struct ps_backend *registered;
    const struct ps_backend *_Atomic backend;
    const struct ps_faults *faults;
    /* The runtime's position in the order of registration. */
    int index;
    /* 1 + the fork generation of the process that was the first to use a
     * device.  0 if no process has used one.  It becomes 0 again when an
     * emulation is reused, and in a forked child that may use the devices. */
    atomic_uint used;
    /* The number of devices.  It is 0 until a device is used, and constant
     * afterwards.  In an emulation it is the number of devices that programs
     * see, and ps_emulation_show sets it.  `room` is the number of elements of
     * `devices`. */
    atomic_int device_count;
    struct ps_device *devices;
    int room;
    /* Whether ps_runtime_find skips this runtime, because another runtime with
     * the same device type replaces it. */
    atomic_bool hidden;
    /* Whether this is an emulation (see emulation.h), and whether it is
     * entered. */
    bool emulation;
    atomic_bool entered;
    struct ps_memory_pool memory;
    /* The first clean-up failure that has not been reported to the program
     * yet, or PS_SUCCESS. */
    atomic_int failure;
};

/* Store the failure of a clean-up that the program did not ask for.  The
 * operation that caused the clean-up must not fail because of it.  So the
 * failure is stored, and a later call to ps_runtime_take_failure returns it.
 * Of several failures only the first is stored. */
static inline void
ps_runtime_note_failure(struct ps_runtime *runtime, ps_status status)
{
    int none = PS_SUCCESS;
    if (status != PS_SUCCESS) {
        atomic_compare_exchange_strong(&runtime->failure, &none, status);
    }
}

/* Return and clear the stored failure, which the caller must report.  Returns
 * PS_SUCCESS if there is none. */
static inline ps_status
ps_runtime_take_failure(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->failure, memory_order_relaxed) ==
                   PS_SUCCESS
               ? PS_SUCCESS
               : atomic_exchange(&runtime->failure, PS_SUCCESS);
}

/* Call a member of the device's backend.  The member must have the parameter
 * `device`.  The macro's last arguments are the member's arguments after
 * `device`. */
#define PS_CALL(device, member, ...)                                   \
    ({                                                                 \
        const struct ps_device *device_ = (device);                    \
        const struct ps_backend *backend_ = device_->runtime->backend; \
        backend_->member(backend_, device_->index, __VA_ARGS__);       \
    })

/* Register a backend.  `faults` is the backend's fault injection, or NULL if
 * it has none.  Both tables must stay valid until the process ends.  Returns
 * PS_ERROR_INVALID_VALUE, with the reason in *refusal, if a table is
 * incomplete, if the name or the device type is taken, or if PS_MAX_RUNTIMES
 * runtimes are registered already.  Returns PS_ERROR_OUT_OF_MEMORY if out of
 * memory. */
ps_status ps_runtime_register(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_refusal *refusal);

/* Mark the calling thread's calls to the backend as the library's own, until
 * ps_own_end is called with the result of this function.  The mark is for an
 * observer, so it is not set if none is installed.  The race detector ignores
 * the order that the library's own calls give to operations, because the
 * program cannot rely on it. */
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

/* Whether the initial current stream of a device is the calling thread's own
 * default stream, if the backend has such streams.  Otherwise it is the
 * device's default stream.  Set before a backend is registered. */
extern bool ps_default_per_thread;

int ps_runtime_count(void);
struct ps_runtime *ps_runtime_at(int index);

/* Add the runtime to the list of runtimes, and set its index.  Its other
 * fields must be filled in already.  Returns PS_ERROR_OUT_OF_MEMORY if there
 * are PS_MAX_RUNTIMES already. */
ps_status ps_runtime_add(struct ps_runtime *runtime);

/* Returns the runtime with this device type that is not hidden; NULL if there
 * is none. */
struct ps_runtime *ps_runtime_find(int device_type);

/* Get the number of devices.  Returns a failure if there are none.  Until a
 * device is used, each call asks the backend.  Initializes no device. */
ps_status ps_runtime_devices(struct ps_runtime *runtime, int *count);

/* Returns whether this process has used a device of the runtime.  A use by
 * a parent process does not count. */
static inline bool
ps_runtime_is_used(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->used, memory_order_acquire) ==
           ps_generation() + 1;
}

/* Returns whether an ancestor of this process has used a device of the
 * runtime, so that this process must not call the backend. */
static inline bool
ps_runtime_is_foreign(struct ps_runtime *runtime)
{
    unsigned used = atomic_load_explicit(&runtime->used, memory_order_acquire);
    return used != 0 && used != ps_generation() + 1;
}

/* Prepare the devices, and mark the runtime as used by this process.  Call
 * this before a device is used.  Returns PS_ERROR_FOREIGN in a forked child,
 * if the parent used the runtime and the backend does not have the flag
 * PS_BACKEND_FORKABLE. */
ps_status ps_runtime_use(struct ps_runtime *runtime);

/* Initialize the device.  `generation` is the fork generation of its default
 * stream. */
void ps_device_init(struct ps_device *device, struct ps_runtime *runtime,
                    int index, unsigned generation);

/* Get a device by its index.  Call ps_runtime_use before.  Returns
 * PS_ERROR_INVALID_DEVICE if the index is out of range. */
ps_status ps_runtime_device(struct ps_runtime *runtime, int index,
                            struct ps_device **device);

/* Get the calling thread's current device.  Call ps_runtime_use before. */
ps_status ps_runtime_current_device(struct ps_runtime *runtime,
                                    struct ps_device **device);

/* Called in a forked child: initializes the mutex of the list of runtimes
 * again, since a thread of the parent may have held it at the fork. */
void ps_runtime_reset_in_child(void);

/* Make the device with index `previous` current again, after another one was
 * current for a while; see device_restore in backend.h. */
ps_status ps_runtime_restore_device(struct ps_runtime *runtime, int previous);

#endif
