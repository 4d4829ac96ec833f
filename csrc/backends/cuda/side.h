/* Side streams.  Their only work is to wait for events. */
#ifndef PYSTREAMS_CUDA_SIDE_H
#define PYSTREAMS_CUDA_SIDE_H

#include <pystreams/backend.h>

#include "driver.h"

struct cuda_side;

/* Take a side stream for a wait for the event.  It is idle, or it still waits
 * for earlier records of this event whose notifications were cancelled.  The
 * device's context is current.  Returns PS_ERROR_NOT_READY if `most` such
 * waits are pending; PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_side_find(int device, ps_handle event, unsigned most,
                         struct cuda_side **side);

CUstream cuda_side_stream(const struct cuda_side *side);

/* Give the side stream back, whether it is idle or waits. */
void cuda_side_release(struct cuda_side *side);

/* Call when the event is destroyed: another event may then get its handle. */
void cuda_side_forget(int device, ps_handle event);

#endif
