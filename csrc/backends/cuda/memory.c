/* The memory of CUDA devices: allocation, copies, fills. */
#include <cuda_runtime_api.h>

#include "captures.h"
#include "driver.h"
#include "pool.h"
#include "table.h"

/* Give the device `peer` access to the memory at an address on `device`.  If
 * the memory is not interprocess memory, it may be memory of the device's
 * pool, so this gives access to the pool. */
static cudaError_t
memory_open(const void *address, int device, int peer)
{
    ps_status status = cuda_shared_reach(address, peer);

    return status == PS_ERROR_INVALID_HANDLE ? cuda_pool_open(device, peer)
                                             : (cudaError_t)status;
}

/* Get the attributes of the memory at an address.  If it is another device's
 * memory, and the two devices support peer access, give `device` access to
 * it. */
static cudaError_t
memory_reach(int device, const void *address,
             struct cudaPointerAttributes *found)
{
    cudaError_t error = cudaPointerGetAttributes(found, address);
    if (error == cudaSuccess && found->type == cudaMemoryTypeDevice &&
        found->device != device) {
        error = memory_open(address, found->device, device);
    }
    return error == cudaErrorPeerAccessUnsupported ? cudaSuccess : error;
}

/* ---- Members ---- */

static cudaError_t
pool_allocate(int device, ps_handle stream, size_t nbytes, void **data)
{
    cudaMemPool_t pool;
    cudaError_t error = cuda_pool_find(device, &pool);

    return error != cudaSuccess
               ? error
               : cudaMallocFromPoolAsync(data, nbytes, pool,
                                         (cudaStream_t)stream);
}

ps_status
cuda_memory_allocate(const struct ps_backend *backend, int device,
                     ps_handle stream, size_t nbytes, void **data)
{
    void *allocated;
    ps_status status =
        ON_DEVICE(device, pool_allocate(device, stream, nbytes, &allocated));

    if (status == PS_SUCCESS) {
        *data = allocated;
    }
    return status;
}

ps_status
cuda_memory_free(const struct ps_backend *backend, int device,
                 ps_handle stream, void *data)
{
    return ON_DEVICE(device, cudaFreeAsync(data, (cudaStream_t)stream));
}

ps_status
cuda_pinned_allocate(const struct ps_backend *backend, int device,
                     size_t nbytes, void **data)
{
    void *allocated;
    ps_status status = ON_DEVICE(
        device, cudaHostAlloc(&allocated, nbytes, cudaHostAllocPortable));

    if (status == PS_SUCCESS) {
        *data = allocated;
    }
    return status;
}

ps_status
cuda_pinned_free(const struct ps_backend *backend, int device, void *data)
{
    return ON_DEVICE(device, cudaFreeHost(data));
}

static bool
is_pinned(int device, const void *data)
{
    struct cudaPointerAttributes found;

    return ON_DEVICE(device, cudaPointerGetAttributes(&found, data)) ==
               PS_SUCCESS &&
           found.type == cudaMemoryTypeHost;
}

ps_status
cuda_host_register(const struct ps_backend *backend, int device, void *data,
                   size_t nbytes)
{
    ps_status status = ON_DEVICE(
        device, cudaHostRegister(data, nbytes, cudaHostRegisterPortable));

    /* If the driver itself has allocated the pinned memory, it returns
     * PS_ERROR_INVALID_VALUE instead of PS_ERROR_ALREADY_PINNED. */
    if (status == PS_ERROR_INVALID_VALUE &&
        (is_pinned(device, data) ||
         is_pinned(device, (char *)data + nbytes - 1))) {
        status = PS_ERROR_ALREADY_PINNED;
    }
    return status;
}

ps_status
cuda_host_unregister(const struct ps_backend *backend, int device, void *data)
{
    return ON_DEVICE(device, cudaHostUnregister(data));
}

/* Returns whether cudaMemcpyAsync would block until the copy and the work
 * before it are done.  This was measured; CUDA does not document it.  Small
 * copies from pageable memory do not block, because the driver stages them. */
static int
copy_waits(const struct cudaPointerAttributes *to,
           const struct cudaPointerAttributes *from, size_t nbytes)
{
    const size_t room = (size_t)1 << 20;

    return (to->type == cudaMemoryTypeUnregistered &&
            from->type == cudaMemoryTypeDevice) ||
           (from->type == cudaMemoryTypeUnregistered && nbytes > room);
}

static cudaError_t
copy_queue(int device, ps_handle stream, void *destination, const void *source,
           size_t nbytes)
{
    struct cudaPointerAttributes to, from;
    cudaError_t error = memory_reach(device, destination, &to);

    if (error == cudaSuccess) {
        error = memory_reach(device, source, &from);
    }
    if (error == cudaSuccess && copy_waits(&to, &from, nbytes)) {
        error = cuda_stream_drain(device, stream);
    }
    if (error == cudaSuccess && to.type == cudaMemoryTypeDevice &&
        from.type == cudaMemoryTypeDevice && to.device != from.device) {
        error = memory_open(source, from.device, to.device);
        if (error == cudaSuccess) {
            error = memory_open(destination, to.device, from.device);
        }
        if (error == cudaErrorPeerAccessUnsupported) {
            /* Without access, only cudaMemcpyPeerAsync can copy memory of a
             * pool between devices.  It cannot be captured. */
            return cudaMemcpyPeerAsync(destination, to.device, source,
                                       from.device, nbytes,
                                       (cudaStream_t)stream);
        }
    }
    if (error != cudaSuccess) {
        return error;
    }
    return cudaMemcpyAsync(destination, source, nbytes, cudaMemcpyDefault,
                           (cudaStream_t)stream);
}

ps_status
cuda_memory_copy(const struct ps_backend *backend, int device,
                 ps_handle stream, void *destination, const void *source,
                 size_t nbytes)
{
    return ON_DEVICE(device,
                     copy_queue(device, stream, destination, source, nbytes));
}

static cudaError_t
fill_queue(int device, ps_handle stream, void *destination, uint8_t value,
           size_t nbytes)
{
    struct cudaPointerAttributes found;
    cudaError_t error = memory_reach(device, destination, &found);

    return error != cudaSuccess ? error
                                : cudaMemsetAsync(destination, value, nbytes,
                                                  (cudaStream_t)stream);
}

ps_status
cuda_memory_fill(const struct ps_backend *backend, int device,
                 ps_handle stream, void *destination, uint8_t value,
                 size_t nbytes)
{
    return ON_DEVICE(device,
                     fill_queue(device, stream, destination, value, nbytes));
}

/* Queue a fill with items of 2 or 4 bytes.  Uses the driver's functions,
 * because cudart can fill only with single bytes. */
static cudaError_t
fill_items(int device, ps_handle stream, void *destination, uint32_t value,
           size_t size, size_t nbytes)
{
    struct cudaPointerAttributes found;
    CUdeviceptr address = (CUdeviceptr)destination;
    cudaError_t error = memory_reach(device, destination, &found);

    if (error == cudaSuccess && (cuda_driver.memory_fill_16 == NULL ||
                                 cuda_driver.memory_fill_32 == NULL)) {
        error = cudaErrorNotSupported;
    }
    if (error != cudaSuccess) {
        return error;
    }
    int result =
        size == 2 ? cuda_driver.memory_fill_16(address, (unsigned short)value,
                                               nbytes / 2, (CUstream)stream)
                  : cuda_driver.memory_fill_32(address, value, nbytes / 4,
                                               (CUstream)stream);
    return (cudaError_t)result;
}

ps_status
cuda_memory_fill_items(const struct ps_backend *backend, int device,
                       ps_handle stream, void *destination, uint32_t value,
                       size_t size, size_t nbytes)
{
    return ON_DEVICE(
        device, fill_items(device, stream, destination, value, size, nbytes));
}

static cudaError_t
memory_info(int device, uint64_t *unused, size_t *total)
{
    size_t free;
    uint64_t idle;
    cudaError_t error = cudaMemGetInfo(&free, total);

    if (error == cudaSuccess) {
        error = cuda_pool_idle(device, &idle);
    }
    if (error == cudaSuccess) {
        *unused = free + idle < *total ? free + idle : *total;
    }
    return error;
}

ps_status
cuda_memory_info(const struct ps_backend *backend, int device, uint64_t *free,
                 uint64_t *total)
{
    uint64_t unused = 0;
    size_t all = 0;
    ps_status status = ON_DEVICE(device, memory_info(device, &unused, &all));

    if (status == PS_SUCCESS) {
        *free = unused;
        *total = all;
    }
    return status;
}

ps_status
cuda_peer_accessible(const struct ps_backend *backend, int device, int peer,
                     int *accessible)
{
    return cudaDeviceCanAccessPeer(accessible, device, peer);
}

static cudaError_t
peer_access(int device, int peer, bool access)
{
    return access ? cuda_pool_permit(peer, device)
                  : cuda_pool_close(peer, device);
}

ps_status
cuda_peer_access(const struct ps_backend *backend, int device, int peer,
                 int access)
{
    return ON_DEVICE(device, peer_access(device, peer, access != 0));
}

ps_status
cuda_memory_device(const struct ps_backend *backend, int device,
                   const void *address, int *owner)
{
    struct cudaPointerAttributes found;
    ps_status status =
        ON_DEVICE(device, cudaPointerGetAttributes(&found, address));

    if (status != PS_SUCCESS) {
        return status;
    }
    if (found.type != cudaMemoryTypeDevice &&
        found.type != cudaMemoryTypeManaged) {
        return PS_ERROR_INVALID_VALUE;
    }
    *owner = found.device;
    return PS_SUCCESS;
}

ps_status
cuda_pool_trim(const struct ps_backend *backend, int device, uint64_t nbytes)
{
    if (cuda_pool_exists(device) && !cuda_captures_exist()) {
        cuda_device_observe(device);
    }
    return cuda_pool_reduce(device, nbytes);
}
