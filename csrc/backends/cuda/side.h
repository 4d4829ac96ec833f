/* Side streams, which only wait for events. */
#ifndef PYSTREAMS_CUDA_SIDE_H
#define PYSTREAMS_CUDA_SIDE_H

#include <pystreams/backend.h>

#include "driver.h"

struct cuda_side;

/* One that waits for nothing, to wait for the event; or the one on which waits
 * for earlier records of it were given up.  With the device's context current.
 * Statuses: PS_ERROR_NOT_READY if it has at least so many waits already,
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_side_find(int device, ps_handle event, unsigned most,
                         struct cuda_side **side);

CUstream cuda_side_stream(const struct cuda_side *side);

/* Give it up, whether it still waits or not. */
void cuda_side_release(struct cuda_side *side);

/* The event is destroyed: its handle may be another event's from here on. */
void cuda_side_forget(int device, ps_handle event);

#endif
