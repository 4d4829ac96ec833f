/* Counts the captures that a thread has begun. */
#ifndef PYSTREAMS_PYTHON_GRAPH_H
#define PYSTREAMS_PYTHON_GRAPH_H

#include "module.h"

/* Returns the number of calls to Graph._begin that have succeeded on this
 * thread.  Python code that calls _begin may raise an exception, such as
 * KeyboardInterrupt, after the capture has begun.  In that case, this number
 * has changed, and a capture in progress must be dropped.  If the number has
 * not changed, the code has begun no capture, so a capture in progress was
 * begun by other code. */
uintptr_t captures_begun(void);

#endif
