/* The race detector: it tracks which operations are ordered by streams, events
 * and waits, and finds conflicting accesses to memory that nothing orders.
 *
 * Each stream is an actor, and its operations are numbered.  The host is one
 * more actor: all calls of the library count as ordered, in the order in which
 * they are made, whatever threads make them.  A vector clock says what has
 * happened before some point: for each actor it has a number, and the actor's
 * operations up to that number have happened before.  The clock of an
 * operation covers what the host's clock covered when the operation was
 * queued, and all moments for which its stream has waited.
 *
 * For each range of bytes, the latest read and the latest write of each actor
 * are kept.  A new access races with a kept one if at least one of the two
 * writes, and the clock of the new access does not cover the kept one. */
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
    /* Links descriptions whose last reference was dropped. */
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
     * of the memory does not know of such an access. */
    bool declared;
};

struct ps_operation {
    struct ps_description *description;
    /* NULL if this is an access of the host. */
    const struct ps_actor_name *stream;
    bool writes;
};

/* Two operations that race, in the order in which they were queued.  The first
 * is an operation of a stream. */
struct ps_race {
    struct ps_operation first, second;
    uintptr_t begin; /* the range that both operations access */
    size_t nbytes;
    bool freed; /* whether the memory was freed before the first was done */
    /* Identifies the first operation, for ps_moment_is_after.  `number` is 0
     * if the race was found after the second operation had been queued.
     * Events may have been recorded since then, so the answer would say
     * nothing about the race. */
    int actor;
    uint64_t number;
};

/* Functions that the detector calls, with none of its locks held. */
struct ps_races_hooks {
    /* Returns a description of the operation that the program is calling, with
     * one reference; NULL if out of memory.  inside: whether the operation
     * counts as a part of the callable that runs on this thread, not as one
     * that is queued on a stream. */
    struct ps_description *(*describe)(const char *operation, bool inside);
    void (*forget)(struct ps_description *description);
    /* Called when a race was found.  If it returns a failure, the second
     * operation is not queued. */
    ps_status (*found)(const struct ps_race *race);
    /* Returns whether the call of the backend in progress is one of the
     * library's own.  A program may not rely on the order that such a call
     * creates. */
    bool (*is_internal)(void);
    /* Returns whether the calling thread runs a callable that was submitted to
     * a stream.  *moment becomes the callable's moment; NULL if the detector
     * was off when the callable was queued. */
    bool (*callable)(struct ps_moment **moment);
    /* Returns whether the call in progress queues an operation and also waits
     * for it.  Within a callable, such an operation counts as an access of the
     * callable itself. */
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

/* The functions below report to the detector what happens.  Each comment says
 * when to call the function, or what it returns. */

/* Call this before an operation is queued on the stream or, if stream is NULL,
 * before the host accesses memory.  Returns PS_SUCCESS, a failure of the hook
 * `found`, or PS_ERROR_OUT_OF_MEMORY. */
ps_status
ps_races_operation(const struct ps_actor_name *stream, const char *operation,
                   const struct ps_access *accesses, int count);

/* The stream was made to wait for the moment.  Does nothing if the moment is
 * NULL. */
void ps_races_wait(const struct ps_actor_name *stream,
                   const struct ps_moment *moment);

/* A stream was made to wait for the moment, as core's trace point reports.  If
 * core knows that the event is done, it calls no backend, and this is the only
 * report of the wait.  In that case the host also knows that the moment has
 * been reached.  Otherwise ps_races_wait reports the wait, and this does
 * nothing. */
void ps_races_waited(const struct ps_moment *moment);

/* ps_races_synchronize: the host is about to wait for the moment.
 * ps_races_synchronize_stream: the host is about to wait for the stream, or
 * has found by a query that it need not wait.  This wait counts as useful,
 * unless the host knew already that the stream's work was done.  queried:
 * whether the wait has begun with a query, so that the host's knowledge before
 * that query counts. */
void ps_races_synchronize(const struct ps_moment *moment);
void
ps_races_synchronize_stream(const struct ps_actor_name *stream, bool queried);

/* The host has learnt, by a query or a wait, that the moment has been
 * reached. */
void ps_races_reached(const struct ps_moment *moment);

/* Return the moment at which the present work of the stream, or of all streams
 * of the device, is done; NULL if out of memory.  ps_races_moment also returns
 * NULL if the host knows already that the moment has been reached.  queried:
 * whether the host is about to query the stream. */
struct ps_moment *
ps_races_moment(const struct ps_actor_name *stream, bool queried);
struct ps_moment *ps_races_device_moment(int runtime, int device);
void ps_moment_unref(struct ps_moment *moment);

/* Returns whether the moment is known to come after the actor's operation with
 * this number; false if the moment is NULL. */
bool
ps_moment_is_after(const struct ps_moment *moment, int actor, uint64_t number);

/* Call ps_races_callable before a callable is queued on the stream.  It
 * returns the moment at which the callable will run.  Call
 * ps_races_callable_ended when the callable has ended, or if it could not be
 * queued. */
struct ps_moment *ps_races_callable(const struct ps_actor_name *stream);
void ps_races_callable_ended(struct ps_moment *moment);

/* ps_races_record: the event was recorded on the stream.  ps_races_recorded
 * returns the moment of the event's latest record.  If other processes may
 * record the event (ps_races_share_event), or if it was last recorded before
 * the detector started, that moment is not known; then the result is a moment
 * after everything that was queued so far.  ps_races_forget_event: the event
 * was destroyed. */
void ps_races_record(ps_handle event, const struct ps_actor_name *stream);
struct ps_moment *ps_races_recorded(int runtime, ps_handle event);
void ps_races_share_event(int runtime, ps_handle event);
void ps_races_forget_event(int runtime, ps_handle event);

/* A stream with this handle was created or destroyed, so forget what is known
 * of the handle: it concerns a former stream. */
void ps_races_forget_stream(const struct ps_actor_name *stream);

/* Between these two calls, the work of the stream, and of streams that join
 * the capture, is captured into the graph.  `graph` is 0 if the capture
 * failed.  Each launch of an executable of the graph makes the accesses of the
 * captured work.  They come after those of earlier launches of the same
 * executable. */
void ps_races_capture_begin(const struct ps_actor_name *stream);
void ps_races_capture_end(const struct ps_actor_name *stream, ps_handle graph);
/* A record of an external event was captured if `records` is true, else a wait
 * for it.  It counts as a record or a wait of each launch as a whole. */
void ps_races_capture_event(const struct ps_actor_name *stream,
                            ps_handle event, bool records);
/* The work of the graph was captured on the stream, as part of another
 * capture.  That capture gets the graph's accesses, records and waits. */
ps_status
ps_races_capture_graph(const struct ps_actor_name *stream, ps_handle graph);
/* ps_races_instantiate: the executable was made from the graph, or was updated
 * to do the graph's work. */
void ps_races_instantiate(int runtime, ps_handle graph, ps_handle executable);
void ps_races_forget_graph(int runtime, ps_handle graph);
void ps_races_forget_executable(int runtime, ps_handle executable);
ps_status
ps_races_launch(const struct ps_actor_name *stream, ps_handle executable);

/* The memory was freed: it may be used again when the present work of these
 * streams is done. */
void ps_races_free(const struct ps_actor_name *streams, size_t count,
                   uintptr_t begin, size_t nbytes);

/* The memory was allocated again.  Its new use is ordered after the previous
 * one, so the earlier accesses are forgotten. */
void ps_races_forget_memory(uintptr_t begin, size_t nbytes);

#endif
