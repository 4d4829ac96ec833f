/* The pools (cudaMemPool_t) from which device memory is allocated, one per
 * device. */
#ifndef PYSTREAMS_CUDA_POOL_H
#define PYSTREAMS_CUDA_POOL_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#include <pystreams/backend.h>

/* cuda_pool_find gets the device's pool; the first call creates it.
 * cuda_pool_exists returns whether it was created. */
cudaError_t cuda_pool_find(int device, cudaMemPool_t *pool);
bool cuda_pool_exists(int device);

/* Get the number of bytes of freed memory that the device's pool keeps. */
cudaError_t cuda_pool_idle(int device, uint64_t *nbytes);

/* Give the device `peer` access to the memory in the pool of `device`.
 * Without access, copies between the two devices are staged, at a tenth of the
 * rate.  Creates no context on either device.  Returns
 * cudaErrorPeerAccessUnsupported if the devices do not support the access, or
 * if cuda_pool_close has denied it. */
cudaError_t cuda_pool_open(int device, int peer);

/* cuda_pool_close takes the access away from `peer`, and makes later calls to
 * cuda_pool_open for the two devices fail.  cuda_pool_permit gives the access
 * again, and lets such calls succeed. */
cudaError_t cuda_pool_close(int device, int peer);
cudaError_t cuda_pool_permit(int device, int peer);

/* Like the member pool_trim, but does not wait for work first.  So freed
 * memory stays reserved if the driver has not noticed yet that the work before
 * the free is done. */
ps_status cuda_pool_reduce(int device, uint64_t nbytes);

/* Returns whether the device's pool has a threshold (see pool_set_threshold).
 * If it has one, a wait for the device's work must make the driver return
 * freed memory to the device. */
bool cuda_pool_is_bounded(int device);

#endif
