/* Declarations of the members of the CUDA backend's table, and of functions
 * that several of its files use. */
#ifndef PYSTREAMS_CUDA_TABLE_H
#define PYSTREAMS_CUDA_TABLE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* The members of the table that are not defined in table.c, in the order of
 * the files that define them. */
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

/* Nearly every member has the parameters `backend` and `device`, but few use
 * both. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Declare each member with the type that it has in backend.h. */
#define CUDA_DECLARE(name) \
    __typeof__(*((const struct ps_backend *)NULL)->name) cuda_##name;
CUDA_MEMBERS(CUDA_DECLARE)

/* ---- notify.c ---- */

/* Store that other processes or launches of graphs may record the event.  From
 * then on event_notify polls another event in its place; see notify.c.
 * Returns PS_ERROR_OUT_OF_MEMORY on failure. */
ps_status cuda_event_share(ps_handle event);

/* Call this before an event of the program is recorded again, if
 * cuda_events_are_polled().  A completion that polled the event would from
 * then on see the new record.  So this makes such a completion poll an event
 * of its own instead, which is recorded on a side stream.  Returns a failure
 * to create a stream or an event. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Call this when the program destroys the event.  If it returns true, the
 * event is destroyed later, by the poller; otherwise the caller must destroy
 * it now. */
bool cuda_event_forget(int device, ps_handle event);

/* ---- wait.c ---- */

/* The member device_synchronize with a limit. */
ps_status cuda_device_wait(int device, const struct ps_limit *limit);

/* Make the driver notice that frees are done, so that it returns freed memory
 * to the device: wait for the device, if its work ends within a millisecond.
 * The driver notices only in a call that waits for the work before the free; a
 * query is not enough, nor is a wait for an event of cuCtxRecordEvent.
 * Invalidates captures.  May block longer, if other threads queue work
 * meanwhile. */
void cuda_device_observe(int device);

/* Wait for the stream, unless it is being captured.  Its context must be
 * current.  Call this before a driver call that would wait for the stream
 * while it holds the driver's locks: such a call would block other threads,
 * and the stream's work may depend on these.  May block. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* ---- shared.c ---- */

/* Give the device `peer` access to the interprocess memory at an address.
 * Call this before work of `peer` uses memory of another device.  Creates no
 * context.  Returns PS_ERROR_INVALID_HANDLE if there is no interprocess memory
 * at the address, and cudaErrorPeerAccessUnsupported if the devices do not
 * support it. */
ps_status cuda_shared_reach(const void *address, int peer);

/* ---- graph_nodes.c ---- */

/* Returns the index that graph_nodes gives to the node, a CUgraphNode;
 * SIZE_MAX if the node is NULL or not in the graph. */
size_t cuda_node_index(int device, ps_handle graph, const void *node);

#endif
