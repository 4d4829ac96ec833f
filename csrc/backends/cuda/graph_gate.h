/* The owners of captured gates: a capture, its graph, and the executables of
 * that. */
#ifndef PYSTREAMS_CUDA_GRAPH_GATE_H
#define PYSTREAMS_CUDA_GRAPH_GATE_H

#include <cuda.h>
#include <stdbool.h>

#include <pystreams/backend.h>

struct cuda_capture;

/* A capture is about to begin on the stream; NULL if out of memory. */
struct cuda_capture *cuda_gates_expect(ps_handle origin);
/* The capture has begun, or has failed to. */
void cuda_gates_begin(struct cuda_capture *capture, int device);
void cuda_gates_cancel(struct cuda_capture *capture);

/* The capture with the number (0: the capture of the stream) has ended and
 * made the graph (0: none).  False if out of memory. */
bool cuda_gates_end(ps_handle origin, uint64_t number, ps_handle graph);

/* Whether a capture that began here is in progress. */
bool cuda_gates_capturing(void);

/* The executable was made from the graph.  False if out of memory. */
bool cuda_gates_inherit(ps_handle graph, ps_handle executable);

/* The first of the gate's nodes, if the graph's node is one of them, and the
 * gate's argument; else NULL. */
CUgraphNode
cuda_gates_first_node(ps_handle graph, CUgraphNode node, void **argument);

/* The graph, or the executable, is about to be destroyed. */
void cuda_gates_forget(ps_handle graph);

#endif
