/* Threads that run Python code. */
#ifndef PYSTREAMS_PYTHON_THREADS_H
#define PYSTREAMS_PYTHON_THREADS_H

#include "module.h"

/* Start a thread.  It calls `prepare`, unless that is NULL, then `serve` with
 * the GIL held, and at last `left`, when it has no thread state any more.
 * Returns -1 with an exception; it is MemoryError if `prepare` returns
 * false. */
int
start_thread(bool (*prepare)(void), void (*serve)(void), void (*left)(void));

/* A callable has forked a child process: end the child after the callable.
 * `exception` is what the callable raised, or NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
