/* Runtimes: the registered backends, and core's state of each device.  A
 * runtime and its devices live until the process ends, so pointers to them
 * need no count. */
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
    /* The number of idle native streams of a device that are kept for reuse;
     * few, because a stream holds device memory.  Busy ones are always kept.
     */
    PS_POOLED_STREAMS = 32,
    PS_IDLE_EVENTS = 1024,
    /* PS_EVENT_TIMING and PS_EVENT_BLOCKING: the flags of pooled events. */
    PS_EVENT_POOLS = 4,
};

struct ps_pooled_stream {
    ps_handle handle;
    int priority;
    bool blocking;
    bool unused; /* since it was last idle */
};

struct ps_idle_events {
    int count;
    ps_handle handles[PS_IDLE_EVENTS];
};

struct ps_device {
    struct ps_runtime *runtime;
    int index;
    /* Handle 0, never freed. */
    struct ps_stream default_stream;
    /* Stands for the default stream of the calling thread. */
    struct ps_stream callers_stream;
    /* The one of these two that is current until another is set. */
    struct ps_stream *first_current;

    /* Guards the fields below.  Held for a few instructions, never across a
     * call of the backend. */
    pthread_mutex_t mutex;
    /* The owned streams that have references, and the default streams of
     * threads, for ps_stream_find. */
    LIST_HEAD(, ps_stream) streams;
    /* Streams whose last reference was dropped while they were captured, or
     * busy in a partition; changed under the mutex. */
    struct ps_stream *_Atomic deferred;
    /* The side stream, on which memory is allocated for captured work; made
     * when it is first needed. */
    struct ps_stream *side;
    /* Native streams without an owner, in an array of this capacity.  Their
     * count is also read without the mutex. */
    struct ps_pooled_stream *pooled_streams;
    atomic_int pooled_stream_count;
    int pooled_stream_room;
    unsigned pool_turn; /* the next to be checked */
    /* The multiprocessors that are in partitions. */
    int partitioned;
    /* Idle native events by their flags. */
    struct ps_idle_events idle_events[PS_EVENT_POOLS];
    struct ps_memory_stats memory;

    /* An idle native event for ps_stream_wait_stream, or 0; taken and given
     * back without the mutex. */
    _Atomic ps_handle wait_event;

    /* Notifications of all the device's work: a ring, the latest number,
     * whether a thread waits, and a failure that no call has returned.  The
     * mutex of notify.c guards them. */
    struct ps_notification *notifications;
    uint64_t notified;
    bool notifying;
    ps_status unreported;
};

struct ps_runtime {
    /* The registered table, and the table that core calls: the observer's if
     * there is one. */
    const struct ps_backend *registered;
    const struct ps_backend *_Atomic backend;
    const struct ps_faults *faults;
    /* Position in the order of registration. */
    int index;
    /* The fork generation + 1 in which a device was first used; 0: never. */
    atomic_uint used;
    /* 0 until a device is used; then it stays, except in an emulation, which
     * has room for more devices than it shows. */
    atomic_int device_count;
    struct ps_device *devices;
    int room;
    /* Whether another runtime has the place of its device type. */
    atomic_bool hidden;
    /* Whether it is an emulation, see emulation.h, and is entered. */
    bool emulation;
    atomic_bool entered;
    struct ps_memory_pool memory;
    /* The first failure of a clean-up that was not reported, or PS_SUCCESS. */
    atomic_int failure;
};

/* Store the status of a clean-up for ps_runtime_take_failure if it is a
 * failure, unless one is stored already.  Called for a clean-up that the
 * program did not ask for: its failure must not fail the operation that caused
 * it. */
static inline void
ps_runtime_note_failure(struct ps_runtime *runtime, ps_status status)
{
    int none = PS_SUCCESS;
    if (status != PS_SUCCESS) {
        atomic_compare_exchange_strong(&runtime->failure, &none, status);
    }
}

/* Return and clear the failure that was stored, for the caller to report;
 * PS_SUCCESS if there is none. */
static inline ps_status
ps_runtime_take_failure(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->failure, memory_order_relaxed) ==
                   PS_SUCCESS
               ? PS_SUCCESS
               : atomic_exchange(&runtime->failure, PS_SUCCESS);
}

/* Call a member that takes a device, with the arguments that follow the
 * device. */
#define PS_CALL(device, member, ...)                                   \
    ({                                                                 \
        const struct ps_device *device_ = (device);                    \
        const struct ps_backend *backend_ = device_->runtime->backend; \
        backend_->member(backend_, device_->index, __VA_ARGS__);       \
    })

/* Register a table, and its fault injection or NULL, that live as long as the
 * process.  PS_ERROR_INVALID_VALUE, with the reason: one is incomplete, the
 * name or the device type is taken, or PS_MAX_RUNTIMES are registered.
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_runtime_register(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_refusal *refusal);

/* If there is an observer, mark this thread's calls from here on as the
 * library's own: a program may not rely on the order that they create.
 * Returns whether to call ps_own_end. */
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

/* Whether the default streams of threads are current until others are set, on
 * the devices of backends that have them; set before a backend is
 * registered. */
extern bool ps_default_per_thread;

int ps_runtime_count(void);
struct ps_runtime *ps_runtime_at(int index);

/* Add the runtime, complete but for its index; PS_ERROR_OUT_OF_MEMORY if
 * PS_MAX_RUNTIMES are there. */
ps_status ps_runtime_add(struct ps_runtime *runtime);

/* The runtime of the device type that is not hidden; NULL if there is none. */
struct ps_runtime *ps_runtime_find(int device_type);

/* The number of devices; the status is the reason if there are none.  Calls
 * the backend each time until a device is used.  Initializes nothing. */
ps_status ps_runtime_devices(struct ps_runtime *runtime, int *count);

/* Whether this process has used a device. */
static inline bool
ps_runtime_is_used(struct ps_runtime *runtime)
{
    return atomic_load_explicit(&runtime->used, memory_order_acquire) ==
           ps_generation() + 1;
}

/* Call before a device is used: prepares the devices and marks the runtime as
 * used by this process.  PS_ERROR_FOREIGN in a forked child of a
 * process that used a runtime that is not PS_BACKEND_FORKABLE. */
ps_status ps_runtime_use(struct ps_runtime *runtime);

/* Initialize a device without state; its default stream belongs to the fork
 * generation. */
void ps_device_init(struct ps_device *device, struct ps_runtime *runtime,
                    int index, unsigned generation);

/* After ps_runtime_use.  PS_ERROR_INVALID_DEVICE when out of range. */
ps_status ps_runtime_device(struct ps_runtime *runtime, int index,
                            struct ps_device **device);

/* The calling thread's current device, after ps_runtime_use. */
ps_status ps_runtime_current_device(struct ps_runtime *runtime,
                                    struct ps_device **device);

/* In the child of a fork: no thread is registering a backend. */
void ps_runtime_reset_in_child(void);

/* Make previous current again after a switch, see device_restore. */
ps_status ps_runtime_restore_device(struct ps_runtime *runtime, int previous);

#endif
