/* Work that does nothing for a while: a kernel that looks at the clock. */
#ifndef PYSTREAMS_CUDA_SLEEP_H
#define PYSTREAMS_CUDA_SLEEP_H

#include <pystreams/backend.h>

/* A member of the table. */
ps_status cuda_sleep(const struct ps_backend *backend, int device,
                     ps_handle stream, uint64_t cycles);

#endif
