/* Device memory that processes share.  It is implemented with the driver's
 * virtual memory management (cuMemCreate).  Such memory has a file descriptor,
 * with which another process can import and map the memory.  The memory exists
 * as long as any process has it mapped.  cudaIpcGetMemHandle is not used,
 * because the memory that it shares is freed when the process that allocated
 * it ends.
 *
 * The rule: a handle, and all data from another process, may be any bytes.  So
 * the driver must check that a descriptor refers to shared device memory
 * before the memory is mapped. */
#include <cuda_runtime_api.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <unistd.h>

#include "driver.h"
#include "offers.h"
#include "pool.h"
#include "table.h"

static const char magic[8] = "pscudam1";

/* The contents of an interprocess handle.  It names the device by its UUID,
 * because a device may have different indices in two processes. */
struct token {
    char magic[sizeof(magic)];
    CUuuid device;
    uint64_t nonce[4];
    char socket[CUDA_SOCKET_NAME];
};

_Static_assert(sizeof(struct token) == PS_IPC_HANDLE_BYTES,
               "a token fills a handle");

struct mapping {
    CUdeviceptr first;
    size_t nbytes; /* a multiple of the driver's granularity */
    int device;
    _Atomic uint64_t peers; /* a mask of the other devices that have access */
    /* The offer of the memory's descriptor.  NULL if another process allocated
     * the memory. */
    struct cuda_offer *offer;
    LIST_ENTRY(mapping) neighbours;
};

/* Guards the list `mappings`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, mapping) mappings;

static CUmemAllocationProp
properties_on(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

/* Round nbytes up to a size that the driver can allocate and map.  Returns
 * PS_ERROR_NOT_SUPPORTED if the device cannot share memory. */
static ps_status
round_up(int device, size_t nbytes, size_t *rounded)
{
    CUmemAllocationProp wanted = properties_on(device);
    size_t granularity;
    int supported;
    ps_status status = cuda_driver.device_attribute(
        &supported,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        device);

    if (status == PS_SUCCESS && !supported) {
        status = PS_ERROR_NOT_SUPPORTED;
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.memory_granularity(
            &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    }
    if (status == PS_SUCCESS && nbytes > SIZE_MAX - granularity) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    if (status == PS_SUCCESS) {
        *rounded = (nbytes + granularity - 1) / granularity * granularity;
    }
    return status;
}

static ps_status
set_access(const struct mapping *mapping, int device)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return cuda_driver.memory_access(mapping->first, mapping->nbytes, &access,
                                     1);
}

/* Reserve an address range, and map the memory there. */
static ps_status
map(struct mapping *mapping, CUmemGenericAllocationHandle memory)
{
    ps_status status =
        cuda_driver.address_reserve(&mapping->first, mapping->nbytes, 0, 0, 0);

    if (status != PS_SUCCESS) {
        return status;
    }
    status =
        cuda_driver.memory_map(mapping->first, mapping->nbytes, 0, memory, 0);
    if (status == PS_SUCCESS) {
        status = set_access(mapping, mapping->device);
        if (status != PS_SUCCESS) {
            cuda_driver.memory_unmap(mapping->first, mapping->nbytes);
        }
    }
    if (status != PS_SUCCESS) {
        cuda_driver.address_free(mapping->first, mapping->nbytes);
    }
    return status;
}

static void
add(struct mapping *mapping, void **data)
{
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&mappings, mapping, neighbours);
    pthread_mutex_unlock(&lock);
    *data = (void *)mapping->first;
}

static struct mapping *
find_locked(const void *address)
{
    CUdeviceptr wanted = (CUdeviceptr)address;
    struct mapping *mapping;

    LIST_FOREACH (mapping, &mappings, neighbours) {
        if (wanted - mapping->first < mapping->nbytes) {
            break;
        }
    }
    return mapping;
}

/* ---- Allocating ---- */

/* Allocate memory, get its descriptor, and offer the descriptor to other
 * processes. */
static ps_status
create(struct mapping *mapping, size_t nbytes, struct token *token,
       CUmemGenericAllocationHandle *memory)
{
    CUmemAllocationProp wanted = properties_on(mapping->device);
    struct cuda_payload payload = {.nbytes = nbytes};
    int file;

    if (getrandom(payload.nonce, sizeof(payload.nonce), 0) !=
        (ssize_t)sizeof(payload.nonce)) {
        return PS_ERROR_UNKNOWN;
    }
    ps_status status =
        cuda_driver.memory_create(memory, mapping->nbytes, &wanted, 0);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = cuda_driver.memory_export(
        &file, *memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status == PS_SUCCESS) {
        fcntl(file, F_SETFD, FD_CLOEXEC);
        memcpy(token->magic, magic, sizeof(magic));
        memcpy(token->nonce, payload.nonce, sizeof(payload.nonce));
        status =
            cuda_offer_create(file, &payload, token->socket, &mapping->offer);
    }
    if (status != PS_SUCCESS) {
        cuda_driver.memory_release(*memory);
    }
    /* If the process has too many open files, the driver returns
     * PS_ERROR_OPERATING_SYSTEM. */
    return status == PS_ERROR_OPERATING_SYSTEM ? PS_ERROR_OUT_OF_MEMORY
                                               : status;
}

static ps_status
allocate(struct mapping *mapping, size_t nbytes, struct token *token)
{
    CUmemGenericAllocationHandle memory;
    size_t unused, total;
    ps_status status = cudaMemGetInfo(&unused, &total);

    if (status == PS_SUCCESS && nbytes > total) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.device_uuid(&token->device, mapping->device);
    }
    if (status == PS_SUCCESS) {
        status = round_up(mapping->device, nbytes, &mapping->nbytes);
    }
    if (status == PS_SUCCESS) {
        status = create(mapping, nbytes, token, &memory);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    status = map(mapping, memory);
    /* If map() succeeded, the mapping and the descriptor keep the memory
     * allocated.  If it failed, the memory is not needed. */
    cuda_driver.memory_release(memory);
    if (status != PS_SUCCESS) {
        cuda_offer_withdraw(mapping->offer);
    }
    return status;
}

ps_status
cuda_shared_allocate(const struct ps_backend *backend, int device,
                     size_t nbytes, unsigned char handle[PS_IPC_HANDLE_BYTES],
                     void **data)
{
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    struct token token;

    (void)backend;
    if (mapping == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    mapping->device = device;
    ps_status status = ON_DEVICE(device, allocate(mapping, nbytes, &token));
    if (status == PS_ERROR_OUT_OF_MEMORY &&
        cuda_pool_reduce(device, 0) == PS_SUCCESS) {
        /* Try again, because cuda_pool_reduce may have returned freed memory
         * of the pool to the driver. */
        status = ON_DEVICE(device, allocate(mapping, nbytes, &token));
    }
    if (status != PS_SUCCESS) {
        free(mapping);
        return status;
    }
    memcpy(handle, &token, sizeof(token));
    add(mapping, data);
    return PS_SUCCESS;
}

/* ---- Opening ---- */

/* Convert a driver error to a status.  If the descriptor does not refer to
 * shared device memory, or if the memory's size is not the mapping's size, the
 * driver returns one of the errors below. */
static ps_status
open_status(ps_status status)
{
    switch (status) {
    case PS_ERROR_INVALID_VALUE:
    case PS_ERROR_INVALID_DEVICE:
    case PS_ERROR_OPERATING_SYSTEM:
    case PS_ERROR_NOT_SUPPORTED:
    case PS_ERROR_UNKNOWN:
        return PS_ERROR_INVALID_HANDLE;
    default:
        return status;
    }
}

/* Check that the memory is on the mapping's device. */
static ps_status
check_memory(const struct mapping *mapping,
             CUmemGenericAllocationHandle memory)
{
    CUmemAllocationProp found;
    ps_status status = cuda_driver.memory_properties(&found, memory);

    if (status == PS_SUCCESS &&
        (found.type != CU_MEM_ALLOCATION_TYPE_PINNED ||
         found.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
         found.location.id != mapping->device)) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    return status;
}

static ps_status
import(struct mapping *mapping, size_t nbytes, int file)
{
    CUmemGenericAllocationHandle memory;
    ps_status status = round_up(mapping->device, nbytes, &mapping->nbytes);

    if (status != PS_SUCCESS) {
        return status;
    }
    status =
        cuda_driver.memory_import(&memory, (void *)(uintptr_t)file,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (status == PS_SUCCESS) {
        status = check_memory(mapping, memory);
        if (status == PS_SUCCESS) {
            status = map(mapping, memory);
        }
        cuda_driver.memory_release(memory);
    }
    return open_status(status);
}

/* Get the descriptor of the memory from the process that offers it.  `token`
 * is the memory's interprocess handle. */
static ps_status
take(int device, const struct token *token, size_t nbytes, int *file)
{
    struct cuda_payload payload;
    CUuuid own;
    ps_status status = cuda_driver.init(0);

    if (memcmp(token->magic, magic, sizeof(magic)) != 0) {
        return PS_ERROR_INVALID_VALUE;
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.device_uuid(&own, device);
    }
    if (status == PS_SUCCESS &&
        memcmp(&own, &token->device, sizeof(own)) != 0) {
        status = PS_ERROR_INVALID_DEVICE;
    }
    if (status == PS_SUCCESS) {
        status = cuda_offer_take(token->socket, &payload, file);
    }
    if (status == PS_SUCCESS &&
        (memcmp(payload.nonce, token->nonce, sizeof(payload.nonce)) != 0 ||
         payload.nbytes != nbytes)) {
        close(*file);
        status = PS_ERROR_INVALID_HANDLE;
    }
    return status;
}

ps_status
cuda_shared_open(const struct ps_backend *backend, int device,
                 const unsigned char handle[PS_IPC_HANDLE_BYTES],
                 size_t nbytes, void **data)
{
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    struct token token;
    int file;

    (void)backend;
    memcpy(&token, handle, sizeof(token));
    ps_status status = mapping != NULL ? take(device, &token, nbytes, &file)
                                       : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_SUCCESS) {
        mapping->device = device;
        status = ON_DEVICE(device, import(mapping, nbytes, file));
        close(file);
    }
    if (status != PS_SUCCESS) {
        free(mapping);
        return status;
    }
    add(mapping, data);
    return PS_SUCCESS;
}

/* ---- Allocated and opened memory ---- */

static ps_status
unmap(const struct mapping *mapping)
{
    ps_status status =
        cuda_driver.memory_unmap(mapping->first, mapping->nbytes);

    return status != PS_SUCCESS
               ? status
               : cuda_driver.address_free(mapping->first, mapping->nbytes);
}

ps_status
cuda_shared_free(const struct ps_backend *backend, int device, void *data)
{
    (void)backend;
    pthread_mutex_lock(&lock);
    struct mapping *mapping = find_locked(data);
    LIST_REMOVE(mapping, neighbours);
    pthread_mutex_unlock(&lock);
    cuda_offer_withdraw(mapping->offer);
    ps_status status = ON_DEVICE(device, unmap(mapping));
    free(mapping);
    return status;
}

ps_status
cuda_shared_reach(const void *address, int peer)
{
    uint64_t bit = UINT64_C(1) << peer;
    int reachable;

    pthread_mutex_lock(&lock);
    struct mapping *mapping = find_locked(address);
    pthread_mutex_unlock(&lock);
    if (mapping == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (atomic_load(&mapping->peers) & bit) {
        return PS_SUCCESS;
    }
    ps_status status =
        cudaDeviceCanAccessPeer(&reachable, peer, mapping->device);
    if (status == PS_SUCCESS && !reachable) {
        status = cudaErrorPeerAccessUnsupported;
    }
    if (status == PS_SUCCESS) {
        status = set_access(mapping, peer);
    }
    if (status == PS_SUCCESS) {
        atomic_fetch_or(&mapping->peers, bit);
    }
    return status;
}
