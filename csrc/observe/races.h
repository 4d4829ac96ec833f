/* The race detector.  It tracks which operations are ordered by streams,
 * events and waits, and finds conflicting accesses to memory that are not
 * ordered.
 *
 * Each stream is an actor, and its operations are numbered.  The host is one
 * more actor.  A callable that the program submits to a stream runs on a
 * thread, but counts as an operation of the stream.  All calls to the library
 * count as ordered, in the order in which they are made, even if different
 * threads make them.  A vector clock says what has happened before some point.
 * It has a number for each actor, and covers the actor's operations up to that
 * number: they happened before the point.  The clock of an operation covers
 * what the host's clock covered when the operation was queued, and everything
 * for which its stream has waited.
 *
 * For each range of bytes, the detector keeps the latest read and the latest
 * write by each actor.  A new access races with a kept access if at least one
 * of the two is a write, and the clock of the new access does not cover the
 * kept one. */
#ifndef PYSTREAMS_OBSERVE_RACES_H
#define PYSTREAMS_OBSERVE_RACES_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "forward.h"

/* The description of an operation, for a report.  The describe hook allocates
 * a larger struct that begins with this one. */
struct ps_description {
    atomic_uint refs;
    /* The next in a list of descriptions whose last reference was dropped. */
    struct ps_description *next;
};

/* A point in a stream's work, together with everything that happened before
 * it. */
struct ps_moment;

struct ps_access {
    uintptr_t begin;
    size_t nbytes;
    bool writes;
    /* Whether the program declared the access with races.declare().  The owner
     * of the memory does not know of such an access, so it may free the memory
     * before the access is done. */
    bool declared;
};

struct ps_operation {
    struct ps_description *description;
    /* The stream of the operation, or NULL for an access by the host. */
    const struct ps_actor_name *stream;
    bool writes;
};

/* Two operations that race, in the order in which they were queued.  The first
 * is an operation of a stream. */
struct ps_race {
    struct ps_operation first, second;
    /* The access that was being checked.  Each access of a call is reported at
     * most once. */
    const struct ps_access *access;
    uintptr_t begin; /* the range that both operations access */
    size_t nbytes;
    /* Whether the memory was freed before the first operation had
     * completed. */
    bool freed;
    /* Identifies the first operation, for ps_moment_is_after.  `number` is 0
     * if the race was found only after the second operation had been queued.
     * In that case, an event may have been recorded later than the second
     * operation, so the result of ps_moment_is_after would say nothing about
     * the race. */
    int actor;
    uint64_t number;
};

/* Functions that the detector calls, with none of its locks held. */
struct ps_races_hooks {
    /* Returns a new reference to a description of the operation that this
     * thread is about to queue or do; NULL if out of memory.  inside: whether
     * the operation counts as part of the callable that is running on this
     * thread. */
    struct ps_description *(*describe)(const char *operation, bool inside);
    void (*forget)(struct ps_description *description);
    /* Called when a race was found.  If this hook returns a failure,
     * ps_races_operation returns the same failure to its caller, which then
     * does not queue the operation. */
    ps_status (*found)(const struct ps_race *race);
    /* Returns whether this thread is calling the backend for the library's own
     * purposes.  A program must not rely on the order that such a call
     * creates. */
    bool (*is_internal)(void);
    /* Returns whether the calling thread is running a callable that was
     * submitted to a stream.  *moment becomes the callable's moment.  It
     * becomes NULL if no callable is running, or if the detector was off when
     * the callable was queued. */
    bool (*callable)(struct ps_moment **moment);
    /* Returns whether the call in progress queues an operation and also waits
     * for it.  Within a callable, the accesses of such an operation count as
     * accesses of the callable itself. */
    bool (*is_awaited)(void);
    /* Called on the thread that is about to queue a launch of a graph on the
     * stream. */
    void (*launching)(const struct ps_actor_name *stream);
    /* Called when the program waits.  useful: whether the wait orders
     * operations that were not ordered before. */
    void (*waited)(const char *operation, bool useful);
};

/* ps_races_start starts the detector, which knows of no earlier operations.
 * The hooks must stay valid until the process ends.  ps_races_stop stops the
 * detector and frees its memory. */
void ps_races_start(const struct ps_races_hooks *hooks);
void ps_races_stop(void);
bool ps_races_are_on(void);

/* The functions below tell the detector what happens in the program.  Each
 * comment says when to call the function, or what it returns. */

/* Call this before an operation is queued on the stream or, if stream is NULL,
 * before the host accesses memory.  Returns PS_SUCCESS, a failure of the hook
 * `found`, or PS_ERROR_OUT_OF_MEMORY. */
ps_status
ps_races_operation(const struct ps_actor_name *stream, const char *operation,
                   const struct ps_access *accesses, int count);

/* Call this when the stream was made to wait for the moment.  Does nothing if
 * the moment is NULL. */
void ps_races_wait(const struct ps_actor_name *stream,
                   const struct ps_moment *moment);

/* Call this when core's trace point reports that a stream was made to wait for
 * an event.  `moment` is the moment of the event's latest record.  If the host
 * knows that the moment has been reached, core may know it, too, and then
 * makes no call to the backend that would lead to ps_races_wait.  So in this
 * case, this function reports the wait to the hook `waited`.  Otherwise it
 * does nothing, because ps_races_wait reports the wait. */
void ps_races_waited(const struct ps_moment *moment);

/* Call ps_races_synchronize before the host waits for the moment.  Call
 * ps_races_synchronize_stream before the host waits for the stream, or when a
 * query has shown that the host need not wait.  Both functions report the wait
 * to the hook `waited`.  The wait counts as useful, unless the host already
 * knew that the moment had been reached, or that the stream's work was done.
 * queried: whether the wait began with a query.  If so, only what the host
 * knew before the query matters. */
void ps_races_synchronize(const struct ps_moment *moment);
void
ps_races_synchronize_stream(const struct ps_actor_name *stream, bool queried);

/* Call this when the host has learnt, by a query or a wait, that the moment
 * has been reached. */
void ps_races_reached(const struct ps_moment *moment);
/* Call this when a query or a wait has found the event's latest record to be
 * done, perhaps without a call to the backend.  Does nothing if the moment of
 * that record is not known. */
void ps_races_known_done(int runtime, ps_handle event);

/* ps_races_moment returns a new reference to the moment at which the work that
 * has been queued on the stream so far is done.  ps_races_device_moment does
 * so for the work on all streams of the device.  Both return NULL if out of
 * memory.  ps_races_moment also returns NULL if the host already knows that
 * the moment has been reached.  queried: whether the host is about to query
 * the stream. */
struct ps_moment *
ps_races_moment(const struct ps_actor_name *stream, bool queried);
struct ps_moment *ps_races_device_moment(int runtime, int device);
void ps_moment_unref(struct ps_moment *moment);

/* Returns whether the moment is known to come after the actor's operation with
 * this number.  Returns false if the moment is NULL. */
bool
ps_moment_is_after(const struct ps_moment *moment, int actor, uint64_t number);

/* Call ps_races_callable before a callable is queued on the stream.  It
 * returns the moment at which the callable will run.  Call
 * ps_races_callable_ended when the callable has ended, or if it could not be
 * queued. */
struct ps_moment *ps_races_callable(const struct ps_actor_name *stream);
void ps_races_callable_ended(struct ps_moment *moment);

/* Call ps_races_record when the event was recorded on the stream,
 * ps_races_share_event when other processes may record the event from now on,
 * and ps_races_forget_event when the event was destroyed.  ps_races_recorded
 * returns a new reference to the moment of the event's latest record.  That
 * moment is not known if other processes may record the event, if the event
 * has not been recorded since the detector started, or if its latest record
 * was internal.  In these cases, ps_races_recorded returns a moment that comes
 * after all work that has been queued so far. */
void ps_races_record(ps_handle event, const struct ps_actor_name *stream);
struct ps_moment *ps_races_recorded(int runtime, ps_handle event);
void ps_races_share_event(int runtime, ps_handle event);
void ps_races_forget_event(int runtime, ps_handle event);

/* Call this when a stream with this handle was created or destroyed.  Forgets
 * what is known about the handle, because that concerns a former stream. */
void ps_races_forget_stream(const struct ps_actor_name *stream);

/* Call this when the stream will probably not be used again, because it is the
 * default stream of a thread that has ended.  Forgets the stream once its
 * accesses are forgotten.  If the stream is used again before that, it is
 * still known.  Such use occurs if a thread of a C library gets a new Python
 * thread state for each of its callbacks. */
void ps_races_end_stream(const struct ps_actor_name *stream);

/* Call ps_races_capture_begin when a capture has begun on the stream, and
 * ps_races_capture_end when it has ended.  `graph` is the captured graph, or 0
 * if the capture failed.  During the capture, work that is queued on the
 * stream, and on streams that join the capture, is captured into the graph.
 * Each launch of an executable made from the graph makes the accesses of the
 * captured work.  A launch comes after earlier launches of the same
 * executable. */
void ps_races_capture_begin(const struct ps_actor_name *stream);
void ps_races_capture_end(const struct ps_actor_name *stream, ps_handle graph);
/* Call this when a record of an external event (if `records` is true) or a
 * wait for it (if `records` is false) was captured.  Each launch of the graph
 * then counts as if it recorded the event after all of its work, or waited for
 * the event before all of its work. */
void ps_races_capture_event(const struct ps_actor_name *stream,
                            ps_handle event, bool records);
/* Call this before the graph is captured on the stream as part of another
 * graph.  The capture in progress gets the graph's accesses, records and
 * waits.  Returns what ps_races_operation returns. */
ps_status
ps_races_capture_graph(const struct ps_actor_name *stream, ps_handle graph);
/* Call ps_races_instantiate when the executable was made from the graph, or
 * was updated to do the graph's work.  Call ps_races_launch before the
 * executable is launched on the stream; it returns what ps_races_operation
 * returns. */
void ps_races_instantiate(int runtime, ps_handle graph, ps_handle executable);
void ps_races_forget_graph(int runtime, ps_handle graph);
void ps_races_forget_executable(int runtime, ps_handle executable);
ps_status
ps_races_launch(const struct ps_actor_name *stream, ps_handle executable);

/* Call this before the memory is freed.  The memory may be reused when the
 * work that is queued on these streams now is done.  Marks the declared
 * accesses that may still be pending then; see ps_race.freed. */
void ps_races_free(const struct ps_actor_name *streams, size_t count,
                   uintptr_t begin, size_t nbytes);

/* Call this when the memory was allocated.  The new use of the memory is
 * ordered after the previous one, so the earlier accesses are forgotten,
 * except those that ps_races_free has marked. */
void ps_races_forget_memory(uintptr_t begin, size_t nbytes);

#endif
