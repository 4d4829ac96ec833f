/* The functions that the files of this folder share. */
#ifndef PYSTREAMS_CUDA_TABLE_H
#define PYSTREAMS_CUDA_TABLE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* The members of the table that other files than table.c define, file by
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

/* Every member has the parameters `backend` and `device`, and few use both. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Declare each member with the type that it has in backend.h. */
#define CUDA_DECLARE(name) \
    __typeof__(*((const struct ps_backend *)NULL)->name) cuda_##name;
CUDA_MEMBERS(CUDA_DECLARE)

/* ---- notify.c ---- */

/* Declare that other processes or graphs may record the event.  Returns
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_event_share(ps_handle event);

/* Call before an event is recorded again, if any of the program's events are
 * polled.  If this event itself is polled, a completion's event on a side
 * stream takes its place.  Returns the failure to create a stream or an
 * event. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Call when the program destroys the event.  If this returns true, the backend
 * destroys it later; otherwise the caller must destroy it now. */
bool cuda_event_forget(int device, ps_handle event);

/* ---- wait.c ---- */

/* The member device_synchronize with a limit. */
ps_status cuda_device_wait(int device, const struct ps_limit *limit);

/* Wait for the device, if its work ends within a millisecond.  Then the driver
 * returns freed memory to the device.  It does so only after a call that has
 * waited for the work before: a query does not count, nor does a wait for the
 * event of a context.  Invalidates captures.  May block, for work that is
 * queued meanwhile. */
void cuda_device_observe(int device);

/* Wait for the stream, unless it is being captured.  Its context is current.
 * Call this before a driver call that would wait for the stream with the
 * driver's locks held: that would block the threads on which the stream's work
 * depends.  May block. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* ---- shared.c ---- */

/* Give `peer` access to the interprocess memory at an address.  Another device
 * has the memory, and work of `peer` will use it.  Creates no context.
 * Returns PS_ERROR_INVALID_HANDLE if there is no interprocess memory at the
 * address, and cudaErrorPeerAccessUnsupported if the devices do not support
 * it. */
ps_status cuda_shared_reach(const void *address, int peer);

/* ---- graph_nodes.c ---- */

/* Returns the index of a node, a CUgraphNode, in the order of graph_nodes;
 * SIZE_MAX if it is NULL or unknown. */
size_t cuda_node_index(int device, ps_handle graph, const void *node);

#endif
