/* The Futures that Stream.submit returns. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "../observe/races.h"

#include "module.h"

PyObject *future_new(void);

/* Mark a callable as running; false if its Future was cancelled and it must
 * not be called. */
bool future_start(PyObject *future);

/* Set the moment at which the callable runs in its stream, or NULL; the Future
 * takes over the reference. */
void future_set_moment(PyObject *future, struct ps_moment *moment);
struct ps_moment *future_moment(PyObject *future);

/* The callable's source in the timeline, or 0. */
void future_set_source(PyObject *future, uint64_t source);
uint64_t future_source(PyObject *future);

/* Have the Future remember the call that queues the callable; where that is,
 * as place_of. */
void future_set_place(PyObject *future);
PyObject *future_place(PyObject *future);

/* Give a running Future its result, or its exception if the callable failed.
 * lost: the exception must be logged unless somebody retrieves it from the
 * Future.  future_finish: then wake the waiters and call the callbacks. */
void
future_settle(PyObject *future, PyObject *outcome, bool failed, bool lost);
void future_finish(PyObject *future);

/* Cancel a Future unless its callable has started. */
void future_cancel(PyObject *future);

/* Notify threads that spin for a result: the thread that settled a Future is
 * about to release the GIL. */
void future_mark_settled(void);

/* Whether, while a schedule is explored, threads wait that cannot run work.
 * future_advance_awaited: run it for them. */
bool futures_are_awaited(void);
void future_advance_awaited(void);

/* Take the pending exception, of which there must be one, with its
 * traceback. */
PyObject *take_exception(void);

#endif
