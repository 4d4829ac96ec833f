/* Which captures, graphs and executables have gates.  A capture passes its
 * gates on to its graph, and the graph to its executables. */
#ifndef PYSTREAMS_CUDA_GRAPH_GATE_H
#define PYSTREAMS_CUDA_GRAPH_GATE_H

#include <cuda.h>
#include <stdbool.h>

#include <pystreams/backend.h>

struct cuda_capture;

/* Call before a capture begins on the stream.  Returns NULL if out of
 * memory. */
struct cuda_capture *cuda_gates_expect(ps_handle origin);
/* Call after the capture has begun, or has failed to begin. */
void cuda_gates_begin(struct cuda_capture *capture, int device);
void cuda_gates_cancel(struct cuda_capture *capture);

/* Call after a capture has ended.  `graph` is its result, 0 if there is none.
 * `number` identifies the capture; if it is 0, `origin` does.  Returns false
 * if out of memory. */
bool cuda_gates_end(ps_handle origin, uint64_t number, ps_handle graph);

/* Returns whether a capture that began here is in progress. */
bool cuda_gates_capturing(void);

/* Call after the executable was made from the graph.  Returns false if out of
 * memory. */
bool cuda_gates_inherit(ps_handle graph, ps_handle executable);

/* If the node belongs to a gate of the graph, returns the first of the gate's
 * nodes, and *argument becomes the gate's argument.  Otherwise returns
 * NULL. */
CUgraphNode
cuda_gates_first_node(ps_handle graph, CUgraphNode node, void **argument);

/* Call before the graph or the executable is destroyed. */
void cuda_gates_forget(ps_handle graph);

#endif
