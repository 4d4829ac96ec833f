/* What a context manager that captures a graph must know. */
#ifndef PYSTREAMS_PYTHON_GRAPH_H
#define PYSTREAMS_PYTHON_GRAPH_H

#include "module.h"

/* Returns the number of calls of Graph._begin that have succeeded on this
 * thread.  Python code that calls _begin may raise an exception, such as that
 * of Ctrl-C, after the capture has begun.  If so, this number has changed, and
 * the capture must be dropped.  Otherwise, a capture into the same graph, or
 * on the same stream, is another call's. */
uintptr_t captures_begun(void);

#endif
