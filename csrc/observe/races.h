/* The race detector: it tracks which operation happened before which, and
 * finds accesses to memory that nothing orders.
 *
 * Each stream is an actor, and its operations are numbered.  The host is an
 * actor, too: calls of the library count as ordered in the order in which they
 * are made, on all threads.  A clock is a vector clock.  For each actor it has
 * a number, and all of the actor's operations up to that number have happened
 * before some point.  An operation's clock covers the host's clock at the time
 * of queueing, and all moments for which its stream waited.
 *
 * For each range of bytes, the latest read and the latest write of each actor
 * are kept.  A new access races with a kept one if the two conflict and the
 * new access's clock does not cover the kept one. */
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
    struct ps_description *next; /* the next one to be forgotten */
};

/* A point in a stream's work, together with everything that happened before
 * it. */
struct ps_moment;

struct ps_access {
    uintptr_t begin;
    size_t nbytes;
    bool writes;
    /* The program declared the access with races.declare().  The owner of the
     * memory does not know of it. */
    bool declared;
};

struct ps_operation {
    struct ps_description *description;
    const struct ps_actor_name *stream; /* NULL: an access of the host */
    bool writes;
};

/* Two operations that race, in the order of queueing.  The first is a
 * stream's. */
struct ps_race {
    struct ps_operation first, second;
    uintptr_t begin; /* the range that both operations access */
    size_t nbytes;
    bool freed; /* the memory was freed before the first was done */
    /* The first operation, for ps_moment_is_after.  `number` is 0 if the
     * second operation was queued already when the race was found, because
     * events may have been recorded since. */
    int actor;
    uint64_t number;
};

/* Functions that the detector calls, with none of its locks held. */
struct ps_races_hooks {
    /* Returns a description of the caller's operation, with one reference;
     * NULL if there is no memory.  inside: whether a callable makes the access
     * itself, on this thread and in its stream's order. */
    struct ps_description *(*describe)(const char *operation, bool inside);
    void (*forget)(struct ps_description *description);
    /* Called for a race.  If the result is not PS_SUCCESS, the second
     * operation is not queued. */
    ps_status (*found)(const struct ps_race *race);
    /* Returns whether the current call is one of the library's own calls.  A
     * program may not rely on the order that such a call creates. */
    bool (*is_internal)(void);
    /* Returns whether the calling thread runs a callable.  *moment becomes the
     * callable's moment; NULL if the detector was off when it was queued. */
    bool (*callable)(struct ps_moment **moment);
    /* Returns whether the current call also waits for the operation that it
     * queues.  Within a callable, such an operation counts as an access of the
     * callable itself. */
    bool (*is_awaited)(void);
    /* Called on the thread that is about to queue a launch of a graph on the
     * stream. */
    void (*launching)(const struct ps_actor_name *stream);
    /* Called when a call of the program waits.  useful: whether the wait
     * orders anything that was not ordered before. */
    void (*waited)(const char *operation, bool useful);
};

/* ps_races_start starts the detector with empty clocks.  The hooks must stay
 * valid until the process ends.  ps_races_stop stops it and frees its
 * memory. */
void ps_races_start(const struct ps_races_hooks *hooks);
void ps_races_stop(void);
bool ps_races_are_on(void);

/* The functions below report events to the detector.  Each comment describes
 * the event, or what the function returns. */

/* An operation is about to be queued on the stream or, if stream is NULL, the
 * host is about to access memory.  Returns the status of the hook `found`, or
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status
ps_races_operation(const struct ps_actor_name *stream, const char *operation,
                   const struct ps_access *accesses, int count);

/* The stream was made to wait for the moment, if that is not NULL. */
void ps_races_wait(const struct ps_actor_name *stream,
                   const struct ps_moment *moment);

/* A stream was made to wait for the moment.  Core makes this call even if it
 * knows that the moment has been reached.  Then it calls no backend, so this
 * is the only report of the wait; and the host knows the moment, too. */
void ps_races_waited(const struct ps_moment *moment);

/* The host is about to wait for the moment, or for the stream.  Core may only
 * query the stream. */
void ps_races_synchronize(const struct ps_moment *moment);
void ps_races_synchronize_stream(const struct ps_actor_name *stream);

/* The host knows that the moment has been reached. */
void ps_races_reached(const struct ps_moment *moment);

/* Return the moment after the present work of the stream, or of all streams of
 * the device.  NULL if the host knows that moment already, or if out of
 * memory. */
struct ps_moment *ps_races_moment(const struct ps_actor_name *stream);
struct ps_moment *ps_races_device_moment(int runtime, int device);
void ps_moment_unref(struct ps_moment *moment);

/* Returns whether the moment, which may be NULL, is known to come after the
 * actor's operation with this number. */
bool
ps_moment_is_after(const struct ps_moment *moment, int actor, uint64_t number);

/* Call ps_races_callable before a callable is queued on the stream.  It
 * returns the moment at which the callable will run.  Call
 * ps_races_callable_ended when it has ended, or if it was not queued after
 * all. */
struct ps_moment *ps_races_callable(const struct ps_actor_name *stream);
void ps_races_callable_ended(struct ps_moment *moment);

/* ps_races_record: the event was recorded on the stream.  ps_races_recorded
 * returns the moment of its latest record.  That moment is unknown for an
 * event that other processes may record, or that was recorded before the
 * detector started: then it comes after everything that was queued so far. */
void ps_races_record(ps_handle event, const struct ps_actor_name *stream);
struct ps_moment *ps_races_recorded(int runtime, ps_handle event);
void ps_races_share_event(int runtime, ps_handle event);
void ps_races_forget_event(int runtime, ps_handle event);

/* A stream was created or destroyed, so an earlier stream with this handle is
 * gone. */
void ps_races_forget_stream(const struct ps_actor_name *stream);

/* Between these two calls, the work of the stream, and of streams that join
 * the capture, is captured into the graph.  `graph` is 0 if the capture
 * failed.  Each launch of an executable of the graph makes the captured
 * accesses.  They come after those of the executable's earlier launches. */
void ps_races_capture_begin(const struct ps_actor_name *stream);
void ps_races_capture_end(const struct ps_actor_name *stream, ps_handle graph);
/* An external event's record or wait was captured.  Each launch as a whole
 * records the event, or waits for it. */
void ps_races_capture_event(const struct ps_actor_name *stream,
                            ps_handle event, bool records);
/* The graph's work was captured on the stream, with its accesses, records and
 * waits. */
ps_status
ps_races_capture_graph(const struct ps_actor_name *stream, ps_handle graph);
/* ps_races_instantiate: the executable was made from the graph, or updated to
 * do its work. */
void ps_races_instantiate(int runtime, ps_handle graph, ps_handle executable);
void ps_races_forget_graph(int runtime, ps_handle graph);
void ps_races_forget_executable(int runtime, ps_handle executable);
ps_status
ps_races_launch(const struct ps_actor_name *stream, ps_handle executable);

/* The memory's life ends when the present work of these streams is done. */
void ps_races_free(const struct ps_actor_name *streams, size_t count,
                   uintptr_t begin, size_t nbytes);

/* The memory begins a new life, which is ordered after the end of its previous
 * one. */
void ps_races_forget_memory(uintptr_t begin, size_t nbytes);

#endif
