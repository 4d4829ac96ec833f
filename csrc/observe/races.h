/* The race detector: what happened before what, and the accesses to memory
 * that nothing orders.
 *
 * Streams are actors whose operations are numbered; so is the host, as calls
 * of the library count as ordered in the order in which they are made.  A
 * clock has, for each actor, the number up to which all of its operations have
 * happened before a point.  An operation's clock covers the host's clock at
 * the time of queueing, and the moments that its stream waited for.  For each
 * range of bytes, the latest read and the latest write of each actor are kept:
 * an access races with one of those if the two conflict and its clock does not
 * cover it. */
#ifndef PYSTREAMS_OBSERVE_RACES_H
#define PYSTREAMS_OBSERVE_RACES_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "forward.h"

/* The text of an operation in a report: made by the describe hook, which puts
 * this at its beginning. */
struct ps_description {
    atomic_uint refs;
    struct ps_description *next; /* of those to be forgotten */
};

/* A point of a stream's work, with all that happened before it. */
struct ps_moment;

struct ps_access {
    uintptr_t begin;
    size_t nbytes;
    bool writes;
    /* Declared work: the owner of the memory does not know of it. */
    bool declared;
};

struct ps_operation {
    struct ps_description *description;
    const struct ps_actor_name *stream; /* NULL: the host's */
    bool writes;
};

/* The two operations, in the order of queueing; the first is a stream's. */
struct ps_race {
    struct ps_operation first, second;
    uintptr_t begin; /* of the bytes that both access */
    size_t nbytes;
    bool freed; /* the memory, before the first was over */
    /* The first, for ps_moment_is_after; a number of 0 if the second was
     * queued already, and so events may have been recorded since. */
    int actor;
    uint64_t number;
};

/* Called with no lock of the detector's held. */
struct ps_races_hooks {
    /* A description of the caller's operation, with one reference; NULL if
     * there is no memory.  inside: a callable that the thread runs makes the
     * access itself, in its stream's order. */
    struct ps_description *(*describe)(const char *operation, bool inside);
    void (*forget)(struct ps_description *description);
    /* Other than PS_SUCCESS: the second operation is not to be queued. */
    ps_status (*found)(const struct ps_race *race);
    /* Whether the current call is one that the library makes internally: it
     * creates no order that a program may rely on. */
    bool (*is_internal)(void);
    /* Whether the calling thread runs a callable, and the moment of it: NULL
     * if the detector was off when it was queued. */
    bool (*callable)(struct ps_moment **moment);
    /* Whether the current call waits for the operation that it queues.  Within
     * a callable, the operation then is the callable's own access. */
    bool (*is_awaited)(void);
    /* A launch is about to be queued on the stream, on this thread. */
    void (*launching)(const struct ps_actor_name *stream);
    /* A call of the program waits; useful: whether that orders anything
     * new. */
    void (*waited)(const char *operation, bool useful);
};

/* Start with empty clocks; the hooks live as long as the process.
 * ps_races_stop ends the search and frees the memory. */
void ps_races_start(const struct ps_races_hooks *hooks);
void ps_races_stop(void);
bool ps_races_are_on(void);

/* The functions below report to the detector; each comment describes the event
 * that its function reports. */

/* An operation of a stream is to be queued, or the host accesses memory if
 * stream is NULL.  Statuses: that of found; PS_ERROR_OUT_OF_MEMORY. */
ps_status
ps_races_operation(const struct ps_actor_name *stream, const char *operation,
                   const struct ps_access *accesses, int count);

/* The stream waits for the moment, if that is not NULL. */
void ps_races_wait(const struct ps_actor_name *stream,
                   const struct ps_moment *moment);

/* A stream was made to wait for the moment.  If core knows that the moment has
 * been reached, it calls no backend; the host knows then, too, and only this
 * call counts the wait. */
void ps_races_waited(const struct ps_moment *moment);

/* The host is to synchronize with the moment, or with the stream, which may
 * have been queried for that. */
void ps_races_synchronize(const struct ps_moment *moment);
void ps_races_synchronize_stream(const struct ps_actor_name *stream);

/* The host knows that the moment has been reached. */
void ps_races_reached(const struct ps_moment *moment);

/* The moment after the present work of the stream, or of each stream of the
 * device; NULL if the host already knows it, or if out of memory. */
struct ps_moment *ps_races_moment(const struct ps_actor_name *stream);
struct ps_moment *ps_races_device_moment(int runtime, int device);
void ps_moment_unref(struct ps_moment *moment);

/* Whether the moment, which may be NULL, is known to come after the actor's
 * operation with the number. */
bool
ps_moment_is_after(const struct ps_moment *moment, int actor, uint64_t number);

/* Call before a callable is queued on the stream: the moment at which it will
 * run.  Call the second when it has ended, or was not queued after all. */
struct ps_moment *ps_races_callable(const struct ps_actor_name *stream);
void ps_races_callable_ended(struct ps_moment *moment);

/* The event was recorded on the stream; the moment of its latest record.  That
 * of an event which other processes may record, or which was not recorded
 * here, is unknown: it comes after all that was queued so far. */
void ps_races_record(ps_handle event, const struct ps_actor_name *stream);
struct ps_moment *ps_races_recorded(int runtime, ps_handle event);
void ps_races_share_event(int runtime, ps_handle event);
void ps_races_forget_event(int runtime, ps_handle event);

/* A stream begins or ends: its handle may have belonged to another stream. */
void ps_races_forget_stream(const struct ps_actor_name *stream);

/* Between these calls, the work of the stream and of the streams that join the
 * capture is captured into the graph, 0 if the capture failed.  Each launch of
 * an executable of the graph makes its accesses, after the executable's
 * earlier launches. */
void ps_races_capture_begin(const struct ps_actor_name *stream);
void ps_races_capture_end(const struct ps_actor_name *stream, ps_handle graph);
/* Each launch as a whole records the event, or waits for it. */
void ps_races_capture_event(const struct ps_actor_name *stream,
                            ps_handle event, bool records);
/* The graph's work is captured on the stream, with its accesses, records and
 * waits. */
ps_status
ps_races_capture_graph(const struct ps_actor_name *stream, ps_handle graph);
/* The executable was made from the graph, or updated to its work. */
void ps_races_instantiate(int runtime, ps_handle graph, ps_handle executable);
void ps_races_forget_graph(int runtime, ps_handle graph);
void ps_races_forget_executable(int runtime, ps_handle executable);
ps_status
ps_races_launch(const struct ps_actor_name *stream, ps_handle executable);

/* The memory's life ends, after the present work of these streams. */
void ps_races_free(const struct ps_actor_name *streams, size_t count,
                   uintptr_t begin, size_t nbytes);

/* The memory begins a new life, ordered after the end of its last one. */
void ps_races_forget_memory(uintptr_t begin, size_t nbytes);

#endif
