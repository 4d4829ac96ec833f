/* Who has captured gates: a capture, its graph, and what is made of that. */
#ifndef PYSTREAMS_CUDA_GRAPH_GATE_H
#define PYSTREAMS_CUDA_GRAPH_GATE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* A capture has begun on the stream.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_gates_begin(int device, ps_handle origin);

/* It has ended, and is the graph, or is nothing if that is 0.  False without
 * memory. */
bool cuda_gates_end(ps_handle origin, ps_handle graph);

/* Whether a capture that began here is in progress. */
bool cuda_gates_capturing(void);

/* The executable was made from the graph.  False without memory. */
bool cuda_gates_inherit(ps_handle graph, ps_handle executable);

/* The graph, or the executable, is about to be destroyed. */
void cuda_gates_forget(ps_handle graph);

#endif
