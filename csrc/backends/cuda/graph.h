/* The members of the CUDA table that capture and that launch graphs. */
#ifndef PYSTREAMS_CUDA_GRAPH_H
#define PYSTREAMS_CUDA_GRAPH_H

#include <pystreams/backend.h>

ps_status cuda_stream_capturing(const struct ps_backend *backend, int device,
                                ps_handle stream, int *capturing);
ps_status cuda_capture_begin(const struct ps_backend *backend, int device,
                             ps_handle stream, enum ps_capture_mode mode);
ps_status
cuda_capture_end(const struct ps_backend *backend, int device,
                 ps_handle stream, ps_handle *graph, size_t *operations);
ps_status cuda_capture_mode_exchange(const struct ps_backend *backend,
                                     enum ps_capture_mode *mode);
ps_status
cuda_event_record_external(const struct ps_backend *backend, int device,
                           ps_handle event, ps_handle stream);
ps_status
cuda_stream_wait_external(const struct ps_backend *backend, int device,
                          ps_handle stream, ps_handle event);
ps_status cuda_graph_instantiate(const struct ps_backend *backend, int device,
                                 ps_handle graph, ps_handle *executable);
ps_status cuda_graph_launch(const struct ps_backend *backend, int device,
                            ps_handle executable, ps_handle stream);
ps_status cuda_executable_destroy(const struct ps_backend *backend, int device,
                                  ps_handle executable);
ps_status cuda_graph_destroy(const struct ps_backend *backend, int device,
                             ps_handle graph);
ps_status cuda_graph_print(const struct ps_backend *backend, int device,
                           ps_handle graph, const char *path);

#endif
