/* libcuda, of what late.h describes. */
#include "late.h"

static _Thread_local CUcontext current;
static char context;

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
cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device)
{
    (void)device;
    *result = (CUcontext)&context;
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
    (void)stream;
    *result = (CUcontext)&context;
    return CUDA_SUCCESS;
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
    drain(index_of(stream));
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

CUresult
cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                    unsigned flags)
{
    (void)flags;
    begin();
    queue_word(index_of(stream), (uint32_t *)(uintptr_t)address, value, 0);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                     unsigned flags)
{
    (void)flags;
    begin();
    queue_word(index_of(stream), (uint32_t *)(uintptr_t)address, value, 1);
    end();
    return CUDA_SUCCESS;
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

CUresult
cuEventSynchronize(CUevent event)
{
    CUresult status;
    do {
        status = cuEventQuery(event);
    } while (status == CUDA_ERROR_NOT_READY);
    return status;
}

CUresult
cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop)
{
    (void)start;
    (void)stop;
    *milliseconds = 0;
    return CUDA_SUCCESS;
}

static int
absent(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

#pragma GCC diagnostic ignored "-Wattribute-alias"
#define ABSENT(name) \
    extern __typeof__(name) name __attribute__((alias("absent")));

ABSENT(cuLaunchKernel)
ABSENT(cuLibraryGetKernel)
ABSENT(cuLibraryLoadData)
