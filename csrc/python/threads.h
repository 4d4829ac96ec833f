/* Threads that run Python code. */
#ifndef PYSTREAMS_PYTHON_THREADS_H
#define PYSTREAMS_PYTHON_THREADS_H

#include "module.h"

/* Start a thread.  The thread calls `prepare`, unless that is NULL; then
 * `serve`, with the GIL held; and at last `left`, without a Python thread
 * state.  On failure, returns -1 with an exception, which is MemoryError if
 * `prepare` has returned false. */
int
start_thread(bool (*prepare)(void), void (*serve)(void), void (*left)(void));

/* Call this in a child process that a callable has forked, when the callable
 * has ended: ends the child.  `exception` is what the callable raised, or
 * NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
