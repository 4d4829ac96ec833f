/* The functions that the files of this folder share. */
#ifndef PYSTREAMS_CUDA_TABLE_H
#define PYSTREAMS_CUDA_TABLE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* A function for a member of the table, with the type that backend.h
 * declares. */
#define CUDA_MEMBER(name) \
    __typeof__(*((const struct ps_backend *)NULL)->name) cuda_##name

/* ---- table.c ---- */

/* The member stream_query, for a current context and without invalidating a
 * capture: PS_ERROR_CAPTURE_UNSUPPORTED on a captured stream. */
ps_status cuda_stream_state(ps_handle stream);

/* ---- poll.c ---- */

CUDA_MEMBER(notify_cancel);
CUDA_MEMBER(shutdown);

/* ---- notify.c ---- */

CUDA_MEMBER(stream_notify);
CUDA_MEMBER(event_notify);

/* Declare that others may record the event.  PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_event_share(ps_handle event);

/* Call before the event is recorded again, if any event is polled.  If this
 * one is, a side stream takes its place.  Statuses: of creating a stream and
 * an event. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Call when the program destroys the event.  If true, the backend destroys it
 * later; otherwise the caller does so now. */
bool cuda_event_forget(int device, ps_handle event);

/* ---- table.c ---- */

/* PS_ERROR_CAPTURE_UNSUPPORTED if the stream is being captured.  Call before a
 * query of a stream other than for its work, which would make the capture
 * invalid.  Answers. */
ps_status cuda_stream_check_uncaptured(ps_handle stream);

/* ---- gate.c ---- */

CUDA_MEMBER(stream_gate);
CUDA_MEMBER(gate_open);

/* ---- wait.c ---- */

/* The member device_synchronize with a limit. */
ps_status cuda_device_wait(int device, const struct ps_limit *limit);

/* Wait for the device if its work ends within a millisecond.  The driver
 * returns freed memory only after a call that waited for the work before; a
 * query is no such call, nor is a wait for the event of a context.
 * Invalidates captures.  May block, for work that is queued meanwhile. */
void cuda_device_observe(int device);

/* Wait for the stream, whose context is current, unless it is being captured.
 * Call before a call in which the driver would wait for the stream with its
 * locks held, and so block the threads that the stream's work depends on.  May
 * block. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* ---- partition.c ---- */

CUDA_MEMBER(partition_create);
CUDA_MEMBER(partition_destroy);
CUDA_MEMBER(partition_stream_create);

/* ---- memory.c ---- */

CUDA_MEMBER(memory_allocate);
CUDA_MEMBER(memory_free);
CUDA_MEMBER(pinned_allocate);
CUDA_MEMBER(pinned_free);
CUDA_MEMBER(memory_copy);
CUDA_MEMBER(memory_fill);
CUDA_MEMBER(memory_info);
CUDA_MEMBER(peer_accessible);
CUDA_MEMBER(peer_access);
CUDA_MEMBER(memory_device);
CUDA_MEMBER(pool_usage);
CUDA_MEMBER(pool_reset_peak);
CUDA_MEMBER(pool_trim);
CUDA_MEMBER(pool_set_threshold);
CUDA_MEMBER(host_register);
CUDA_MEMBER(host_unregister);
CUDA_MEMBER(memory_fill_items);

/* The member pool_trim, except for memory whose free the driver does not know
 * to be done.  Waits for no work. */
ps_status cuda_pool_reduce(int device, uint64_t nbytes);

/* Whether the driver must return memory at waits. */
bool cuda_pool_is_bounded(int device);

/* ---- shared.c ---- */

CUDA_MEMBER(shared_allocate);
CUDA_MEMBER(shared_open);
CUDA_MEMBER(shared_free);

/* Give a device access to the interprocess memory at an address, which work
 * uses and another device has.  Creates no context.
 * Statuses: PS_ERROR_INVALID_HANDLE if that is no interprocess memory,
 * cudaErrorPeerAccessUnsupported if the devices don't support it. */
ps_status cuda_shared_reach(const void *address, int peer);

/* ---- sleep.c ---- */

CUDA_MEMBER(sleep);

/* ---- ipc.c ---- */

CUDA_MEMBER(event_export);
CUDA_MEMBER(event_open);

/* ---- graph.c ---- */

CUDA_MEMBER(stream_capturing);
CUDA_MEMBER(capture_begin);
CUDA_MEMBER(capture_end);
CUDA_MEMBER(capture_mode_exchange);
CUDA_MEMBER(event_record_external);
CUDA_MEMBER(stream_wait_external);
CUDA_MEMBER(graph_instantiate);
CUDA_MEMBER(executable_destroy);
CUDA_MEMBER(graph_destroy);
CUDA_MEMBER(graph_print);
CUDA_MEMBER(graph_upload);
CUDA_MEMBER(graph_instantiate_with);
CUDA_MEMBER(graph_update);
CUDA_MEMBER(capture_graph);

/* ---- graph_nodes.c ---- */

CUDA_MEMBER(graph_nodes);

/* The index of the node, a CUgraphNode, as graph_nodes lists it; SIZE_MAX if
 * it is NULL or unknown. */
size_t cuda_node_index(int device, ps_handle graph, const void *node);

/* ---- graph_gate.c ---- */

CUDA_MEMBER(stream_capture);
CUDA_MEMBER(capture_gate);
CUDA_MEMBER(graph_launch);

/* ---- activity.c ---- */

CUDA_MEMBER(activities_begin);
CUDA_MEMBER(activities_flush);
CUDA_MEMBER(activities_end);
CUDA_MEMBER(stream_number);

#endif
