/* Side streams, which only wait for events. */
#ifndef PYSTREAMS_CUDA_SIDE_H
#define PYSTREAMS_CUDA_SIDE_H

#include <pystreams/backend.h>

#include "driver.h"

struct cuda_side;

/* Take a side stream on which to wait for the event: an idle one, or one with
 * waits for earlier records of the event whose notifications were cancelled.
 * The device's context is current.  Statuses: PS_ERROR_NOT_READY if at least
 * `most` such waits are pending, PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_side_find(int device, ps_handle event, unsigned most,
                         struct cuda_side **side);

CUstream cuda_side_stream(const struct cuda_side *side);

/* Give it back, idle or waiting. */
void cuda_side_release(struct cuda_side *side);

/* The event is destroyed, and its handle may become another event's. */
void cuda_side_forget(int device, ps_handle event);

#endif
