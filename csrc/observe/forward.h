/* A table that forwards each member to another one: what the tables that
 * observe begin with, which then replace members by their own. */
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

/* Have a new observer forward to the table that it stands before, whose
 * missing members stay NULL. */
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
