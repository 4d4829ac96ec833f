/* A table that forwards each member to another table.  A table that observes
 * calls starts as such a table, and then replaces some members with its
 * own. */
#ifndef PYSTREAMS_OBSERVE_FORWARD_H
#define PYSTREAMS_OBSERVE_FORWARD_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

/* A stream, identified by the number of its runtime, its device and its
 * handle.  A thread's default stream has its name from thread_stream instead
 * of the handle. */
struct ps_actor_name {
    int runtime;
    int device;
    ps_handle stream;
    /* Whether it is known that the stream serializes with the default stream,
     * handle 0. */
    bool blocking;
};

/* A number that identifies the stream's runtime and device. */
static inline uint64_t
ps_actor_place(const struct ps_actor_name *name)
{
    return (uint64_t)name->runtime << 32 | (uint32_t)name->device;
}

/* An observing table.  It is never freed: a call may still be using it when
 * observing is switched off. */
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

/* Returns the name of the stream that a call on this thread means by its
 * handle. */
struct ps_actor_name
ps_actor_named(const struct ps_backend *backend, int device, ps_handle stream);

/* Get the handle by which this thread can use the stream.  Returns false if
 * the stream is another thread's default stream. */
bool ps_actor_handle(const struct ps_backend *backend, int device,
                     ps_handle stream, ps_handle *handle);

/* As ps_actor_named, for a stream on which work will be queued.  Also asks the
 * backend whether the stream is a blocking one. */
struct ps_actor_name ps_actor_in_order(const struct ps_backend *backend,
                                       int device, ps_handle stream);

enum { PS_MOST_RUNTIMES = 8 };

/* Returns the table for a runtime, from the array of one kind of observer.
 * The array is indexed by the runtime, and by whether the table is called with
 * the GIL released.  A new table forwards all members to `inner`, and
 * `replace` then changes some.  Members that `inner` lacks stay NULL. */
const struct ps_backend *
ps_observer_table(struct ps_observer observers[PS_MOST_RUNTIMES][2],
                  int runtime, const struct ps_backend *inner,
                  void (*replace)(struct ps_backend *table));

/* Call the member of the observed table.  The arguments are those after
 * `backend`. */
#define PS_PASS(backend, member, ...)                           \
    ({                                                          \
        const struct ps_backend *inner_ = ps_observed(backend); \
        inner_->member(inner_, __VA_ARGS__);                    \
    })

/* Replace a member of the table, unless it is NULL. */
#define PS_REPLACE(table, member)      \
    do {                               \
        if ((table)->member != NULL) { \
            (table)->member = member;  \
        }                              \
    } while (0)

#endif
