/* The members of the contract: of each the type, the name, the parameters and
 * the arguments to pass on.  Included wherever MEMBER says what to make of
 * them; undefines it. */
#define WITH(...) (const struct ps_backend *backend, __VA_ARGS__)
#define TO(...)   (inner, __VA_ARGS__)

MEMBER(const char *, status_name, WITH(ps_status status), TO(status))
MEMBER(const char *, status_text, WITH(ps_status status), TO(status))
MEMBER(ps_status, device_count, WITH(int *count), TO(count))
MEMBER(ps_status, device_current, WITH(int *device), TO(device))
MEMBER(ps_status, device_set, WITH(int device), TO(device))
MEMBER(ps_status, device_restore, WITH(int previous), TO(previous))
MEMBER(ps_status, device_synchronize,
       WITH(int device, const struct ps_limit *limit), TO(device, limit))
MEMBER(ps_status, device_properties,
       WITH(int device, struct ps_device_properties *properties),
       TO(device, properties))
MEMBER(ps_status, stream_priority_range,
       WITH(int device, int *least, int *greatest),
       TO(device, least, greatest))
MEMBER(ps_status, stream_create,
       WITH(int device, int priority, ps_handle *stream),
       TO(device, priority, stream))
MEMBER(ps_status, stream_destroy, WITH(int device, ps_handle stream),
       TO(device, stream))
MEMBER(ps_status, stream_query, WITH(int device, ps_handle stream),
       TO(device, stream))
MEMBER(ps_status, stream_synchronize,
       WITH(int device, ps_handle stream, const struct ps_limit *limit),
       TO(device, stream, limit))
MEMBER(ps_status, stream_wait_event,
       WITH(int device, ps_handle stream, ps_handle event),
       TO(device, stream, event))
MEMBER(ps_status, stream_wait_room,
       WITH(int device, ps_handle stream, int64_t timeout_ns),
       TO(device, stream, timeout_ns))
MEMBER(ps_status, stream_device, WITH(ps_handle stream, int *device),
       TO(stream, device))
MEMBER(ps_status, event_create,
       WITH(int device, unsigned flags, ps_handle *event),
       TO(device, flags, event))
MEMBER(ps_status, event_destroy, WITH(int device, ps_handle event),
       TO(device, event))
MEMBER(ps_status, event_record,
       WITH(int device, ps_handle event, ps_handle stream),
       TO(device, event, stream))
MEMBER(ps_status, event_query, WITH(int device, ps_handle event),
       TO(device, event))
MEMBER(ps_status, event_synchronize,
       WITH(int device, ps_handle event, const struct ps_limit *limit),
       TO(device, event, limit))
MEMBER(ps_status, event_elapsed,
       WITH(int device, ps_handle start, ps_handle end, float *milliseconds),
       TO(device, start, end, milliseconds))
MEMBER(ps_status, event_export,
       WITH(int device, ps_handle event,
            unsigned char handle[PS_IPC_HANDLE_BYTES]),
       TO(device, event, handle))
MEMBER(ps_status, event_open,
       WITH(int device, const unsigned char handle[PS_IPC_HANDLE_BYTES],
            ps_handle *event),
       TO(device, handle, event))
MEMBER(ps_status, memory_allocate,
       WITH(int device, ps_handle stream, size_t nbytes, void **data),
       TO(device, stream, nbytes, data))
MEMBER(ps_status, memory_free, WITH(int device, ps_handle stream, void *data),
       TO(device, stream, data))
MEMBER(ps_status, pinned_allocate,
       WITH(int device, size_t nbytes, void **data), TO(device, nbytes, data))
MEMBER(ps_status, pinned_free, WITH(int device, void *data), TO(device, data))
MEMBER(ps_status, memory_copy,
       WITH(int device, ps_handle stream, void *destination,
            const void *source, size_t nbytes),
       TO(device, stream, destination, source, nbytes))
MEMBER(ps_status, memory_fill,
       WITH(int device, ps_handle stream, void *destination, uint8_t value,
            size_t nbytes),
       TO(device, stream, destination, value, nbytes))
MEMBER(ps_status, memory_info,
       WITH(int device, uint64_t *free, uint64_t *total),
       TO(device, free, total))
MEMBER(ps_status, peer_accessible, WITH(int device, int peer, int *accessible),
       TO(device, peer, accessible))
MEMBER(ps_status, memory_device,
       WITH(int device, const void *address, int *owner),
       TO(device, address, owner))
MEMBER(ps_status, host_function,
       WITH(int device, ps_handle stream, ps_host_function function,
            void *argument),
       TO(device, stream, function, argument))
MEMBER(ps_status, sleep, WITH(int device, ps_handle stream, uint64_t cycles),
       TO(device, stream, cycles))
MEMBER(ps_status, stream_notify,
       WITH(int device, ps_handle stream,
            struct ps_notification *notification),
       TO(device, stream, notification))
MEMBER(ps_status, event_notify,
       WITH(int device, ps_handle event, struct ps_notification *notification),
       TO(device, event, notification))
MEMBER(ps_status, notify_cancel,
       WITH(int device, struct ps_notification *notification),
       TO(device, notification))
MEMBER(ps_status, stream_gate,
       WITH(int device, ps_handle stream, ps_notification_function reached,
            void *argument, ps_handle *gate),
       TO(device, stream, reached, argument, gate))
MEMBER(ps_status, gate_open, WITH(int device, ps_handle gate),
       TO(device, gate))
MEMBER(ps_status, stream_capturing,
       WITH(int device, ps_handle stream, int *capturing),
       TO(device, stream, capturing))
MEMBER(ps_status, capture_begin,
       WITH(int device, ps_handle stream, enum ps_capture_mode mode),
       TO(device, stream, mode))
MEMBER(ps_status, capture_end,
       WITH(int device, ps_handle stream, ps_handle *graph,
            size_t *operations),
       TO(device, stream, graph, operations))
MEMBER(ps_status, capture_mode_exchange, WITH(enum ps_capture_mode *mode),
       TO(mode))
MEMBER(ps_status, event_record_external,
       WITH(int device, ps_handle event, ps_handle stream),
       TO(device, event, stream))
MEMBER(ps_status, stream_wait_external,
       WITH(int device, ps_handle stream, ps_handle event),
       TO(device, stream, event))
MEMBER(ps_status, graph_instantiate,
       WITH(int device, ps_handle graph, ps_handle *executable),
       TO(device, graph, executable))
MEMBER(ps_status, graph_launch,
       WITH(int device, ps_handle executable, ps_handle stream),
       TO(device, executable, stream))
MEMBER(ps_status, executable_destroy, WITH(int device, ps_handle executable),
       TO(device, executable))
MEMBER(ps_status, graph_destroy, WITH(int device, ps_handle graph),
       TO(device, graph))
MEMBER(ps_status, graph_print,
       WITH(int device, ps_handle graph, const char *path),
       TO(device, graph, path))
MEMBER(ps_status, versions, WITH(int *runtime, int *driver),
       TO(runtime, driver))
MEMBER(ps_status, shutdown, WITH(int64_t timeout_ns), TO(timeout_ns))
MEMBER(ps_status, shared_allocate,
       WITH(int device, size_t nbytes,
            unsigned char handle[PS_IPC_HANDLE_BYTES], void **data),
       TO(device, nbytes, handle, data))
MEMBER(ps_status, shared_open,
       WITH(int device, const unsigned char handle[PS_IPC_HANDLE_BYTES],
            size_t nbytes, void **data),
       TO(device, handle, nbytes, data))
MEMBER(ps_status, shared_free, WITH(int device, void *data), TO(device, data))
MEMBER(ps_status, stream_capture,
       WITH(int device, ps_handle stream, uint64_t *capture),
       TO(device, stream, capture))
MEMBER(ps_status, capture_gate,
       WITH(int device, ps_handle stream, ps_launched_gate_function reached,
            void *argument),
       TO(device, stream, reached, argument))
MEMBER(ps_status, pool_usage,
       WITH(int device, uint64_t *reserved, uint64_t *peak),
       TO(device, reserved, peak))
MEMBER(ps_status, pool_reset_peak, WITH(int device), TO(device))
MEMBER(ps_status, pool_trim, WITH(int device, uint64_t nbytes),
       TO(device, nbytes))
MEMBER(ps_status, pool_set_threshold, WITH(int device, uint64_t nbytes),
       TO(device, nbytes))
MEMBER(ps_status, host_register, WITH(int device, void *data, size_t nbytes),
       TO(device, data, nbytes))
MEMBER(ps_status, host_unregister, WITH(int device, void *data),
       TO(device, data))
MEMBER(ps_status, time_now, WITH(int64_t *now), TO(now))
MEMBER(ps_status, operation_times, WITH(struct ps_times *times), TO(times))
MEMBER(ps_status, memory_fill_items,
       WITH(int device, ps_handle stream, void *destination, uint32_t value,
            size_t size, size_t nbytes),
       TO(device, stream, destination, value, size, nbytes))
MEMBER(ps_status, device_attribute,
       WITH(int device, int attribute, int *value),
       TO(device, attribute, value))
MEMBER(ps_status, stream_explain,
       WITH(int device, ps_handle stream, struct ps_stream_state *states,
            int room, int *count),
       TO(device, stream, states, room, count))
MEMBER(ps_status, graph_nodes,
       WITH(int device, ps_handle graph, struct ps_graph_node *nodes,
            size_t *node_count, struct ps_graph_edge *edges,
            size_t *edge_count),
       TO(device, graph, nodes, node_count, edges, edge_count))
MEMBER(ps_status, graph_upload,
       WITH(int device, ps_handle executable, ps_handle stream),
       TO(device, executable, stream))
MEMBER(ps_status, graph_instantiate_with,
       WITH(int device, ps_handle graph, unsigned options,
            ps_handle *executable),
       TO(device, graph, options, executable))
MEMBER(ps_status, graph_update,
       WITH(int device, ps_handle executable, ps_handle graph,
            struct ps_graph_difference *difference),
       TO(device, executable, graph, difference))
MEMBER(ps_status, capture_graph,
       WITH(int device, ps_handle stream, ps_handle graph),
       TO(device, stream, graph))
MEMBER(ps_status, partition_create,
       WITH(int device, int count, ps_handle *partition, int *granted),
       TO(device, count, partition, granted))
MEMBER(ps_status, partition_destroy, WITH(int device, ps_handle partition),
       TO(device, partition))
MEMBER(ps_status, partition_stream_create,
       WITH(int device, ps_handle partition, int priority, ps_handle *stream),
       TO(device, partition, priority, stream))
MEMBER(ps_status, blocking_create,
       WITH(int device, int priority, ps_handle *stream),
       TO(device, priority, stream))
MEMBER(ps_status, stream_blocking,
       WITH(int device, ps_handle stream, int *blocking),
       TO(device, stream, blocking))
MEMBER(ps_status, activities_begin,
       WITH(const struct ps_activity_functions *functions, void *argument,
            char *reason, size_t size),
       TO(functions, argument, reason, size))
MEMBER(ps_status, activities_flush, (const struct ps_backend *backend),
       (inner))
MEMBER(ps_status, activities_end, (const struct ps_backend *backend), (inner))
MEMBER(ps_status, stream_number,
       WITH(int device, ps_handle stream, uint64_t *number),
       TO(device, stream, number))
MEMBER(ps_status, peer_access, WITH(int device, int peer, int access),
       TO(device, peer, access))

#undef WITH
#undef TO
#undef MEMBER
