/* A table that forwards each member to another one.  The tables that observe
 * begin as such a table, and then replace members by their own. */
#ifndef PYSTREAMS_OBSERVE_FORWARD_H
#define PYSTREAMS_OBSERVE_FORWARD_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

/* A stream: the number of its runtime, its device and its handle, or the name
 * that thread_stream gives. */
struct ps_actor_name {
    int runtime;
    int device;
    ps_handle stream;
    /* It is known to serialize with the default stream, that of handle 0. */
    bool blocking;
};

/* A number for the stream's runtime and device. */
static inline uint64_t
ps_actor_place(const struct ps_actor_name *name)
{
    return (uint64_t)name->runtime << 32 | (uint32_t)name->device;
}

/* Kept for ever, as a call may still be on its way when it is switched off. */
struct ps_observer {
    struct ps_backend table;
    const struct ps_backend *_Atomic inner;
    int runtime;
};

static inline const struct ps_observer *
ps_observer_of(const struct ps_backend *backend)
{
    return (const struct ps_observer *)backend;
}

static inline const struct ps_backend *
ps_observed(const struct ps_backend *backend)
{
    return ps_observer_of(backend)->inner;
}

/* The stream of a call on this thread, by its handle. */
struct ps_actor_name
ps_actor_named(const struct ps_backend *backend, int device, ps_handle stream);

/* The handle of the stream on this thread; false if it is the default stream
 * of another one. */
bool ps_actor_handle(const struct ps_backend *backend, int device,
                     ps_handle stream, ps_handle *handle);

/* As ps_actor_named, of a stream that work is to be queued on: asks the
 * backend whether it is a blocking one. */
struct ps_actor_name ps_actor_in_order(const struct ps_backend *backend,
                                       int device, ps_handle stream);

enum { PS_MOST_RUNTIMES = 8 };

/* The table for a runtime, of one of these observers, by the runtime and by
 * whether it is called with the GIL released.  A new one forwards to `inner`,
 * whose missing members stay NULL, but for what `replace` changes. */
const struct ps_backend *
ps_observer_table(struct ps_observer observers[PS_MOST_RUNTIMES][2],
                  int runtime, const struct ps_backend *inner,
                  void (*replace)(struct ps_backend *table));

/* Call the member of the observed table with the arguments that follow the
 * backend. */
#define PS_PASS(backend, member, ...)                           \
    ({                                                          \
        const struct ps_backend *inner_ = ps_observed(backend); \
        inner_->member(inner_, __VA_ARGS__);                    \
    })

/* Replace a member, if there is one. */
#define PS_REPLACE(table, member)      \
    do {                               \
        if ((table)->member != NULL) { \
            (table)->member = member;  \
        }                              \
    } while (0)

#endif
