/* Gates on CUDA streams: marks say that the stream has come to one, and a wait
 * for a word of pinned memory holds the stream until it is opened. */
#ifndef PYSTREAMS_CUDA_GATE_H
#define PYSTREAMS_CUDA_GATE_H

#include <pystreams/backend.h>

/* Two members of the table.  Other work that another thread queues on the
 * stream meanwhile may come between the marks and the wait. */
ps_status cuda_stream_gate(const struct ps_backend *backend, int device,
                           ps_handle stream, ps_notification_function reached,
                           void *argument, ps_handle *gate);
ps_status
cuda_gate_open(const struct ps_backend *backend, int device, ps_handle gate);

#endif
