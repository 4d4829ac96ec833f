/* The pools that the CUDA backend's device memory comes from, one a device.
 * They are this library's own and keep what is free: the default pool is
 * other libraries' too, and gives it back at every synchronization. */
#ifndef PYSTREAMS_CUDA_POOL_H
#define PYSTREAMS_CUDA_POOL_H

#include <cuda_runtime_api.h>

#include <stdint.h>

/* The device's pool, made when it is first asked for. */
cudaError_t cuda_pool_find(int device, cudaMemPool_t *pool);

/* How much the device's pool keeps that nobody uses. */
cudaError_t cuda_pool_idle(int device, uint64_t *nbytes);

/* Let peer reach the memory of device's pool, or copies between the two are
 * staged, at a tenth of the rate; cudaErrorPeerAccessUnsupported where it
 * cannot.  Makes no context on either. */
cudaError_t cuda_pool_open(int device, int peer);

/* Let work on a stream of the device reach what is at an address, where it
 * can, and tell what it is. */
cudaError_t cuda_pool_reach(int device, const void *address,
                            struct cudaPointerAttributes *found);

#endif
