/* Keeps track of the gates (see capture_gate in backend.h) in captures, graphs
 * and executables.  The gates of a capture become the gates of its graph.
 * Executables of the graph have the same gates. */
#ifndef PYSTREAMS_CUDA_GRAPH_GATE_H
#define PYSTREAMS_CUDA_GRAPH_GATE_H

#include <cuda.h>
#include <stdbool.h>

#include <pystreams/backend.h>

struct cuda_capture;

/* The five functions below are called between cuda_captures_hold and
 * cuda_captures_release (see captures.h).  Otherwise another thread could end
 * a capture, or begin the next one, on the same stream between two of the
 * calls. */

/* Returns the number of the capture that captures the stream's work; 0 if it
 * is unknown, because the driver gives no numbers or the capture is
 * invalid. */
uint64_t cuda_capture_number(int device, ps_handle stream);

/* Call this before a capture begins on the stream `origin`.  Pass the result
 * to one of the two functions below.  Returns NULL if out of memory. */
struct cuda_capture *cuda_gates_expect(int device, ps_handle origin);
/* Call cuda_gates_begin after the capture has begun, or cuda_gates_cancel if
 * it has failed to begin.  If the number is 0, no gate can be added to the
 * capture. */
void cuda_gates_begin(struct cuda_capture *capture, uint64_t number);
void cuda_gates_cancel(struct cuda_capture *capture);

/* Call this after a capture has ended.  `graph` is the resulting graph, or 0
 * if there is none.  `origin` is the stream on which the capture began.
 * `number` is what cuda_capture_number returned before the end.  If it is 0,
 * `origin` identifies the capture.  Returns false if out of memory. */
bool
cuda_gates_end(int device, ps_handle origin, uint64_t number, ps_handle graph);

/* Call this after the executable was made from the graph.  Returns false if
 * out of memory. */
bool cuda_gates_inherit(ps_handle graph, ps_handle executable);

/* If the node belongs to a gate of the graph, returns the first of the gate's
 * nodes, and *argument becomes the gate's argument.  Otherwise returns
 * NULL. */
CUgraphNode
cuda_gates_first_node(ps_handle graph, CUgraphNode node, void **argument);

/* Call this before a graph or an executable is destroyed. */
void cuda_gates_forget(ps_handle graph);

#endif
