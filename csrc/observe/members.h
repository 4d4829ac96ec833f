/* A list of the functions of struct ps_backend.  Before each include of this
 * file, define the macro MEMBER(type, name, parameters, arguments).  This file
 * expands it once for each function, and then undefines it.  `type` is the
 * type of the function's result.  `arguments` is the list of arguments for a
 * call to the same function in the table `inner`. */
#define WITH(...) (const struct ps_backend *backend, __VA_ARGS__)
#define TO(...)   (inner, __VA_ARGS__)
#define LIST(...) __VA_ARGS__
#define ON_DEVICE(name, parameters, arguments)                 \
    MEMBER(ps_status, name, WITH(int device, LIST parameters), \
           TO(device, LIST arguments))

MEMBER(const char *, status_name, WITH(ps_status status), TO(status))
MEMBER(const char *, status_text, WITH(ps_status status), TO(status))
MEMBER(ps_status, device_count, WITH(int *count), TO(count))
MEMBER(ps_status, device_current, WITH(int *device), TO(device))
MEMBER(ps_status, device_set, WITH(int device), TO(device))
MEMBER(ps_status, device_restore, WITH(int previous), TO(previous))
ON_DEVICE(device_synchronize, (const struct ps_limit *limit), (limit))
ON_DEVICE(device_properties, (struct ps_device_properties * properties),
          (properties))
ON_DEVICE(stream_priority_range, (int *least, int *greatest),
          (least, greatest))
ON_DEVICE(stream_create, (int priority, ps_handle *stream), (priority, stream))
ON_DEVICE(stream_destroy, (ps_handle stream), (stream))
ON_DEVICE(stream_query, (ps_handle stream), (stream))
ON_DEVICE(stream_synchronize, (ps_handle stream, const struct ps_limit *limit),
          (stream, limit))
ON_DEVICE(stream_wait_event, (ps_handle stream, ps_handle event),
          (stream, event))
ON_DEVICE(stream_wait_room, (ps_handle stream, int64_t timeout_ns),
          (stream, timeout_ns))
MEMBER(ps_status, stream_device, WITH(ps_handle stream, int *device),
       TO(stream, device))
ON_DEVICE(event_create, (unsigned flags, ps_handle *event), (flags, event))
ON_DEVICE(event_destroy, (ps_handle event), (event))
ON_DEVICE(event_record, (ps_handle event, ps_handle stream), (event, stream))
ON_DEVICE(event_query, (ps_handle event), (event))
ON_DEVICE(event_synchronize, (ps_handle event, const struct ps_limit *limit),
          (event, limit))
ON_DEVICE(event_elapsed, (ps_handle start, ps_handle end, float *milliseconds),
          (start, end, milliseconds))
ON_DEVICE(event_export,
          (ps_handle event, unsigned char handle[PS_IPC_HANDLE_BYTES]),
          (event, handle))
ON_DEVICE(event_open,
          (const unsigned char handle[PS_IPC_HANDLE_BYTES], ps_handle *event),
          (handle, event))
ON_DEVICE(memory_allocate, (ps_handle stream, size_t nbytes, void **data),
          (stream, nbytes, data))
ON_DEVICE(memory_free, (ps_handle stream, void *data), (stream, data))
ON_DEVICE(pinned_allocate, (size_t nbytes, void **data), (nbytes, data))
ON_DEVICE(pinned_free, (void *data), (data))
ON_DEVICE(memory_copy,
          (ps_handle stream, void *destination, const void *source,
           size_t nbytes),
          (stream, destination, source, nbytes))
ON_DEVICE(memory_fill,
          (ps_handle stream, void *destination, uint8_t value, size_t nbytes),
          (stream, destination, value, nbytes))
ON_DEVICE(memory_info, (uint64_t * free, uint64_t *total), (free, total))
ON_DEVICE(peer_accessible, (int peer, int *accessible), (peer, accessible))
ON_DEVICE(memory_device, (const void *address, int *owner), (address, owner))
ON_DEVICE(host_function,
          (ps_handle stream, ps_host_function function, void *argument),
          (stream, function, argument))
ON_DEVICE(sleep, (ps_handle stream, uint64_t cycles), (stream, cycles))
ON_DEVICE(stream_notify,
          (ps_handle stream, struct ps_notification *notification),
          (stream, notification))
ON_DEVICE(event_notify,
          (ps_handle event, struct ps_notification *notification),
          (event, notification))
ON_DEVICE(notify_cancel, (struct ps_notification * notification),
          (notification))
ON_DEVICE(stream_gate,
          (ps_handle stream, ps_notification_function reached, void *argument,
           ps_handle *gate),
          (stream, reached, argument, gate))
ON_DEVICE(gate_open, (ps_handle gate), (gate))
ON_DEVICE(stream_capturing, (ps_handle stream, int *capturing),
          (stream, capturing))
ON_DEVICE(capture_begin, (ps_handle stream, enum ps_capture_mode mode),
          (stream, mode))
ON_DEVICE(capture_end,
          (ps_handle stream, ps_handle *graph, size_t *operations),
          (stream, graph, operations))
MEMBER(ps_status, capture_mode_exchange, WITH(enum ps_capture_mode *mode),
       TO(mode))
ON_DEVICE(event_record_external, (ps_handle event, ps_handle stream),
          (event, stream))
ON_DEVICE(stream_wait_external, (ps_handle stream, ps_handle event),
          (stream, event))
ON_DEVICE(graph_instantiate, (ps_handle graph, ps_handle *executable),
          (graph, executable))
ON_DEVICE(graph_launch, (ps_handle executable, ps_handle stream),
          (executable, stream))
ON_DEVICE(executable_destroy, (ps_handle executable), (executable))
ON_DEVICE(graph_destroy, (ps_handle graph), (graph))
ON_DEVICE(graph_print, (ps_handle graph, const char *path), (graph, path))
MEMBER(ps_status, versions, WITH(int *runtime, int *driver),
       TO(runtime, driver))
MEMBER(ps_status, shutdown, WITH(int64_t timeout_ns), TO(timeout_ns))
ON_DEVICE(shared_allocate,
          (size_t nbytes, unsigned char handle[PS_IPC_HANDLE_BYTES],
           void **data),
          (nbytes, handle, data))
ON_DEVICE(shared_open,
          (const unsigned char handle[PS_IPC_HANDLE_BYTES], size_t nbytes,
           void **data),
          (handle, nbytes, data))
ON_DEVICE(shared_free, (void *data), (data))
ON_DEVICE(stream_capture, (ps_handle stream, uint64_t *capture),
          (stream, capture))
ON_DEVICE(capture_gate,
          (ps_handle stream, uint64_t capture,
           ps_launched_gate_function reached, void *argument),
          (stream, capture, reached, argument))
ON_DEVICE(pool_usage, (uint64_t * reserved, uint64_t *peak), (reserved, peak))
MEMBER(ps_status, pool_reset_peak, WITH(int device), TO(device))
ON_DEVICE(pool_trim, (uint64_t nbytes), (nbytes))
ON_DEVICE(pool_set_threshold, (uint64_t nbytes), (nbytes))
ON_DEVICE(host_register, (void *data, size_t nbytes), (data, nbytes))
ON_DEVICE(host_unregister, (void *data), (data))
MEMBER(ps_status, time_now, WITH(int64_t *now), TO(now))
MEMBER(ps_status, operation_times, WITH(struct ps_times *times), TO(times))
ON_DEVICE(memory_fill_items,
          (ps_handle stream, void *destination, uint32_t value, size_t size,
           size_t nbytes),
          (stream, destination, value, size, nbytes))
ON_DEVICE(device_attribute, (int attribute, int *value), (attribute, value))
ON_DEVICE(stream_explain,
          (ps_handle stream, struct ps_stream_state *states, int room,
           int *count),
          (stream, states, room, count))
ON_DEVICE(graph_nodes,
          (ps_handle graph, struct ps_graph_node *nodes, size_t *node_count,
           struct ps_graph_edge *edges, size_t *edge_count),
          (graph, nodes, node_count, edges, edge_count))
ON_DEVICE(graph_upload, (ps_handle executable, ps_handle stream),
          (executable, stream))
ON_DEVICE(graph_instantiate_with,
          (ps_handle graph, unsigned options, ps_handle *executable),
          (graph, options, executable))
ON_DEVICE(graph_update,
          (ps_handle executable, ps_handle graph,
           struct ps_graph_difference *difference),
          (executable, graph, difference))
ON_DEVICE(capture_graph, (ps_handle stream, ps_handle graph), (stream, graph))
ON_DEVICE(partition_create, (int count, ps_handle *partition, int *granted),
          (count, partition, granted))
ON_DEVICE(partition_destroy, (ps_handle partition), (partition))
ON_DEVICE(partition_stream_create,
          (ps_handle partition, int priority, ps_handle *stream),
          (partition, priority, stream))
ON_DEVICE(blocking_create, (int priority, ps_handle *stream),
          (priority, stream))
ON_DEVICE(stream_blocking, (ps_handle stream, int *blocking),
          (stream, blocking))
MEMBER(ps_status, activities_begin,
       WITH(const struct ps_activity_functions *functions, void *argument,
            char *reason, size_t size),
       TO(functions, argument, reason, size))
MEMBER(ps_status, activities_flush, (const struct ps_backend *backend),
       (inner))
MEMBER(ps_status, activities_end, (const struct ps_backend *backend), (inner))
ON_DEVICE(stream_number, (ps_handle stream, uint64_t *number),
          (stream, number))
ON_DEVICE(peer_access, (int peer, int access), (peer, access))
ON_DEVICE(thread_stream, (ps_handle * name), (name))
ON_DEVICE(executable_number, (ps_handle executable, uint64_t *number),
          (executable, number))

#undef WITH
#undef TO
#undef LIST
#undef ON_DEVICE
#undef MEMBER
