/* Threads that run Python. */
#ifndef PYSTREAMS_PYTHON_THREADS_H
#define PYSTREAMS_PYTHON_THREADS_H

#include "module.h"

/* Have a new thread call `prepare`, and then `serve` with the GIL; -1 with an
 * exception, also if there is no memory to prepare it: false. */
int start_thread(bool (*prepare)(void), void (*serve)(void));

/* End a process that was forked in a callable, which ended with the exception
 * or without one: NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
