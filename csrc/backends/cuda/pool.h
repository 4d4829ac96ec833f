/* The pools of the devices' memory. */
#ifndef PYSTREAMS_CUDA_POOL_H
#define PYSTREAMS_CUDA_POOL_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#include <pystreams/backend.h>

/* The device's pool, created at the first use. */
cudaError_t cuda_pool_find(int device, cudaMemPool_t *pool);
bool cuda_pool_exists(int device);

/* The bytes of freed memory that the device's pool keeps. */
cudaError_t cuda_pool_idle(int device, uint64_t *nbytes);

/* Give peer access to the memory of device's pool.  Otherwise copies between
 * the two are staged, at a tenth of the rate.  Creates no context on either.
 * Returns cudaErrorPeerAccessUnsupported if the devices don't support it, or
 * if the program has denied it. */
cudaError_t cuda_pool_open(int device, int peer);

/* The first denies peer the access; the second ends that, and gives it. */
cudaError_t cuda_pool_close(int device, int peer);
cudaError_t cuda_pool_permit(int device, int peer);

/* The member pool_trim, except that memory is left out if the driver does not
 * know yet that its free is over.  Waits for no work. */
ps_status cuda_pool_reduce(int device, uint64_t nbytes);

/* Whether waits are to have the driver give memory back. */
bool cuda_pool_is_bounded(int device);

#endif
