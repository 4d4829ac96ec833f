/* The Futures that Stream.submit returns. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "../observe/races.h"

#include "module.h"

PyObject *future_new(void);

/* Mark the Future as running.  Returns false if it was cancelled; then its
 * callable must not be called. */
bool future_start(PyObject *future);

/* future_set_moment stores the moment, for the race detector, at which the
 * callable runs in its stream; or NULL.  The Future takes over the
 * reference. */
void future_set_moment(PyObject *future, struct ps_moment *moment);
struct ps_moment *future_moment(PyObject *future);

/* The timeline shows for what a wait is.  future_set_source stores the value
 * of ps_slice.source for slices of waits for this Future; 0 if there is
 * none. */
void future_set_source(PyObject *future, uint64_t source);
uint64_t future_source(PyObject *future);

/* future_set_place stores the place in the program that is submitting the
 * callable.  future_place returns that place, as place_of does. */
void future_set_place(PyObject *future);
PyObject *future_place(PyObject *future);

/* future_settle stores the outcome in a running Future: the result or, if
 * `failed` is true, the exception.  lost: whether the exception is logged if
 * no code ever retrieves it.  Call future_finish later: it wakes the waiters
 * and calls the callbacks. */
void
future_settle(PyObject *future, PyObject *outcome, bool failed, bool lost);
void future_finish(PyObject *future);

/* Cancel a Future, unless its callable has started. */
void future_cancel(PyObject *future);

/* Let threads that spin for a Future that is settled now end their spin.
 * Called when the thread that settled a Future is about to release the GIL, or
 * to run its next callable. */
void future_mark_settled(void);

/* While a schedule is explored, a thread may wait for a Future in code that
 * cannot run the schedule's work.  futures_are_awaited returns whether there
 * are such threads, and future_advance_awaited runs the work for them. */
bool futures_are_awaited(void);
void future_advance_awaited(void);

/* Returns the pending exception, with its traceback, and clears it.  An
 * exception must be pending. */
PyObject *take_exception(void);

#endif
