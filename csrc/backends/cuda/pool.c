/* The CUDA backend's memory pools; pool.h says what for. */
#include "pool.h"

#include <stdatomic.h>

#include "driver.h"

static _Atomic(cudaMemPool_t) pools[CUDA_DEVICES];

cudaError_t
cuda_pool_find(int device, cudaMemPool_t *pool)
{
    struct cudaMemPoolProps properties = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = device},
    };
    uint64_t threshold = UINT64_MAX;
    cudaMemPool_t made, none = NULL;

    *pool = atomic_load(&pools[device]);
    if (*pool != NULL) {
        return cudaSuccess;
    }
    cudaError_t error = cudaMemPoolCreate(&made, &properties);
    if (error != cudaSuccess) {
        return error;
    }
    error = cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold,
                                    &threshold);
    if (error == cudaSuccess &&
        atomic_compare_exchange_strong(&pools[device], &none, made)) {
        *pool = made;
        return cudaSuccess;
    }
    cudaMemPoolDestroy(made);
    *pool = none;
    return error;
}

cudaError_t
cuda_pool_idle(int device, uint64_t *nbytes)
{
    cudaMemPool_t pool = atomic_load(&pools[device]);
    uint64_t reserved = 0, used = 0;
    cudaError_t error = cudaSuccess;

    if (pool != NULL) {
        error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent,
                                        &used);
        if (error == cudaSuccess) {
            error = cudaMemPoolGetAttribute(
                pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
        }
    }
    /* Other threads may have changed it in between. */
    *nbytes = reserved > used ? reserved - used : 0;
    return error;
}

cudaError_t
cuda_pool_open(int device, int peer)
{
    static _Atomic uint64_t opened[CUDA_DEVICES];
    uint64_t bit = UINT64_C(1) << peer;
    cudaMemPool_t pool;
    int reachable;

    if (atomic_load(&opened[device]) & bit) {
        return cudaSuccess;
    }
    cudaError_t error = cudaDeviceCanAccessPeer(&reachable, peer, device);
    if (error == cudaSuccess && !reachable) {
        error = cudaErrorPeerAccessUnsupported;
    }
    if (error == cudaSuccess) {
        error = cuda_pool_find(device, &pool);
    }
    if (error == cudaSuccess) {
        struct cudaMemAccessDesc access = {
            .location = {.type = cudaMemLocationTypeDevice, .id = peer},
            .flags = cudaMemAccessFlagsProtReadWrite,
        };
        error = cudaMemPoolSetAccess(pool, &access, 1);
    }
    if (error == cudaSuccess) {
        atomic_fetch_or(&opened[device], bit);
    }
    return error;
}

cudaError_t
cuda_pool_reach(int device, const void *address,
                struct cudaPointerAttributes *found)
{
    cudaError_t error = cudaPointerGetAttributes(found, address);
    if (error == cudaSuccess && found->type == cudaMemoryTypeDevice &&
        found->device != device) {
        error = cuda_pool_open(found->device, device);
    }
    return error == cudaErrorPeerAccessUnsupported ? cudaSuccess : error;
}
