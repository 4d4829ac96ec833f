/* Declarations of the members of the CUDA backend's table, and of functions
 * that several of its files use. */
#ifndef PYSTREAMS_CUDA_TABLE_H
#define PYSTREAMS_CUDA_TABLE_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* The members of the table that are not defined in table.c. */
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

/* Mark the event as one that other processes or launches of graphs may record.
 * For such an event, event_notify polls another event instead; see notify.c.
 * Returns PS_ERROR_OUT_OF_MEMORY on failure. */
ps_status cuda_event_share(ps_handle event);

/* If a completion (see poll.h) polls this event of the program, make it poll
 * an event of its own instead, which is recorded on a side stream (see
 * side.h).  While cuda_events_are_polled() returns true, call this before each
 * record of a program's event.  Without this call, the completion would wait
 * for the new record.  Fails if a stream or an event cannot be created. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Call this when the program destroys the event.  Returns true if a completion
 * still polls the event, which is then destroyed when the completion is
 * released.  Otherwise the caller must destroy the event now. */
bool cuda_event_forget(int device, ps_handle event);

/* ---- wait.c ---- */

/* The member device_synchronize with a limit. */
ps_status cuda_device_wait(int device, const struct ps_limit *limit);

/* Make the driver notice which stream-ordered frees are done, so that it can
 * return the freed memory to the device.  The driver notices this only in a
 * call that waits for the work before the free.  A query is not enough, and
 * neither is a wait for an event that cuCtxRecordEvent has recorded.  So this
 * waits for the device, but gives up if the device's work is not done within a
 * millisecond.  Invalidates captures.  May block for longer if other threads
 * queue work at the same time. */
void cuda_device_observe(int device);

/* Wait for the stream's work by polling, unless the stream is being captured.
 * The stream's context must be current.  Call this before a driver call that
 * waits for the stream with the driver's locks held.  That call then need not
 * wait, unless another thread queues work in between.  Without
 * cuda_stream_drain, that call could deadlock: it would block other threads
 * that call the driver, and the stream's work may depend on these threads.
 * May block. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* ---- shared.c ---- */

/* Let the device `peer` access the interprocess memory at the address.  Call
 * this before work of `peer` uses memory of another device.  Creates no
 * context.  Returns PS_ERROR_INVALID_HANDLE if there is no interprocess memory
 * at the address, and cudaErrorPeerAccessUnsupported if the devices do not
 * support the access. */
ps_status cuda_shared_reach(const void *address, int peer);

/* ---- graph_nodes.c ---- */

/* Returns the index that the member graph_nodes gives to the node, which is a
 * CUgraphNode.  Returns SIZE_MAX if the node is NULL or not in the graph. */
size_t cuda_node_index(int device, ps_handle graph, const void *node);

#endif
