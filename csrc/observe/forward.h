/* Tables that observe calls.  Such a table has the type struct ps_backend, and
 * core calls it in place of the backend's own table.  Its members forward each
 * call to the table that it observes.  An observer, which is the race detector
 * or the timeline, replaces some of these members with functions of its
 * own. */
#ifndef PYSTREAMS_OBSERVE_FORWARD_H
#define PYSTREAMS_OBSERVE_FORWARD_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

/* Identifies a stream by the index of its runtime, the index of its device,
 * and its handle.  For a thread's default stream, `stream` is not the handle,
 * but the name that thread_stream returns. */
struct ps_actor_name {
    int runtime;
    int device;
    ps_handle stream;
    /* Whether the stream is known to serialize with the device's default
     * stream. */
    bool blocking;
};

/* Returns a number that identifies the stream's runtime and device. */
static inline uint64_t
ps_actor_place(const struct ps_actor_name *name)
{
    return (uint64_t)name->runtime << 32 | (uint32_t)name->device;
}

/* A table that observes the calls to the table `inner`.  It is never freed,
 * because a call may still be using it when observation is switched off. */
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

/* Returns the stream that the handle means if it is passed to a call on this
 * thread. */
struct ps_actor_name
ps_actor_named(const struct ps_backend *backend, int device, ps_handle stream);

/* The reverse of ps_actor_named: get the handle by which this thread can use a
 * stream.  `stream` names it as the member ps_actor_name.stream does.  Returns
 * false if the stream is another thread's default stream. */
bool ps_actor_handle(const struct ps_backend *backend, int device,
                     ps_handle stream, ps_handle *handle);

/* Like ps_actor_named, but for a stream on which work will be queued.  Also
 * asks the backend whether the stream is blocking, and sets `blocking`. */
struct ps_actor_name ps_actor_in_order(const struct ps_backend *backend,
                                       int device, ps_handle stream);

enum { PS_MOST_RUNTIMES = 8 };

/* Returns a runtime's table from observers[], which has the tables of one kind
 * of observer.  The array is indexed by the runtime's index, and by whether
 * core calls the table with the GIL released (see PS_BACKEND_SHARED).  The
 * first call creates a table that forwards all members to `inner`, and then
 * calls `replace`, which replaces some of the members.  Members that `inner`
 * lacks are NULL.  A later call only makes the table observe that call's
 * `inner`. */
const struct ps_backend *
ps_observer_table(struct ps_observer observers[PS_MOST_RUNTIMES][2],
                  int runtime, const struct ps_backend *inner,
                  void (*replace)(struct ps_backend *table));

/* Call the member of the observed table.  The macro's last arguments are the
 * member's arguments after `backend`. */
#define PS_PASS(backend, member, ...)                           \
    ({                                                          \
        const struct ps_backend *inner_ = ps_observed(backend); \
        inner_->member(inner_, __VA_ARGS__);                    \
    })

/* Replace a member of the table with the function of the same name, unless the
 * member is NULL. */
#define PS_REPLACE(table, member)      \
    do {                               \
        if ((table)->member != NULL) { \
            (table)->member = member;  \
        }                              \
    } while (0)

#endif
