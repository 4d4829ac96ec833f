/* The Futures that Stream.submit returns. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "../observe/races.h"

#include "module.h"

PyObject *future_new(void);

/* Mark the callable as running.  Returns false if its Future was cancelled:
 * then the callable must not be called. */
bool future_start(PyObject *future);

/* Set the race detector's moment at which the callable runs in its stream, or
 * NULL.  The Future takes over the reference. */
void future_set_moment(PyObject *future, struct ps_moment *moment);
struct ps_moment *future_moment(PyObject *future);

/* The number by which the timeline names the callable as the source of a wait;
 * 0 if there is none. */
void future_set_source(PyObject *future, uint64_t source);
uint64_t future_source(PyObject *future);

/* future_set_place stores which call of the program queues the callable.
 * future_place returns that place, as place_of. */
void future_set_place(PyObject *future);
PyObject *future_place(PyObject *future);

/* future_settle gives a running Future its result or, if the callable failed,
 * its exception.  lost: if no code retrieves the exception from the Future, it
 * is logged.  future_finish, called later, wakes the waiters and calls the
 * callbacks. */
void
future_settle(PyObject *future, PyObject *outcome, bool failed, bool lost);
void future_finish(PyObject *future);

/* Cancel a Future, unless its callable has started. */
void future_cancel(PyObject *future);

/* Tell threads that spin for a result: the thread that settled a Future is
 * about to release the GIL, or to run its next callable. */
void future_mark_settled(void);

/* futures_are_awaited: whether, while a schedule is explored, threads wait for
 * Futures in code that cannot run the schedule's work.  future_advance_awaited
 * runs that work for them. */
bool futures_are_awaited(void);
void future_advance_awaited(void);

/* Take the pending exception, with its traceback.  There must be one. */
PyObject *take_exception(void);

#endif
