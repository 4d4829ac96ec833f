/* The functions of cudart in the fake CUDA; see late.h. */
#include "late.h"

#include <stdlib.h>

enum { MOST_PINNED = 1 << 12 };

static struct {
    char *data;
    size_t nbytes;
} pinned[MOST_PINNED];

static int
is_pinned(const void *address)
{
    const char *data = address;
    for (int i = 0; i < MOST_PINNED; i++) {
        if (data >= pinned[i].data &&
            data < pinned[i].data + pinned[i].nbytes) {
            return 1;
        }
    }
    return 0;
}

const char *
cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                              : "cudaErrorUnknown";
}

const char *
cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory"
                                              : "unknown error";
}

cudaError_t
cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t
cudaDeviceSynchronize(void)
{
    begin();
    struct waiting waiting = begin_waiting("cudaDeviceSynchronize_v3020");
    drain_all();
    end_waiting(&waiting);
    end();
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                             int priority)
{
    (void)priority;
    begin();
    int index = add_stream(flags == cudaStreamDefault);
    if (index >= 0) {
        *stream = handle_of(index);
    }
    end();
    return index >= 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t
cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    begin();
    *flags = is_blocking(index_of(stream)) ? cudaStreamDefault
                                           : cudaStreamNonBlocking;
    end();
    return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    begin();
    remove_stream(index_of(stream));
    end();
    return cudaSuccess;
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t
cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *wanted)
{
    static char only;
    (void)wanted;
    *pool = (cudaMemPool_t)&only;
    return cudaSuccess;
}

cudaError_t
cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                        void *value)
{
    (void)pool;
    (void)attribute;
    (void)value;
    return cudaSuccess;
}

cudaError_t
cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                        void *value)
{
    uint64_t reserved, used;
    (void)pool;
    begin();
    count_memory(&reserved, &used);
    end();
    *(uint64_t *)value =
        attribute == cudaMemPoolAttrUsedMemCurrent ? used : reserved;
    return cudaSuccess;
}

cudaError_t
cudaMallocFromPoolAsync(void **data, size_t nbytes, cudaMemPool_t pool,
                        cudaStream_t stream)
{
    (void)pool;
    begin();
    *data = allocate(index_of(stream), nbytes);
    end();
    return *data != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t
cudaFreeAsync(void *data, cudaStream_t stream)
{
    begin();
    release(index_of(stream), data);
    end();
    return cudaSuccess;
}

cudaError_t
cudaHostAlloc(void **data, size_t nbytes, unsigned flags)
{
    int place = 0;
    (void)flags;
    begin();
    while (place < MOST_PINNED && pinned[place].data != NULL) {
        place++;
    }
    *data = place < MOST_PINNED ? malloc(nbytes) : NULL;
    if (*data != NULL) {
        pinned[place].data = *data;
        pinned[place].nbytes = nbytes;
    }
    end();
    return *data != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t
cudaFreeHost(void *data)
{
    begin();
    drain_all();
    for (int i = 0; i < MOST_PINNED; i++) {
        if (pinned[i].data == data) {
            pinned[i].data = NULL;
            pinned[i].nbytes = 0;
        }
    }
    free(data);
    end();
    return cudaSuccess;
}

cudaError_t
cudaPointerGetAttributes(struct cudaPointerAttributes *found,
                         const void *address)
{
    begin();
    *found = (struct cudaPointerAttributes){
        .type = is_of_device(address) ? cudaMemoryTypeDevice
                : is_pinned(address)  ? cudaMemoryTypeHost
                                      : cudaMemoryTypeUnregistered,
    };
    end();
    return cudaSuccess;
}

cudaError_t
cudaMemsetAsync(void *data, int value, size_t nbytes, cudaStream_t stream)
{
    begin();
    queue_fill(index_of(stream), data, value, nbytes);
    end();
    return cudaSuccess;
}

static int
is_pageable(const void *address)
{
    return !is_of_device(address) && !is_pinned(address);
}

static int waiting_copies;

int
late_cuda_waiting_copies(void)
{
    return waiting_copies;
}

/* As in CUDA, a copy from or to pageable memory returns when it is done. */
cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t nbytes,
                enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    begin();
    int index = index_of(stream);
    if (is_pageable(to) &&
        (!is_idle(index) || (is_blocking(index) && !is_idle(0)))) {
        waiting_copies++;
    }
    queue_copy(index, to, from, nbytes);
    if (is_pageable(to) || is_pageable(from)) {
        drain(index);
    }
    end();
    return cudaSuccess;
}

cudaError_t
cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    begin();
    queue_call(index_of(stream), function, argument);
    end();
    return cudaSuccess;
}

cudaError_t
cudaMemGetInfo(size_t *unused, size_t *total)
{
    uint64_t reserved, used;
    begin();
    count_memory(&reserved, &used);
    end();
    *total = (size_t)1 << 34;
    *unused = reserved < *total ? *total - reserved : 0;
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *found, int device)
{
    (void)device;
    *found = (struct cudaDeviceProp){
        .name = "late",
        .totalGlobalMem = (size_t)1 << 34,
        .major = 9,
        .multiProcessorCount = 20,
        .warpSize = 32,
        .l2CacheSize = 1 << 20,
    };
    return cudaSuccess;
}

static int
absent(void)
{
    return cudaErrorNotSupported;
}

#pragma GCC diagnostic ignored "-Wattribute-alias"
#define ABSENT(name) \
    extern __typeof__(name) name __attribute__((alias("absent")));

ABSENT(cudaDeviceCanAccessPeer)
ABSENT(cudaDeviceGetAttribute)
ABSENT(cudaEventRecordWithFlags)
ABSENT(cudaGraphDebugDotPrint)
ABSENT(cudaGraphDestroy)
ABSENT(cudaGraphExecDestroy)
ABSENT(cudaGraphExecUpdate)
ABSENT(cudaGraphGetNodes)
ABSENT(cudaGraphInstantiateWithFlags)
ABSENT(cudaGraphLaunch)
ABSENT(cudaGraphUpload)
ABSENT(cudaHostRegister)
ABSENT(cudaHostUnregister)
ABSENT(cudaIpcGetEventHandle)
ABSENT(cudaIpcOpenEventHandle)
ABSENT(cudaMemPoolDestroy)
ABSENT(cudaMemPoolSetAccess)
ABSENT(cudaMemPoolTrimTo)
ABSENT(cudaMemcpyPeerAsync)
ABSENT(cudaStreamBeginCapture)
ABSENT(cudaStreamEndCapture)
ABSENT(cudaStreamWaitEvent)
