/* Threads that run Python. */
#ifndef PYSTREAMS_PYTHON_THREADS_H
#define PYSTREAMS_PYTHON_THREADS_H

#include "module.h"

/* Start a thread that calls `prepare`, unless it is NULL, then `serve` with
 * the GIL held, and `left` once it has no thread state any more.  -1 with an
 * exception, also if `prepare` returns false for lack of memory. */
int
start_thread(bool (*prepare)(void), void (*serve)(void), void (*left)(void));

/* End a child process that a callable forked, after the callable ended with
 * the exception, or with none: NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
