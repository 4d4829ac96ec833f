/* Each member stands in the list twice: as the function that forwards it, and
 * as the entry of the table. */
#include "forward.h"

#define WITH(...) (const struct ps_backend *backend, __VA_ARGS__)
#define FORWARD(type, name, parameters, ...)                                  \
    static type name parameters                                               \
    {                                                                         \
        return ps_observed(backend)->name(ps_observed(backend), __VA_ARGS__); \
    }

FORWARD(const char *, status_name, WITH(ps_status status), status)
FORWARD(const char *, status_text, WITH(ps_status status), status)
FORWARD(ps_status, device_count, WITH(int *count), count)
FORWARD(ps_status, device_current, WITH(int *device), device)
FORWARD(ps_status, device_set, WITH(int device), device)
FORWARD(ps_status, device_restore, WITH(int previous), previous)
FORWARD(ps_status, device_synchronize,
        WITH(int device, const struct ps_limit *limit), device, limit)
FORWARD(ps_status, device_properties,
        WITH(int device, struct ps_device_properties *properties), device,
        properties)
FORWARD(ps_status, stream_priority_range,
        WITH(int device, int *least, int *greatest), device, least, greatest)
FORWARD(ps_status, stream_create,
        WITH(int device, int priority, ps_handle *stream), device, priority,
        stream)
FORWARD(ps_status, stream_destroy, WITH(int device, ps_handle stream), device,
        stream)
FORWARD(ps_status, stream_query, WITH(int device, ps_handle stream), device,
        stream)
FORWARD(ps_status, stream_synchronize,
        WITH(int device, ps_handle stream, const struct ps_limit *limit),
        device, stream, limit)
FORWARD(ps_status, stream_wait_event,
        WITH(int device, ps_handle stream, ps_handle event), device, stream,
        event)
FORWARD(ps_status, stream_wait_room,
        WITH(int device, ps_handle stream, int64_t timeout_ns), device, stream,
        timeout_ns)
FORWARD(ps_status, stream_device, WITH(ps_handle stream, int *device), stream,
        device)
FORWARD(ps_status, event_create,
        WITH(int device, unsigned flags, ps_handle *event), device, flags,
        event)
FORWARD(ps_status, event_destroy, WITH(int device, ps_handle event), device,
        event)
FORWARD(ps_status, event_record,
        WITH(int device, ps_handle event, ps_handle stream), device, event,
        stream)
FORWARD(ps_status, event_query, WITH(int device, ps_handle event), device,
        event)
FORWARD(ps_status, event_synchronize,
        WITH(int device, ps_handle event, const struct ps_limit *limit),
        device, event, limit)
FORWARD(ps_status, event_elapsed,
        WITH(int device, ps_handle start, ps_handle end, float *milliseconds),
        device, start, end, milliseconds)
FORWARD(ps_status, event_export,
        WITH(int device, ps_handle event,
             unsigned char handle[PS_IPC_HANDLE_BYTES]),
        device, event, handle)
FORWARD(ps_status, event_open,
        WITH(int device, const unsigned char handle[PS_IPC_HANDLE_BYTES],
             ps_handle *event),
        device, handle, event)
FORWARD(ps_status, memory_allocate,
        WITH(int device, ps_handle stream, size_t nbytes, void **data), device,
        stream, nbytes, data)
FORWARD(ps_status, memory_free, WITH(int device, ps_handle stream, void *data),
        device, stream, data)
FORWARD(ps_status, pinned_allocate,
        WITH(int device, size_t nbytes, void **data), device, nbytes, data)
FORWARD(ps_status, pinned_free, WITH(int device, void *data), device, data)
FORWARD(ps_status, memory_copy,
        WITH(int device, ps_handle stream, void *destination,
             const void *source, size_t nbytes),
        device, stream, destination, source, nbytes)
FORWARD(ps_status, memory_fill,
        WITH(int device, ps_handle stream, void *destination, uint8_t value,
             size_t nbytes),
        device, stream, destination, value, nbytes)
FORWARD(ps_status, memory_info,
        WITH(int device, uint64_t *free, uint64_t *total), device, free, total)
FORWARD(ps_status, peer_accessible,
        WITH(int device, int peer, int *accessible), device, peer, accessible)
FORWARD(ps_status, peer_access, WITH(int device, int peer, int access), device,
        peer, access)
FORWARD(ps_status, memory_device,
        WITH(int device, const void *address, int *owner), device, address,
        owner)
FORWARD(ps_status, host_function,
        WITH(int device, ps_handle stream, ps_host_function function,
             void *argument),
        device, stream, function, argument)
FORWARD(ps_status, sleep, WITH(int device, ps_handle stream, uint64_t cycles),
        device, stream, cycles)
FORWARD(ps_status, stream_notify,
        WITH(int device, ps_handle stream,
             struct ps_notification *notification),
        device, stream, notification)
FORWARD(ps_status, event_notify,
        WITH(int device, ps_handle event,
             struct ps_notification *notification),
        device, event, notification)
FORWARD(ps_status, notify_cancel,
        WITH(int device, struct ps_notification *notification), device,
        notification)
FORWARD(ps_status, stream_gate,
        WITH(int device, ps_handle stream, ps_notification_function reached,
             void *argument, ps_handle *gate),
        device, stream, reached, argument, gate)
FORWARD(ps_status, gate_open, WITH(int device, ps_handle gate), device, gate)
FORWARD(ps_status, stream_capturing,
        WITH(int device, ps_handle stream, int *capturing), device, stream,
        capturing)
FORWARD(ps_status, capture_begin,
        WITH(int device, ps_handle stream, enum ps_capture_mode mode), device,
        stream, mode)
FORWARD(ps_status, capture_end,
        WITH(int device, ps_handle stream, ps_handle *graph,
             size_t *operations),
        device, stream, graph, operations)
FORWARD(ps_status, capture_mode_exchange, WITH(enum ps_capture_mode *mode),
        mode)
FORWARD(ps_status, event_record_external,
        WITH(int device, ps_handle event, ps_handle stream), device, event,
        stream)
FORWARD(ps_status, stream_wait_external,
        WITH(int device, ps_handle stream, ps_handle event), device, stream,
        event)
FORWARD(ps_status, graph_instantiate,
        WITH(int device, ps_handle graph, ps_handle *executable), device,
        graph, executable)
FORWARD(ps_status, graph_launch,
        WITH(int device, ps_handle executable, ps_handle stream), device,
        executable, stream)
FORWARD(ps_status, executable_destroy, WITH(int device, ps_handle executable),
        device, executable)
FORWARD(ps_status, graph_destroy, WITH(int device, ps_handle graph), device,
        graph)
FORWARD(ps_status, graph_print,
        WITH(int device, ps_handle graph, const char *path), device, graph,
        path)
FORWARD(ps_status, versions, WITH(int *runtime, int *driver), runtime, driver)
FORWARD(ps_status, shutdown, WITH(int64_t timeout_ns), timeout_ns)
FORWARD(ps_status, shared_allocate,
        WITH(int device, size_t nbytes,
             unsigned char handle[PS_IPC_HANDLE_BYTES], void **data),
        device, nbytes, handle, data)
FORWARD(ps_status, shared_open,
        WITH(int device, const unsigned char handle[PS_IPC_HANDLE_BYTES],
             size_t nbytes, void **data),
        device, handle, nbytes, data)
FORWARD(ps_status, shared_free, WITH(int device, void *data), device, data)
FORWARD(ps_status, stream_capture,
        WITH(int device, ps_handle stream, uint64_t *capture), device, stream,
        capture)
FORWARD(ps_status, capture_gate,
        WITH(int device, ps_handle stream, ps_launched_gate_function reached,
             void *argument),
        device, stream, reached, argument)
FORWARD(ps_status, pool_usage,
        WITH(int device, uint64_t *reserved, uint64_t *peak), device, reserved,
        peak)
FORWARD(ps_status, pool_reset_peak, WITH(int device), device)
FORWARD(ps_status, pool_trim, WITH(int device, uint64_t nbytes), device,
        nbytes)
FORWARD(ps_status, pool_set_threshold, WITH(int device, uint64_t nbytes),
        device, nbytes)
FORWARD(ps_status, host_register, WITH(int device, void *data, size_t nbytes),
        device, data, nbytes)
FORWARD(ps_status, host_unregister, WITH(int device, void *data), device, data)
FORWARD(ps_status, memory_fill_items,
        WITH(int device, ps_handle stream, void *destination, uint32_t value,
             size_t size, size_t nbytes),
        device, stream, destination, value, size, nbytes)
FORWARD(ps_status, device_attribute,
        WITH(int device, int attribute, int *value), device, attribute, value)
FORWARD(ps_status, stream_explain,
        WITH(int device, ps_handle stream, struct ps_stream_state *states,
             int room, int *count),
        device, stream, states, room, count)
FORWARD(ps_status, graph_nodes,
        WITH(int device, ps_handle graph, struct ps_graph_node *nodes,
             size_t *node_count, struct ps_graph_edge *edges,
             size_t *edge_count),
        device, graph, nodes, node_count, edges, edge_count)
FORWARD(ps_status, graph_upload,
        WITH(int device, ps_handle executable, ps_handle stream), device,
        executable, stream)
FORWARD(ps_status, graph_instantiate_with,
        WITH(int device, ps_handle graph, unsigned options,
             ps_handle *executable),
        device, graph, options, executable)
FORWARD(ps_status, graph_update,
        WITH(int device, ps_handle executable, ps_handle graph,
             struct ps_graph_difference *difference),
        device, executable, graph, difference)
FORWARD(ps_status, capture_graph,
        WITH(int device, ps_handle stream, ps_handle graph), device, stream,
        graph)
FORWARD(ps_status, partition_create,
        WITH(int device, int count, ps_handle *partition, int *granted),
        device, count, partition, granted)
FORWARD(ps_status, partition_destroy, WITH(int device, ps_handle partition),
        device, partition)
FORWARD(ps_status, partition_stream_create,
        WITH(int device, ps_handle partition, int priority, ps_handle *stream),
        device, partition, priority, stream)
FORWARD(ps_status, blocking_create,
        WITH(int device, int priority, ps_handle *stream), device, priority,
        stream)
FORWARD(ps_status, stream_blocking,
        WITH(int device, ps_handle stream, int *blocking), device, stream,
        blocking)
FORWARD(ps_status, time_now, WITH(int64_t *now), now)
FORWARD(ps_status, operation_times, WITH(struct ps_times *times), times)
FORWARD(ps_status, activities_begin,
        WITH(const struct ps_activity_functions *functions, void *argument,
             char *reason, size_t size),
        functions, argument, reason, size)
FORWARD(ps_status, stream_number,
        WITH(int device, ps_handle stream, uint64_t *number), device, stream,
        number)

static ps_status
activities_flush(const struct ps_backend *backend)
{
    return ps_observed(backend)->activities_flush(ps_observed(backend));
}

static ps_status
activities_end(const struct ps_backend *backend)
{
    return ps_observed(backend)->activities_end(ps_observed(backend));
}

#define MEMBERS(X)             \
    X(status_name)             \
    X(status_text)             \
    X(device_count)            \
    X(device_current)          \
    X(device_set)              \
    X(device_restore)          \
    X(device_synchronize)      \
    X(device_properties)       \
    X(stream_priority_range)   \
    X(stream_create)           \
    X(stream_destroy)          \
    X(stream_query)            \
    X(stream_synchronize)      \
    X(stream_wait_event)       \
    X(stream_wait_room)        \
    X(stream_device)           \
    X(event_create)            \
    X(event_destroy)           \
    X(event_record)            \
    X(event_query)             \
    X(event_synchronize)       \
    X(event_elapsed)           \
    X(event_export)            \
    X(event_open)              \
    X(memory_allocate)         \
    X(memory_free)             \
    X(pinned_allocate)         \
    X(pinned_free)             \
    X(memory_copy)             \
    X(memory_fill)             \
    X(memory_info)             \
    X(peer_accessible)         \
    X(memory_device)           \
    X(host_function)           \
    X(sleep)                   \
    X(stream_notify)           \
    X(event_notify)            \
    X(notify_cancel)           \
    X(stream_gate)             \
    X(gate_open)               \
    X(stream_capturing)        \
    X(capture_begin)           \
    X(capture_end)             \
    X(capture_mode_exchange)   \
    X(event_record_external)   \
    X(stream_wait_external)    \
    X(graph_instantiate)       \
    X(graph_launch)            \
    X(executable_destroy)      \
    X(graph_destroy)           \
    X(graph_print)             \
    X(versions)                \
    X(shutdown)                \
    X(shared_allocate)         \
    X(shared_open)             \
    X(shared_free)             \
    X(stream_capture)          \
    X(capture_gate)            \
    X(pool_usage)              \
    X(pool_reset_peak)         \
    X(pool_trim)               \
    X(pool_set_threshold)      \
    X(host_register)           \
    X(host_unregister)         \
    X(time_now)                \
    X(operation_times)         \
    X(memory_fill_items)       \
    X(device_attribute)        \
    X(stream_explain)          \
    X(graph_nodes)             \
    X(graph_upload)            \
    X(graph_instantiate_with)  \
    X(graph_update)            \
    X(capture_graph)           \
    X(partition_create)        \
    X(partition_destroy)       \
    X(partition_stream_create) \
    X(blocking_create)         \
    X(stream_blocking)         \
    X(activities_begin)        \
    X(activities_flush)        \
    X(activities_end)          \
    X(stream_number)           \
    X(peer_access)

#define COUNT(name) +1
_Static_assert(offsetof(struct ps_backend, status_name) +
                       (0 MEMBERS(COUNT)) * sizeof(void (*)(void)) ==
                   sizeof(struct ps_backend),
               "a member of the contract is not forwarded");

struct ps_actor_name
ps_actor_in_order(const struct ps_backend *backend, int device,
                  ps_handle stream)
{
    const struct ps_backend *inner = ps_observed(backend);
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
    int blocking = 0;
    if (stream != 0 && inner->stream_blocking != NULL) {
        inner->stream_blocking(inner, device, stream, &blocking);
    }
    name.blocking = blocking != 0;
    return name;
}

void
ps_forward(struct ps_observer *observer, int runtime,
           const struct ps_backend *inner)
{
    observer->table = *inner;
#define FILL(name) observer->table.name = inner->name != NULL ? name : NULL;
    MEMBERS(FILL)
#undef FILL
    observer->runtime = runtime;
    atomic_store(&observer->inner, inner);
}
