/* The Futures that Stream.submit returns. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "module.h"

PyObject *future_new(struct module_state *state);

/* Whether the callable is to be called: not if it was cancelled. */
bool future_start(PyObject *future);

/* Give a Future that was started its result, or the exception if it failed,
 * and call its callbacks. */
void future_settle(PyObject *future, PyObject *outcome, bool failed);

/* Cancel a Future unless its callable has started. */
void future_cancel(PyObject *future);

/* For threads that spin for a result: the one that settled a Future is about
 * to let go of the GIL. */
void future_mark_settled(void);

/* The pending exception, which there is, with its traceback. */
PyObject *take_exception(void);

#endif
