/* The functions of libcuda in the fake CUDA; see late.h. */
#include "late.h"

#include <stdio.h>

static _Thread_local CUcontext current;
static char contexts[2]; /* the device's primary context, and another one */

CUresult
cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult
cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult
cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device)
{
    (void)device;
    *result = (CUcontext)&contexts[0];
    return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

CUresult
cuCtxGetCurrent(CUcontext *result)
{
    *result = current;
    return CUDA_SUCCESS;
}

CUresult
cuCtxSetCurrent(CUcontext wanted)
{
    current = wanted;
    return CUDA_SUCCESS;
}

CUresult
cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult
cuStreamGetCtx(CUstream stream, CUcontext *result)
{
    *result = (CUcontext)&contexts[late_cuda_context_of(index_of(stream))];
    return CUDA_SUCCESS;
}

int
late_cuda_context(const void *handle)
{
    return handle == &contexts[1];
}

CUresult
cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

CUresult
cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult
cuStreamQuery(CUstream stream)
{
    begin();
    int idle = is_idle(index_of(stream));
    end();
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult
cuStreamSynchronize(CUstream stream)
{
    begin();
    struct waiting waiting = begin_waiting("cuStreamSynchronize");
    drain(index_of(stream));
    end_waiting(&waiting);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    begin();
    queue_wait(index_of(stream), (struct event *)event);
    end();
    return CUDA_SUCCESS;
}

static CUresult
word(CUstream stream, CUdeviceptr address, cuuint32_t value, int writes)
{
    begin();
    queue_word(index_of(stream), (uint32_t *)(uintptr_t)address, value,
               writes);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                    unsigned flags)
{
    (void)flags;
    return word(stream, address, value, 0);
}

CUresult
cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                     unsigned flags)
{
    (void)flags;
    return word(stream, address, value, 1);
}

CUresult
cuEventRecord(CUevent event, CUstream stream)
{
    begin();
    record((struct event *)event, index_of(stream));
    end();
    return CUDA_SUCCESS;
}

CUresult
cuCtxRecordEvent(CUcontext wanted, CUevent event)
{
    (void)wanted;
    begin();
    record_all((struct event *)event);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuEventQuery(CUevent event)
{
    begin();
    int over = is_over((struct event *)event);
    end();
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Waits for the event's latest record at the time of the call, even if the
 * event is recorded again meanwhile. */
CUresult
cuEventSynchronize(CUevent event)
{
    begin();
    struct waiting waiting = begin_waiting("cuEventSynchronize");
    struct event latest = *(struct event *)event;
    while (!is_over(&latest)) {
        end();
        begin();
    }
    end_waiting(&waiting);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop)
{
    struct event *from = (struct event *)start, *to = (struct event *)stop;
    CUresult status = CUDA_SUCCESS;
    begin();
    if (from->operation == 0 || to->operation == 0) {
        status = CUDA_ERROR_INVALID_HANDLE;
    }
    else if (!is_over(from) || !is_over(to)) {
        status = CUDA_ERROR_NOT_READY;
    }
    else {
        *milliseconds = (float)between(from, to) * 1e-6f;
    }
    end();
    return status;
}

/* Green contexts.  The device has GROUPS groups of GROUP multiprocessors each,
 * and one more group of REST multiprocessors.  If two green contexts have the
 * same group, an error is printed. */
enum { GROUPS = 2, GROUP = 8, REST = 4 };

/* For each green context, a mask of its groups; 0 if the green context does
 * not exist. */
static unsigned green_contexts[GROUPS + 1];

CUresult
cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    (void)stream;
    *device = 0;
    return CUDA_SUCCESS;
}

static CUdevResource
resource(unsigned count, unsigned char groups)
{
    CUdevResource made = {.type = CU_DEV_RESOURCE_TYPE_SM};
    made.sm.smCount = count;
    made.sm.minSmPartitionSize = GROUP;
    made._internal_padding[0] = groups;
    return made;
}

CUresult
cuDeviceGetDevResource(CUdevice device, CUdevResource *found,
                       CUdevResourceType type)
{
    (void)device, (void)type;
    *found = resource(GROUPS * GROUP + REST, 0);
    return CUDA_SUCCESS;
}

CUresult
cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *count,
                            const CUdevResource *input,
                            CUdevResource *remaining, unsigned flags,
                            unsigned least)
{
    (void)input, (void)flags, (void)least;
    *count = GROUPS;
    for (int i = 0; groups != NULL && i < GROUPS; i++) {
        groups[i] = resource(GROUP, 1 << i);
    }
    if (remaining != NULL) {
        *remaining = resource(REST, 1 << GROUPS);
    }
    return CUDA_SUCCESS;
}

CUresult
cuDevResourceGenerateDesc(CUdevResourceDesc *description,
                          CUdevResource *resources, unsigned count)
{
    uintptr_t groups = 0;
    for (unsigned i = 0; i < count; i++) {
        groups |= resources[i]._internal_padding[0];
    }
    *description = (CUdevResourceDesc)groups;
    return CUDA_SUCCESS;
}

CUresult
cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description,
                 CUdevice device, unsigned flags)
{
    unsigned groups = (unsigned)(uintptr_t)description, taken = 0;
    unsigned *unused = NULL;
    (void)device, (void)flags;
    begin();
    for (int i = 0; i <= GROUPS; i++) {
        taken |= green_contexts[i];
        if (green_contexts[i] == 0) {
            unused = &green_contexts[i];
        }
    }
    if (taken & groups) {
        printf("late CUDA: two green contexts have groups %#x\n",
               taken & groups);
    }
    *unused = groups;
    *context = (CUgreenCtx)unused;
    end();
    return CUDA_SUCCESS;
}

CUresult
cuGreenCtxDestroy(CUgreenCtx context)
{
    begin();
    if (owned_by(context) > 0) {
        printf("late CUDA: a green context is destroyed before %d streams\n",
               owned_by(context));
    }
    *(unsigned *)context = 0;
    end();
    return CUDA_SUCCESS;
}

CUresult
cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned flags,
                       int priority)
{
    (void)priority;
    begin();
    int index = add_stream(!(flags & CU_STREAM_NON_BLOCKING));
    if (index >= 0) {
        set_owner(index, context);
        *stream = handle_of(index);
    }
    end();
    return index >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The backend has only one kernel, which runs for as many cycles as its
 * argument says. */
CUresult
cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                  void **values, unsigned count,
                  CUlibraryOption *library_options, void **library_values,
                  unsigned library_count)
{
    (void)code, (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    *library = (CUlibrary)&contexts[0];
    return CUDA_SUCCESS;
}

CUresult
cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    (void)library, (void)name;
    *kernel = (CUkernel)&contexts[0];
    return CUDA_SUCCESS;
}

CUresult
cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y,
               unsigned grid_z, unsigned block_x, unsigned block_y,
               unsigned block_z, unsigned shared, CUstream stream,
               void **arguments, void **extra)
{
    const uint64_t cycles_a_microsecond = 1900;
    (void)kernel, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x;
    (void)block_y, (void)block_z, (void)shared, (void)extra;
    begin();
    queue_sleep(index_of(stream),
                *(const uint64_t *)arguments[0] * 1000 / cycles_a_microsecond);
    end();
    return CUDA_SUCCESS;
}
