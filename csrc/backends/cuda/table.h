/* The functions that the files of this folder share. */
#ifndef PYSTREAMS_CUDA_TABLE_H
#define PYSTREAMS_CUDA_TABLE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* The members of the table that files other than table.c define, file by
 * file. */
#define CUDA_MEMBERS(X)        \
    X(notify_cancel)           \
    X(shutdown)                \
    X(stream_notify)           \
    X(event_notify)            \
    X(stream_gate)             \
    X(gate_open)               \
    X(partition_create)        \
    X(partition_destroy)       \
    X(partition_stream_create) \
    X(memory_allocate)         \
    X(memory_free)             \
    X(pinned_allocate)         \
    X(pinned_free)             \
    X(memory_copy)             \
    X(memory_fill)             \
    X(memory_info)             \
    X(peer_accessible)         \
    X(peer_access)             \
    X(memory_device)           \
    X(pool_usage)              \
    X(pool_reset_peak)         \
    X(pool_trim)               \
    X(pool_set_threshold)      \
    X(host_register)           \
    X(host_unregister)         \
    X(memory_fill_items)       \
    X(shared_allocate)         \
    X(shared_open)             \
    X(shared_free)             \
    X(sleep)                   \
    X(event_export)            \
    X(event_open)              \
    X(stream_capturing)        \
    X(capture_begin)           \
    X(capture_end)             \
    X(capture_mode_exchange)   \
    X(event_record_external)   \
    X(stream_wait_external)    \
    X(graph_instantiate)       \
    X(executable_destroy)      \
    X(graph_destroy)           \
    X(graph_print)             \
    X(graph_upload)            \
    X(graph_instantiate_with)  \
    X(graph_update)            \
    X(capture_graph)           \
    X(graph_nodes)             \
    X(stream_capture)          \
    X(capture_gate)            \
    X(graph_launch)            \
    X(activities_begin)        \
    X(activities_flush)        \
    X(activities_end)          \
    X(stream_number)           \
    X(executable_number)

/* Every member takes the table and the device; few use both. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* With the type that backend.h declares. */
#define CUDA_DECLARE(name) \
    __typeof__(*((const struct ps_backend *)NULL)->name) cuda_##name;
CUDA_MEMBERS(CUDA_DECLARE)

/* ---- notify.c ---- */

/* Declare that others may record the event.  PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_event_share(ps_handle event);

/* Call before the event is recorded again, if any event is polled.  If this
 * one is, a side stream takes its place.  Statuses: of creating a stream and
 * an event. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Call when the program destroys the event.  If true, the backend destroys it
 * later; otherwise the caller does so now. */
bool cuda_event_forget(int device, ps_handle event);

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

/* ---- shared.c ---- */

/* Give a device access to the interprocess memory at an address, which work
 * uses and another device has.  Creates no context.
 * Statuses: PS_ERROR_INVALID_HANDLE if that is no interprocess memory,
 * cudaErrorPeerAccessUnsupported if the devices don't support it. */
ps_status cuda_shared_reach(const void *address, int peer);

/* ---- graph_nodes.c ---- */

/* The index of the node, a CUgraphNode, as graph_nodes lists it; SIZE_MAX if
 * it is NULL or unknown. */
size_t cuda_node_index(int device, ps_handle graph, const void *node);

#endif
