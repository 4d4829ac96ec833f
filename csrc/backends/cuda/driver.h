/* The functions of libcuda that the CUDA backend calls, and helpers for these
 * calls.  libcuda and NVML are loaded at run time, so that the extension
 * module can be imported on a machine without a driver.
 *
 * The rule: nothing here initializes the driver before a device is used, so
 * that a process which has only counted its devices can still fork. */
#ifndef PYSTREAMS_CUDA_DRIVER_H
#define PYSTREAMS_CUDA_DRIVER_H

#include <cuda.h>

#include <pystreams/backend.h>

/* At most this many devices are used, so that a mask of devices fits in 64
 * bits. */
#define CUDA_DEVICES 64

/* Each line has three parts: the member of cuda_driver that holds the
 * function's address, the function's name, and the function's parameters.  The
 * functions return a CUresult.  A CUresult and a cudaError_t with the same
 * number mean the same error.  A CUdevice is the device's ordinal. */
#define CUDA_DRIVER_FUNCTIONS(X)                                             \
    X(version, "cuDriverGetVersion", (int *))                                \
    X(init, "cuInit", (unsigned))                                            \
    X(context_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))   \
    X(context_state, "cuDevicePrimaryCtxGetState",                           \
      (CUdevice, unsigned *, int *))                                         \
    X(context_get, "cuCtxGetCurrent", (CUcontext *))                         \
    X(context_set, "cuCtxSetCurrent", (CUcontext))                           \
    X(context_device, "cuCtxGetDevice", (CUdevice *))                        \
    X(stream_context, "cuStreamGetCtx", (CUstream, CUcontext *))             \
    X(stream_query, "cuStreamQuery", (CUstream))                             \
    X(stream_synchronize, "cuStreamSynchronize", (CUstream))                 \
    X(stream_wait_event, "cuStreamWaitEvent", (CUstream, CUevent, unsigned)) \
    X(event_record, "cuEventRecord", (CUevent, CUstream))                    \
    X(event_query, "cuEventQuery", (CUevent))                                \
    X(event_synchronize, "cuEventSynchronize", (CUevent))                    \
    X(stream_capturing, "cuStreamIsCapturing",                               \
      (CUstream, CUstreamCaptureStatus *))                                   \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode",                     \
      (CUstreamCaptureMode *))                                               \
    X(library_load, "cuLibraryLoadData",                                     \
      (CUlibrary *, const void *, CUjit_option *, void **, unsigned,         \
       CUlibraryOption *, void **, unsigned))                                \
    X(library_kernel, "cuLibraryGetKernel",                                  \
      (CUkernel *, CUlibrary, const char *))                                 \
    X(kernel_launch, "cuLaunchKernel",                                       \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,         \
       unsigned, unsigned, CUstream, void **, void **))                      \
    X(device_uuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice))               \
    X(device_attribute, "cuDeviceGetAttribute",                              \
      (int *, CUdevice_attribute, CUdevice))                                 \
    X(memory_granularity, "cuMemGetAllocationGranularity",                   \
      (size_t *, const CUmemAllocationProp *,                                \
       CUmemAllocationGranularity_flags))                                    \
    X(memory_create, "cuMemCreate",                                          \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,  \
       unsigned long long))                                                  \
    X(memory_export, "cuMemExportToShareableHandle",                         \
      (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,      \
       unsigned long long))                                                  \
    X(memory_import, "cuMemImportFromShareableHandle",                       \
      (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))   \
    X(memory_properties, "cuMemGetAllocationPropertiesFromHandle",           \
      (CUmemAllocationProp *, CUmemGenericAllocationHandle))                 \
    X(memory_release, "cuMemRelease", (CUmemGenericAllocationHandle))        \
    X(address_reserve, "cuMemAddressReserve",                                \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))      \
    X(address_free, "cuMemAddressFree", (CUdeviceptr, size_t))               \
    X(memory_map, "cuMemMap",                                                \
      (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,            \
       unsigned long long))                                                  \
    X(memory_unmap, "cuMemUnmap", (CUdeviceptr, size_t))                     \
    X(memory_access, "cuMemSetAccess",                                       \
      (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

/* Functions that an older driver may lack.  If it lacks a function, the
 * function's member is NULL. */
#define CUDA_DRIVER_EXTRAS(X)                                               \
    X(event_elapsed, "cuEventElapsedTime_v2", (float *, CUevent, CUevent))  \
    X(context_record, "cuCtxRecordEvent", (CUcontext, CUevent))             \
    X(capture_info, "cuStreamGetCaptureInfo_v2",                            \
      (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,          \
       const CUgraphNode **, size_t *))                                     \
    X(memory_fill_16, "cuMemsetD16Async",                                   \
      (CUdeviceptr, unsigned short, size_t, CUstream))                      \
    X(memory_fill_32, "cuMemsetD32Async",                                   \
      (CUdeviceptr, unsigned, size_t, CUstream))                            \
    X(stream_device, "cuStreamGetDevice", (CUstream, CUdevice *))           \
    X(resource_get, "cuDeviceGetDevResource",                               \
      (CUdevice, CUdevResource *, CUdevResourceType))                       \
    X(resource_split, "cuDevSmResourceSplitByCount",                        \
      (CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, \
       unsigned, unsigned))                                                 \
    X(resource_describe, "cuDevResourceGenerateDesc",                       \
      (CUdevResourceDesc *, CUdevResource *, unsigned))                     \
    X(green_create, "cuGreenCtxCreate",                                     \
      (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned))                \
    X(green_destroy, "cuGreenCtxDestroy", (CUgreenCtx))                     \
    X(green_stream, "cuGreenCtxStreamCreate",                               \
      (CUstream *, CUgreenCtx, unsigned, int))                              \
    X(stream_wait_value, "cuStreamWaitValue32_v2",                          \
      (CUstream, CUdeviceptr, cuuint32_t, unsigned))                        \
    X(stream_write_value, "cuStreamWriteValue32_v2",                        \
      (CUstream, CUdeviceptr, cuuint32_t, unsigned))                        \
    X(graph_nodes, "cuGraphGetNodes", (CUgraph, CUgraphNode *, size_t *))   \
    X(graph_edges, "cuGraphGetEdges_v2",                                    \
      (CUgraph, CUgraphNode *, CUgraphNode *, void *, size_t *))            \
    X(graph_add_child, "cuGraphAddChildGraphNode",                          \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))       \
    X(capture_continue, "cuStreamUpdateCaptureDependencies",                \
      (CUstream, CUgraphNode *, size_t, unsigned))                          \
    X(executable_number, "cuGraphExecGetId", (CUgraphExec, unsigned *))     \
    X(node_number, "cuGraphNodeGetToolsId",                                 \
      (CUgraphNode, unsigned long long *))                                  \
    X(node_type, "cuGraphNodeGetType", (CUgraphNode, CUgraphNodeType *))    \
    X(node_kernel, "cuGraphKernelNodeGetParams_v2",                         \
      (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                             \
    X(node_copy, "cuGraphMemcpyNodeGetParams",                              \
      (CUgraphNode, CUDA_MEMCPY3D *))                                       \
    X(node_fill, "cuGraphMemsetNodeGetParams",                              \
      (CUgraphNode, CUDA_MEMSET_NODE_PARAMS *))                             \
    X(node_host, "cuGraphHostNodeGetParams",                                \
      (CUgraphNode, CUDA_HOST_NODE_PARAMS *))                               \
    X(node_record, "cuGraphEventRecordNodeGetEvent",                        \
      (CUgraphNode, CUevent *))                                             \
    X(node_wait, "cuGraphEventWaitNodeGetEvent", (CUgraphNode, CUevent *))  \
    X(function_name, "cuFuncGetName", (const char **, CUfunction))          \
    X(kernel_name, "cuKernelGetName", (const char **, CUkernel))

#define CUDA_FUNCTION_MEMBER(member, name, parameters) int(*member) parameters;

struct cuda_driver {
    CUDA_DRIVER_FUNCTIONS(CUDA_FUNCTION_MEMBER)
    CUDA_DRIVER_EXTRAS(CUDA_FUNCTION_MEMBER)
};

/* Written by the first call to cuda_driver_load, and constant afterwards. */
extern struct cuda_driver cuda_driver;

/* Look up the functions, if no earlier call has done so.  Call this before any
 * member of cuda_driver is used.  Any thread may call it, any number of times.
 * Returns PS_ERROR_INSUFFICIENT_DRIVER if there is no driver, or if the driver
 * is too old for this build. */
ps_status cuda_driver_load(void);

/* Returns a text for the user that says why cuda_driver_load failed.  The text
 * is empty if cuda_driver_load succeeded. */
const char *cuda_driver_failure(void);

/* Returns the number of devices that the driver will show to this process once
 * it is initialized.  This function asks NVML, and does not initialize the
 * driver.  Returns -1 if NVML is missing or fails, or if only the driver can
 * tell the number. */
int cuda_driver_count(void);

/* Get a device's primary context.  The first call for a device retains the
 * context, which may create it.  The context stays retained until the process
 * ends. */
ps_status cuda_context_retain(int device, CUcontext *context);

/* A scope in which a device's context is current: from cuda_scope_enter to
 * cuda_scope_leave. */
struct cuda_scope {
    CUcontext previous;
    int switched; /* whether cuda_scope_leave must make `previous` current */
    ps_status status; /* the status of the calls in the scope so far */
};

struct cuda_scope cuda_scope_enter(int device);

/* End the scope: make the previous context current again, and return
 * scope.status.  A failure to make it current is not returned, because it is
 * not a failure of the calls in the scope. */
static inline ps_status
cuda_scope_leave(struct cuda_scope scope)
{
    if (scope.switched) {
        cuda_driver.context_set(scope.previous);
    }
    return scope.status;
}

/* Evaluate the expression, which has a status as its value, while the device's
 * context is current.  Returns that status, or the failure to make the context
 * current. */
#define IN_CONTEXT(device, expression)                       \
    ({                                                       \
        struct cuda_scope scope_ = cuda_scope_enter(device); \
        if (scope_.status == PS_SUCCESS)                     \
            scope_.status = (ps_status)(expression);         \
        cuda_scope_leave(scope_);                            \
    })

/* Like IN_CONTEXT, but also set the relaxed capture mode during the
 * evaluation.  In this mode, the calls in the expression do not invalidate
 * captures of other streams.  The last error of cudart (cudaGetLastError) is
 * not cleared after a failure.  No other library sees this error, because
 * cudart is linked in statically. */
#define ON_DEVICE(device, expression)                           \
    IN_CONTEXT(device, ({                                       \
                   CUstreamCaptureMode mode_ =                  \
                       CU_STREAM_CAPTURE_MODE_RELAXED;          \
                   cuda_driver.capture_mode(&mode_);            \
                   ps_status status_ = (ps_status)(expression); \
                   cuda_driver.capture_mode(&mode_);            \
                   status_;                                     \
               }))

/* Evaluate a driver call about a stream or an event.  Most handles identify
 * their context, so no context has to be current.  The exceptions are the
 * handles 0 to 2, which mean default streams.  For these, the device's context
 * is current during the call. */
#define ON_HANDLE(device, handle, expression)   \
    ((handle) > (ps_handle)CU_STREAM_PER_THREAD \
         ? (ps_status)(expression)              \
         : IN_CONTEXT(device, expression))

/* Returns PS_ERROR_CAPTURE_UNSUPPORTED if the stream is being captured,
 * PS_SUCCESS if it is not.  Call this before a driver call that would
 * invalidate a capture of the stream.  Never blocks. */
static inline ps_status
cuda_stream_check_uncaptured(ps_handle stream)
{
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    ps_status status =
        (ps_status)cuda_driver.stream_capturing((CUstream)stream, &found);

    return status == PS_SUCCESS && found != CU_STREAM_CAPTURE_STATUS_NONE
               ? PS_ERROR_CAPTURE_UNSUPPORTED
               : status;
}

/* Like the member stream_query, but returns PS_ERROR_CAPTURE_UNSUPPORTED if
 * the stream is being captured, and does not invalidate the capture.  The
 * device's context must be current. */
static inline ps_status
cuda_stream_state(ps_handle stream)
{
    ps_status status = cuda_stream_check_uncaptured(stream);

    return status != PS_SUCCESS
               ? status
               : (ps_status)cuda_driver.stream_query((CUstream)stream);
}

#endif
