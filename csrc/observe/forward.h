/* A table that forwards each member to another one.  The tables that observe
 * begin as such a table, and then replace members by their own. */
#ifndef PYSTREAMS_OBSERVE_FORWARD_H
#define PYSTREAMS_OBSERVE_FORWARD_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

/* A stream: the number of its runtime, its device and its handle. */
struct ps_actor_name {
    int runtime;
    int device;
    ps_handle stream;
    /* It is known to serialize with the default stream, that of handle 0. */
    bool blocking;
};

/* Kept for ever: a call may still be in progress when the observer is switched
 * off. */
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

static inline struct ps_actor_name
ps_actor_named(const struct ps_backend *backend, int device, ps_handle stream)
{
    return (struct ps_actor_name){ps_observer_of(backend)->runtime, device,
                                  stream};
}

/* Likewise, of a stream that work is to be queued on: asks the backend whether
 * it is a blocking one. */
struct ps_actor_name ps_actor_in_order(const struct ps_backend *backend,
                                       int device, ps_handle stream);

/* Make a new observer forward to the table `inner`; members that this lacks
 * stay NULL. */
void ps_forward(struct ps_observer *observer, int runtime,
                const struct ps_backend *inner);

/* Replace a member, if there is one. */
#define PS_REPLACE(observer, member)            \
    do {                                        \
        if ((observer)->table.member != NULL) { \
            (observer)->table.member = member;  \
        }                                       \
    } while (0)

#endif
