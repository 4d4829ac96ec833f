/* Captures and graphs, implemented with cudart.  The handle of a graph is a
 * cudaGraph_t.  The handle of an executable is a cudaGraphExec_t. */
#include <cuda_runtime_api.h>

#include "captures.h"
#include "driver.h"
#include "graph_gate.h"
#include "table.h"

_Static_assert((int)PS_CAPTURE_GLOBAL == (int)cudaStreamCaptureModeGlobal &&
                   (int)PS_CAPTURE_THREAD_LOCAL ==
                       (int)cudaStreamCaptureModeThreadLocal &&
                   (int)PS_CAPTURE_RELAXED ==
                       (int)cudaStreamCaptureModeRelaxed,
               "the contract has cudart's numbers");
_Static_assert((int)PS_INSTANTIATE_AUTO_FREE ==
                       (int)cudaGraphInstantiateFlagAutoFreeOnLaunch &&
                   (int)PS_INSTANTIATE_NODE_PRIORITY ==
                       (int)cudaGraphInstantiateFlagUseNodePriority,
               "the contract has cudart's numbers");

ps_status
cuda_stream_capturing(const struct ps_backend *backend, int device,
                      ps_handle stream, int *capturing)
{
    CUstreamCaptureStatus found;
    ps_status status =
        ON_HANDLE(device, stream,
                  cuda_driver.stream_capturing((CUstream)stream, &found));

    if (status == PS_SUCCESS) {
        *capturing = found != CU_STREAM_CAPTURE_STATUS_NONE;
    }
    return status;
}

ps_status
cuda_capture_begin(const struct ps_backend *backend, int device,
                   ps_handle stream, enum ps_capture_mode mode)
{
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    struct cuda_entered entered;

    cuda_stream_enter(&entered, stream);
    cuda_captures_hold();
    struct cuda_capture *capture = cuda_gates_expect(device, stream);
    if (capture != NULL) {
        status = ON_DEVICE(
            device, cudaStreamBeginCapture((cudaStream_t)stream,
                                           (enum cudaStreamCaptureMode)mode));
        if (status == PS_SUCCESS) {
            cuda_gates_begin(capture, cuda_capture_number(device, stream));
        }
        else {
            cuda_gates_cancel(capture);
        }
    }
    cuda_captures_release();
    cuda_stream_leave(&entered);
    return status;
}

/* End the capture that began on the stream.  Returns
 * PS_ERROR_CAPTURE_UNMATCHED if there is none.  On success, *count becomes the
 * number of the graph's nodes.  If *graph is not NULL, the caller destroys it
 * after a failure. */
static ps_status
end(int device, ps_handle stream, cudaGraph_t *graph, size_t *count)
{
    uint64_t number = cuda_capture_number(device, stream);
    ps_status status =
        ON_DEVICE(device, cudaStreamEndCapture((cudaStream_t)stream, graph));

    if (status == PS_ERROR_CAPTURE_UNMATCHED) {
        if (ON_DEVICE(device, cuda_stream_check_uncaptured(stream)) ==
            PS_SUCCESS) {
            /* Another library may have ended the capture. */
            (void)cuda_gates_end(device, stream, 0, 0);
        }
        return status;
    }
    if (status == PS_SUCCESS && *graph == NULL) {
        status = PS_ERROR_CAPTURE_INVALIDATED;
    }
    if (status == PS_SUCCESS) {
        status = ON_DEVICE(device, cudaGraphGetNodes(*graph, NULL, count));
    }
    if (!cuda_gates_end(device, stream, number,
                        status == PS_SUCCESS ? (ps_handle)*graph : 0)) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    return status;
}

ps_status
cuda_capture_end(const struct ps_backend *backend, int device,
                 ps_handle stream, ps_handle *graph, size_t *operations)
{
    cudaGraph_t captured = NULL;
    size_t count = 0;

    cuda_captures_hold();
    ps_status status = end(device, stream, &captured, &count);
    cuda_captures_release();
    if (status == PS_SUCCESS) {
        *graph = (ps_handle)captured;
        *operations = count;
    }
    else if (captured != NULL) {
        cuda_graph_destroy(backend, device, (ps_handle)captured);
    }
    return status;
}

/* Uses the driver's function, because cudart's function may create a
 * context. */
ps_status
cuda_capture_mode_exchange(const struct ps_backend *backend,
                           enum ps_capture_mode *mode)
{
    CUstreamCaptureMode swapped = (CUstreamCaptureMode)*mode;
    ps_status status = cuda_driver.capture_mode(&swapped);

    if (status == PS_SUCCESS) {
        *mode = (enum ps_capture_mode)swapped;
    }
    return status;
}

ps_status
cuda_event_record_external(const struct ps_backend *backend, int device,
                           ps_handle event, ps_handle stream)
{
    ps_status status = cuda_event_share(event);

    if (status == PS_SUCCESS) {
        status = cuda_event_yield(device, event);
    }
    return status != PS_SUCCESS
               ? status
               : ON_DEVICE(device,
                           cudaEventRecordWithFlags((cudaEvent_t)event,
                                                    (cudaStream_t)stream,
                                                    cudaEventRecordExternal));
}

ps_status
cuda_stream_wait_external(const struct ps_backend *backend, int device,
                          ps_handle stream, ps_handle event)
{
    return ON_DEVICE(device, cudaStreamWaitEvent((cudaStream_t)stream,
                                                 (cudaEvent_t)event,
                                                 cudaEventWaitExternal));
}

static ps_status
child_capture(ps_handle stream, CUgraph graph)
{
    CUstreamCaptureStatus state;
    CUgraph captured;
    const CUgraphNode *after;
    CUgraphNode made;
    size_t count;
    cuuint64_t id;
    int error = cuda_driver.capture_info((CUstream)stream, &state, &id,
                                         &captured, &after, &count);

    if (error == CUDA_SUCCESS && state != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return state == CU_STREAM_CAPTURE_STATUS_NONE
                   ? PS_ERROR_INVALID_VALUE
                   : PS_ERROR_CAPTURE_INVALIDATED;
    }
    if (error == CUDA_SUCCESS) {
        error =
            cuda_driver.graph_add_child(&made, captured, after, count, graph);
    }
    if (error == CUDA_SUCCESS) {
        error = cuda_driver.capture_continue(
            (CUstream)stream, &made, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    }
    return (ps_status)error;
}

ps_status
cuda_capture_graph(const struct ps_backend *backend, int device,
                   ps_handle stream, ps_handle graph)
{
    if (cuda_driver.capture_info == NULL ||
        cuda_driver.graph_add_child == NULL ||
        cuda_driver.capture_continue == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    cuda_captures_hold();
    ps_status status =
        ON_DEVICE(device, child_capture(stream, (CUgraph)graph));
    cuda_captures_release();
    return status;
}

ps_status
cuda_graph_instantiate_with(const struct ps_backend *backend, int device,
                            ps_handle graph, unsigned options,
                            ps_handle *executable)
{
    cudaGraphExec_t made;
    ps_status status = ON_DEVICE(
        device,
        cudaGraphInstantiateWithFlags(&made, (cudaGraph_t)graph, options));

    if (status == PS_SUCCESS && !cuda_gates_inherit(graph, (ps_handle)made)) {
        cuda_executable_destroy(backend, device, (ps_handle)made);
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    if (status == PS_SUCCESS) {
        *executable = (ps_handle)made;
    }
    return status;
}

/* The captured work may contain allocations of another library that are not
 * freed in the captured work.  With PS_INSTANTIATE_AUTO_FREE, each launch
 * first frees the memory that the previous launch has allocated in this
 * way. */
ps_status
cuda_graph_instantiate(const struct ps_backend *backend, int device,
                       ps_handle graph, ps_handle *executable)
{
    return cuda_graph_instantiate_with(
        backend, device, graph,
        PS_INSTANTIATE_AUTO_FREE | PS_INSTANTIATE_NODE_PRIORITY, executable);
}

static const char *
reason(enum cudaGraphExecUpdateResult result)
{
    switch (result) {
    case cudaGraphExecUpdateErrorTopologyChanged:
        return "the nodes or their edges differ";
    case cudaGraphExecUpdateErrorNodeTypeChanged:
        return "its type differs";
    case cudaGraphExecUpdateErrorFunctionChanged:
    case cudaGraphExecUpdateErrorUnsupportedFunctionChange:
        return "its kernel cannot take the other's place";
    case cudaGraphExecUpdateErrorParametersChanged:
        return "a parameter differs that cannot be updated";
    case cudaGraphExecUpdateErrorNotSupported:
        return "nodes of its type cannot be updated";
    case cudaGraphExecUpdateErrorAttributesChanged:
        return "its attributes differ";
    default:
        return NULL;
    }
}

ps_status
cuda_graph_update(const struct ps_backend *backend, int device,
                  ps_handle executable, ps_handle graph,
                  struct ps_graph_difference *difference)
{
    cudaGraphExecUpdateResultInfo found = {0};
    ps_status status =
        ON_DEVICE(device, cudaGraphExecUpdate((cudaGraphExec_t)executable,
                                              (cudaGraph_t)graph, &found));

    if (status != PS_SUCCESS) {
        difference->reason = reason(found.result);
        difference->node = cuda_node_index(device, graph, found.errorNode);
    }
    return status;
}

ps_status
cuda_graph_upload(const struct ps_backend *backend, int device,
                  ps_handle executable, ps_handle stream)
{
    return ON_DEVICE(device, cudaGraphUpload((cudaGraphExec_t)executable,
                                             (cudaStream_t)stream));
}

ps_status
cuda_executable_destroy(const struct ps_backend *backend, int device,
                        ps_handle executable)
{
    cuda_gates_forget(executable);
    return ON_DEVICE(device,
                     cudaGraphExecDestroy((cudaGraphExec_t)executable));
}

ps_status
cuda_graph_destroy(const struct ps_backend *backend, int device,
                   ps_handle graph)
{
    cuda_gates_forget(graph);
    return ON_DEVICE(device, cudaGraphDestroy((cudaGraph_t)graph));
}

ps_status
cuda_graph_print(const struct ps_backend *backend, int device, ps_handle graph,
                 const char *path)
{
    return ON_DEVICE(device,
                     cudaGraphDebugDotPrint((cudaGraph_t)graph, path,
                                            cudaGraphDebugDotFlagsVerbose));
}
