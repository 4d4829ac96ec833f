/* Captures into a Graph that other files begin by Python code. */
#ifndef PYSTREAMS_PYTHON_GRAPH_H
#define PYSTREAMS_PYTHON_GRAPH_H

#include "module.h"

/* Returns the number to pass to graph_drop: how many captures into the Graph
 * have begun. */
uint64_t graph_begun(PyObject *graph);

/* End and drop a capture into the Graph that is in progress, if this thread
 * has begun it since graph_begun returned `begun`.  For Python code that has
 * begun a capture, and then raised an exception, such as KeyboardInterrupt.
 * Keeps a pending exception. */
void graph_drop(PyObject *graph, uint64_t begun);

#endif
