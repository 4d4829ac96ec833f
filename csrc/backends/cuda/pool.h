/* The pools from which device memory is allocated. */
#ifndef PYSTREAMS_CUDA_POOL_H
#define PYSTREAMS_CUDA_POOL_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#include <pystreams/backend.h>

/* cuda_pool_find gets the device's pool, and creates it at the first use. */
cudaError_t cuda_pool_find(int device, cudaMemPool_t *pool);
bool cuda_pool_exists(int device);

/* Get how many bytes of freed memory the device's pool keeps. */
cudaError_t cuda_pool_idle(int device, uint64_t *nbytes);

/* Give `peer` access to the memory of the device's pool.  Without it, copies
 * between the two devices are staged, at a tenth of the rate.  Creates no
 * context on either device.  Returns cudaErrorPeerAccessUnsupported if the
 * devices do not support it, or if the program has denied it. */
cudaError_t cuda_pool_open(int device, int peer);

/* cuda_pool_close denies `peer` the access.  cuda_pool_permit ends that, and
 * gives the access. */
cudaError_t cuda_pool_close(int device, int peer);
cudaError_t cuda_pool_permit(int device, int peer);

/* As the member pool_trim, without waiting for work.  So memory stays if the
 * driver does not know yet that its free is over. */
ps_status cuda_pool_reduce(int device, uint64_t nbytes);

/* Returns whether the pool has a threshold, so that waits must make the driver
 * give memory back. */
bool cuda_pool_is_bounded(int device);

#endif
