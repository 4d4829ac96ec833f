/* The Futures that Stream.submit returns. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "../observe/races.h"

#include "module.h"

PyObject *future_new(void);

/* Mark the Future as running.  Returns false if the Future was cancelled; its
 * callable must then not be called. */
bool future_start(PyObject *future);

/* future_set_moment stores the race detector's moment at which the callable
 * runs in its stream.  The moment may be NULL.  The Future takes over the
 * reference to it.  future_moment returns the moment, or NULL. */
void future_set_moment(PyObject *future, struct ps_moment *moment);
struct ps_moment *future_moment(PyObject *future);

/* The timeline links each wait for a Future to the slice of the Future's
 * callable.  future_set_source stores the value for ps_slice.source in the
 * slices of such waits.  The value is 0 if the callable has no slice. */
void future_set_source(PyObject *future, uint64_t source);
uint64_t future_source(PyObject *future);

/* future_set_place stores the place in the program from which the callable is
 * being submitted.  future_place returns that place, as place_of does. */
void future_set_place(PyObject *future);
PyObject *future_place(PyObject *future);

/* future_settle stores the outcome in a running Future: the result or, if
 * `failed` is true, the exception.  lost: whether the exception is logged if
 * no code ever retrieves it.  The caller must call future_finish later, which
 * wakes the waiters and calls the callbacks. */
void
future_settle(PyObject *future, PyObject *outcome, bool failed, bool lost);
void future_finish(PyObject *future);

/* Cancel a Future, unless its callable has started. */
void future_cancel(PyObject *future);

/* A thread that waits for a Future first spins.  Once the Future is settled,
 * this call ends the spinning.  The thread that has settled the Future makes
 * this call when it has released the GIL or is about to run its next
 * callable. */
void future_mark_settled(void);

/* While a schedule is explored (see schedules.h), a thread may wait for a
 * Future in code that cannot run the schedule's work.  futures_are_awaited
 * returns whether there may be such threads and work to run for them, and
 * future_advance_awaited runs that work. */
bool futures_are_awaited(void);
void future_advance_awaited(void);

/* Returns the pending exception, with its traceback, and clears it.  An
 * exception must be pending. */
PyObject *take_exception(void);

#endif
