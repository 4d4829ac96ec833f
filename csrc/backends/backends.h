/* The backends in this library, one exported symbol each. */
#ifndef PYSTREAMS_BACKENDS_H
#define PYSTREAMS_BACKENDS_H

#include <pystreams/backend.h>

/* cudart, linked in; absent from a build without CUDA. */
extern const struct ps_backend ps_cuda_backend;

/* A new embedded CPU engine that shows device_count (> 0) devices of the type
 * named; marked PS_BACKEND_EMULATED when the type is not PS_DEVICE_CPU.  Such
 * a device has so many bytes of memory; 0: a share of the machine's.
 * Starts no thread before work is queued.  The table lives until the process
 * ends, and so must name.  NULL when out of memory. */
const struct ps_backend *ps_cpu_backend(const char *name, int device_type,
                                        int device_count, uint64_t memory);

#endif
