/* What `Stream.submit` is made of: Futures, and threads that run callables. */
#ifndef PYSTREAMS_PYTHON_SUBMIT_H
#define PYSTREAMS_PYTHON_SUBMIT_H

#include "module.h"

/* ---- future.c, future_view.c ---- */

extern PyType_Spec future_spec, future_lock_spec;

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

/* ---- threads.c ---- */

/* Have a new thread call `prepare`, and then `serve` with the GIL; -1 with an
 * exception, also if there is no memory to prepare it: false. */
int start_thread(bool (*prepare)(void), void (*serve)(void));

/* End a process that was forked in a callable, which ended with the exception
 * or without one: NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
