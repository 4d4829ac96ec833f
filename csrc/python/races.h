/* The race detector's Python side. */
#ifndef PYSTREAMS_PYTHON_RACES_H
#define PYSTREAMS_PYTHON_RACES_H

#include "../core/event.h"
#include "../core/memory.h"
#include "../core/stream.h"
#include "../core/thread.h"
#include "../core/trace.h"
#include "../observe/races.h"

#include "module.h"
#include "wait.h"

struct ps_actor_name actor_name(const struct ps_stream *stream);

/* Returns the member `stream` of the actor's name, for a handle that means a
 * stream of this thread.  PS_STREAM_PER_THREAD means a different stream on
 * each thread. */
ps_handle actor_stream(struct ps_device *device, ps_handle handle);

/* Returns a new reference to the race detector's moment at which the work that
 * has been queued so far is done.  For an event, that is the work before its
 * latest record.  May return NULL, and does so if the detector is off. */
struct ps_moment *moment_of_work(const struct work *work);

/* If core knows that the event is done, tell the race detector that this
 * thread now knows this, too.  Call this after a query or wait for which core
 * may not have called the backend: core may have learned from another thread's
 * wait that the event is done, and a callable on this thread knows nothing of
 * that wait. */
void event_reached(struct ps_event *event);

/* Returns the name (a str) of the stream that `actor` identifies; None if the
 * stream has no name or no longer exists; NULL with an exception. */
PyObject *name_of_actor(const struct ps_actor_name *actor);

/* Call _report() in races.py.  Takes over the reference to the arguments,
 * which are NULL if an exception was raised.  Returns PS_SUCCESS or
 * PS_RAISED. */
ps_status races_report(PyObject *arguments);

/* Free a description that core has no references to. */
void races_forget(struct ps_description *description);

/* Tell the race detector about a call that a trace point of core reports; see
 * trace_races. */
void races_trace(enum ps_trace_kind kind, struct ps_device *device,
                 ps_handle handle);

/* Report that a wait by the host raised an exception.  The program may rely on
 * the exception, so races.redundant() does not list such a wait. */
void wait_raised(void);

/* Between imply_begin and imply_end, the calling thread waits because the
 * library needs the wait, not because the program has asked for one.  For
 * example, copy_() waits for its copy.  races.redundant() does not list such
 * waits. */
static inline void
imply_begin(void)
{
    static const char implied;
    if (ps_races_are_on()) {
        ps_thread_set_word(PS_THREAD_IMPLIED, &implied);
    }
}

static inline void
imply_end(void)
{
    if (ps_thread_word(PS_THREAD_IMPLIED) != NULL) {
        ps_thread_set_word(PS_THREAD_IMPLIED, NULL);
    }
}

/* Report an access to memory by the host or, if this thread runs a callable,
 * by the callable.  On failure, returns -1 with an exception. */
int host_access(const char *operation, const void *data, Py_ssize_t nbytes,
                bool writes);

/* If the caller holds the last reference to the block, tell the race detector
 * that the block's memory is freed.  Call this before the reference is
 * dropped. */
void block_ends(struct ps_block *block);

/* Add notes about the memory that these arguments of a callable refer to, for
 * the schedule that is being explored (see schedules.h).  On failure, returns
 * -1 with MemoryError. */
int note_arguments(PyObject *const *args, Py_ssize_t count);

/* Report a callable with these arguments to the race detector.  Call this
 * before the callable is queued on the stream.  The callable is assumed to
 * read every Buffer and every view of a Buffer among its arguments, including
 * those in containers.  Stores in the Future the moment at which the callable
 * runs.  On failure, returns -1 with an exception. */
int expect_callable(struct ps_stream *stream, PyObject *const *args,
                    Py_ssize_t count, PyObject *future);

#endif
