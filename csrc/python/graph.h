/* Counts the captures that a thread has begun. */
#ifndef PYSTREAMS_PYTHON_GRAPH_H
#define PYSTREAMS_PYTHON_GRAPH_H

#include "module.h"

/* Returns the number of calls of Graph._begin that have succeeded on this
 * thread.  Python code that calls _begin may raise an exception, such as that
 * of Ctrl-C, after the capture has begun.  If so, this number has changed, and
 * the capture must be dropped.  If it has not changed, the call has begun no
 * capture, so any that is in progress is another call's. */
uintptr_t captures_begun(void);

#endif
