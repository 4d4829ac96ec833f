/* CUDA events between processes.
 *
 * One rule: cudart keeps no promise about an event whose maker, or whose
 * latest recorder, has destroyed it or died; waits may then never end. */
#ifndef PYSTREAMS_CUDA_IPC_H
#define PYSTREAMS_CUDA_IPC_H

#include <pystreams/backend.h>

/* Two members of the table. */
ps_status
cuda_event_export(const struct ps_backend *backend, int device,
                  ps_handle event, unsigned char handle[PS_IPC_HANDLE_BYTES]);
ps_status cuda_event_open(const struct ps_backend *backend, int device,
                          const unsigned char handle[PS_IPC_HANDLE_BYTES],
                          ps_handle *event);

#endif
