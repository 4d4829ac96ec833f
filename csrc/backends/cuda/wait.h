/* Waits for CUDA's work that keep no other thread out of the driver. */
#ifndef PYSTREAMS_CUDA_WAIT_H
#define PYSTREAMS_CUDA_WAIT_H

#include <pystreams/backend.h>

/* Call before what makes the driver wait for the stream, whose context is
 * current: it would keep other threads out meanwhile, those that the stream
 * waits for, too.  May block; does nothing to a capture. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* The member device_synchronize with a limit. */
ps_status cuda_device_wait(int device, const struct ps_limit *limit);

#endif
