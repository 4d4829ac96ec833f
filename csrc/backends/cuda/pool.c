/* The pools from which device memory is allocated.
 *
 * Each device has a pool of this library's own, which keeps freed memory.  The
 * driver's default pool is not used, because other libraries use it, too, and
 * because it returns its memory to the driver at every synchronization. */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"
#include "table.h"

static _Atomic(cudaMemPool_t) pools[CUDA_DEVICES];

/* A mask of the devices whose pools have a threshold. */
static _Atomic uint64_t bounded;

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
    /* The difference may be negative, because other threads may allocate or
     * free between the two calls. */
    *nbytes = reserved > used ? reserved - used : 0;
    return error;
}

/* For each device: a mask of the peers that have access to its pool, and a
 * mask of those to which the program has denied the access. */
static _Atomic uint64_t opened[CUDA_DEVICES], denied[CUDA_DEVICES];

/* Held while a peer's access and its bits above change.  Without this mutex, a
 * copy on one thread could find that the access is not denied, and give the
 * access just after another thread has taken it away. */
static pthread_mutex_t access_mutex = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t
pool_set_access(int device, int peer, enum cudaMemAccessFlags flags)
{
    struct cudaMemAccessDesc access = {
        .location = {.type = cudaMemLocationTypeDevice, .id = peer},
        .flags = flags,
    };
    cudaMemPool_t pool;
    int reachable;

    cudaError_t error = cudaDeviceCanAccessPeer(&reachable, peer, device);
    if (error == cudaSuccess && !reachable) {
        error = cudaErrorPeerAccessUnsupported;
    }
    if (error == cudaSuccess) {
        error = cuda_pool_find(device, &pool);
    }
    return error == cudaSuccess ? cudaMemPoolSetAccess(pool, &access, 1)
                                : error;
}

/* Give the peer access, unless it was denied.  The caller holds
 * access_mutex. */
static cudaError_t
open_locked(int device, int peer)
{
    uint64_t bit = UINT64_C(1) << peer;

    if (atomic_load(&denied[device]) & bit) {
        return cudaErrorPeerAccessUnsupported;
    }
    if (atomic_load(&opened[device]) & bit) {
        return cudaSuccess;
    }
    cudaError_t error =
        pool_set_access(device, peer, cudaMemAccessFlagsProtReadWrite);
    if (error == cudaSuccess) {
        atomic_fetch_or(&opened[device], bit);
    }
    return error;
}

cudaError_t
cuda_pool_open(int device, int peer)
{
    uint64_t bit = UINT64_C(1) << peer;
    cudaError_t error = cudaSuccess;

    /* `denied` need not be checked here, because cuda_pool_close also clears
     * the bit in `opened`. */
    if (!(atomic_load(&opened[device]) & bit)) {
        pthread_mutex_lock(&access_mutex);
        error = open_locked(device, peer);
        pthread_mutex_unlock(&access_mutex);
    }
    return error;
}

cudaError_t
cuda_pool_close(int device, int peer)
{
    uint64_t bit = UINT64_C(1) << peer;

    pthread_mutex_lock(&access_mutex);
    /* Remove this bit first: then a copy that begins before the access is
     * gone waits for the mutex, and learns that the access is denied. */
    uint64_t before = atomic_fetch_and(&opened[device], ~bit);
    cudaError_t error =
        pool_set_access(device, peer, cudaMemAccessFlagsProtNone);
    if (error == cudaSuccess) {
        atomic_fetch_or(&denied[device], bit);
    }
    else {
        atomic_fetch_or(&opened[device], before & bit);
    }
    pthread_mutex_unlock(&access_mutex);
    return error;
}

cudaError_t
cuda_pool_permit(int device, int peer)
{
    pthread_mutex_lock(&access_mutex);
    atomic_fetch_and(&denied[device], ~(UINT64_C(1) << peer));
    cudaError_t error = open_locked(device, peer);
    pthread_mutex_unlock(&access_mutex);
    return error;
}

bool
cuda_pool_exists(int device)
{
    return atomic_load(&pools[device]) != NULL;
}

/* ---- Members ---- */

static cudaError_t
pool_usage(cudaMemPool_t pool, uint64_t *reserved, uint64_t *peak)
{
    cudaError_t error = cudaMemPoolGetAttribute(
        pool, cudaMemPoolAttrReservedMemCurrent, reserved);

    return error == cudaSuccess
               ? cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh,
                                         peak)
               : error;
}

ps_status
cuda_pool_usage(const struct ps_backend *backend, int device,
                uint64_t *reserved, uint64_t *peak)
{
    cudaMemPool_t pool = atomic_load(&pools[device]);
    uint64_t now = 0, most = 0;
    ps_status status = pool == NULL
                           ? PS_SUCCESS
                           : ON_DEVICE(device, pool_usage(pool, &now, &most));

    if (status == PS_SUCCESS) {
        *reserved = now;
        *peak = most;
    }
    return status;
}

ps_status
cuda_pool_reset_peak(const struct ps_backend *backend, int device)
{
    cudaMemPool_t pool = atomic_load(&pools[device]);
    uint64_t zero = 0; /* the driver accepts no other value */

    return pool == NULL
               ? PS_SUCCESS
               : ON_DEVICE(device,
                           cudaMemPoolSetAttribute(
                               pool, cudaMemPoolAttrReservedMemHigh, &zero));
}

ps_status
cuda_pool_reduce(int device, uint64_t nbytes)
{
    cudaMemPool_t pool = atomic_load(&pools[device]);

    /* The driver rounds the size up: UINT64_MAX would become 0, and the pool
     * would lose all of its unused memory. */
    nbytes = nbytes < INT64_MAX ? nbytes : INT64_MAX;
    return pool == NULL ? PS_SUCCESS
                        : ON_DEVICE(device, cudaMemPoolTrimTo(pool, nbytes));
}

static cudaError_t
pool_set_threshold(int device, uint64_t nbytes)
{
    cudaMemPool_t pool;
    cudaError_t error = cuda_pool_find(device, &pool);

    return error != cudaSuccess
               ? error
               : cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold,
                                         &nbytes);
}

ps_status
cuda_pool_set_threshold(const struct ps_backend *backend, int device,
                        uint64_t nbytes)
{
    uint64_t mask = UINT64_C(1) << device;
    ps_status status = ON_DEVICE(device, pool_set_threshold(device, nbytes));

    if (status == PS_SUCCESS && nbytes != UINT64_MAX) {
        atomic_fetch_or(&bounded, mask);
    }
    else if (status == PS_SUCCESS) {
        atomic_fetch_and(&bounded, ~mask);
    }
    return status;
}

bool
cuda_pool_is_bounded(int device)
{
    return (atomic_load_explicit(&bounded, memory_order_relaxed) >> device) &
           1;
}
