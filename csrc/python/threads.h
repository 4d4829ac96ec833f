/* Threads that run Python code. */
#ifndef PYSTREAMS_PYTHON_THREADS_H
#define PYSTREAMS_PYTHON_THREADS_H

#include "module.h"

/* Start a thread.  The thread first calls prepare(), unless that is NULL.  It
 * then calls serve() with the GIL held.  Finally, after its Python thread
 * state has been deleted, it calls left(), which may be NULL only if serve()
 * never returns.  prepare() and left() are called without the GIL.  On
 * failure, returns -1 with an exception, which is MemoryError if prepare() has
 * returned false. */
int
start_thread(bool (*prepare)(void), void (*serve)(void), void (*left)(void));

/* End a child process that a callable has forked.  Call this in the child when
 * the callable has ended.  `exception` is what the callable raised, or
 * NULL. */
_Noreturn void end_child(PyObject *exception);

#endif
