/* The table that stands between core and a backend while something observes.
 * It forwards each member, and tells the race detector what passes. */
#include "table.h"

#include <stdlib.h>

#include "races.h"

enum { MOST_RUNTIMES = 8 };

/* Kept for ever, as a call may still be on its way when it is switched off. */
struct observed {
    struct ps_backend table;
    const struct ps_backend *inner;
    int runtime;
};

static const struct observed *
observed(const struct ps_backend *backend)
{
    return (const struct observed *)backend;
}

static const struct ps_backend *
inner(const struct ps_backend *backend)
{
    return observed(backend)->inner;
}

static struct ps_actor_name
name_of(const struct ps_backend *backend, int device, ps_handle stream)
{
    return (struct ps_actor_name){observed(backend)->runtime, device, stream};
}

/* ---- Members that order nothing and access nothing ---- */

#define WITH(...) (const struct ps_backend *backend, __VA_ARGS__)
#define FORWARD(type, name, parameters, ...)                      \
    static type name parameters                                   \
    {                                                             \
        return inner(backend)->name(inner(backend), __VA_ARGS__); \
    }

FORWARD(const char *, status_name, WITH(ps_status status), status)
FORWARD(const char *, status_text, WITH(ps_status status), status)
FORWARD(ps_status, device_count, WITH(int *count), count)
FORWARD(ps_status, device_current, WITH(int *device), device)
FORWARD(ps_status, device_set, WITH(int device), device)
FORWARD(ps_status, device_restore, WITH(int previous), previous)
FORWARD(ps_status, device_properties,
        WITH(int device, struct ps_device_properties *properties), device,
        properties)
FORWARD(ps_status, stream_priority_range,
        WITH(int device, int *least, int *greatest), device, least, greatest)
FORWARD(ps_status, stream_create,
        WITH(int device, int priority, ps_handle *stream), device, priority,
        stream)
FORWARD(ps_status, stream_wait_room,
        WITH(int device, ps_handle stream, int64_t timeout_ns), device, stream,
        timeout_ns)
FORWARD(ps_status, stream_device, WITH(ps_handle stream, int *device), stream,
        device)
FORWARD(ps_status, event_elapsed,
        WITH(int device, ps_handle start, ps_handle end, float *milliseconds),
        device, start, end, milliseconds)
FORWARD(ps_status, event_export,
        WITH(int device, ps_handle event,
             unsigned char handle[PS_IPC_HANDLE_BYTES]),
        device, event, handle)
FORWARD(ps_status, memory_free, WITH(int device, ps_handle stream, void *data),
        device, stream, data)
FORWARD(ps_status, pinned_free, WITH(int device, void *data), device, data)
FORWARD(ps_status, memory_info,
        WITH(int device, uint64_t *free, uint64_t *total), device, free, total)
FORWARD(ps_status, peer_accessible,
        WITH(int device, int peer, int *accessible), device, peer, accessible)
FORWARD(ps_status, memory_device,
        WITH(int device, const void *address, int *owner), device, address,
        owner)
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
FORWARD(ps_status, gate_open, WITH(int device, ps_handle gate), device, gate)
FORWARD(ps_status, stream_capturing,
        WITH(int device, ps_handle stream, int *capturing), device, stream,
        capturing)
FORWARD(ps_status, capture_mode_exchange, WITH(enum ps_capture_mode *mode),
        mode)
FORWARD(ps_status, graph_print,
        WITH(int device, ps_handle graph, const char *path), device, graph,
        path)
FORWARD(ps_status, stream_capture,
        WITH(int device, ps_handle stream, uint64_t *capture), device, stream,
        capture)
FORWARD(ps_status, graph_nodes,
        WITH(int device, ps_handle graph, struct ps_graph_node *nodes,
             size_t *node_count, struct ps_graph_edge *edges,
             size_t *edge_count),
        device, graph, nodes, node_count, edges, edge_count)
FORWARD(ps_status, graph_upload,
        WITH(int device, ps_handle executable, ps_handle stream), device,
        executable, stream)
FORWARD(ps_status, versions, WITH(int *runtime, int *driver), runtime, driver)
FORWARD(ps_status, shutdown, WITH(int64_t timeout_ns), timeout_ns)

/* ---- Streams and events ---- */

static ps_status
stream_destroy(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    ps_races_forget_stream(&name);
    return inner(backend)->stream_destroy(inner(backend), device, stream);
}

static ps_status
event_create(const struct ps_backend *backend, int device, unsigned flags,
             ps_handle *event)
{
    ps_status status =
        inner(backend)->event_create(inner(backend), device, flags, event);
    if (status == PS_SUCCESS && (flags & PS_EVENT_INTERPROCESS)) {
        ps_races_share_event(observed(backend)->runtime, *event);
    }
    return status;
}

static ps_status
event_open(const struct ps_backend *backend, int device,
           const unsigned char handle[PS_IPC_HANDLE_BYTES], ps_handle *event)
{
    ps_status status =
        inner(backend)->event_open(inner(backend), device, handle, event);
    if (status == PS_SUCCESS) {
        ps_races_share_event(observed(backend)->runtime, *event);
    }
    return status;
}

static ps_status
event_destroy(const struct ps_backend *backend, int device, ps_handle event)
{
    ps_races_forget_event(observed(backend)->runtime, event);
    return inner(backend)->event_destroy(inner(backend), device, event);
}

static ps_status
stream_wait_event(const struct ps_backend *backend, int device,
                  ps_handle stream, ps_handle event)
{
    ps_status status = inner(backend)->stream_wait_event(
        inner(backend), device, stream, event);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = name_of(backend, device, stream);
        struct ps_moment *moment =
            ps_races_recorded(observed(backend)->runtime, event);
        ps_races_wait(&name, moment);
        ps_moment_unref(moment);
    }
    return status;
}

static ps_status
event_record(const struct ps_backend *backend, int device, ps_handle event,
             ps_handle stream)
{
    ps_status status =
        inner(backend)->event_record(inner(backend), device, event, stream);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = name_of(backend, device, stream);
        ps_races_record(event, &name);
    }
    return status;
}

/* ---- What the host learns ---- */

/* The work up to the moment is over if the status says so: a failure is an
 * end, too. */
static ps_status
learned(ps_status status, struct ps_moment *moment)
{
    if (status != PS_ERROR_NOT_READY && status != PS_ERROR_TIMED_OUT &&
        status != PS_ERROR_NOT_SUPPORTED) {
        ps_races_reached(moment);
    }
    ps_moment_unref(moment);
    return status;
}

static ps_status
stream_query(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    struct ps_moment *moment = ps_races_moment(&name);
    return learned(
        inner(backend)->stream_query(inner(backend), device, stream), moment);
}

static ps_status
stream_synchronize(const struct ps_backend *backend, int device,
                   ps_handle stream, const struct ps_limit *limit)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    struct ps_moment *moment = ps_races_moment(&name);
    return learned(inner(backend)->stream_synchronize(inner(backend), device,
                                                      stream, limit),
                   moment);
}

static ps_status
event_query(const struct ps_backend *backend, int device, ps_handle event)
{
    struct ps_moment *moment =
        ps_races_recorded(observed(backend)->runtime, event);
    return learned(inner(backend)->event_query(inner(backend), device, event),
                   moment);
}

static ps_status
event_synchronize(const struct ps_backend *backend, int device,
                  ps_handle event, const struct ps_limit *limit)
{
    struct ps_moment *moment =
        ps_races_recorded(observed(backend)->runtime, event);
    return learned(inner(backend)->event_synchronize(inner(backend), device,
                                                     event, limit),
                   moment);
}

static ps_status
device_synchronize(const struct ps_backend *backend, int device,
                   const struct ps_limit *limit)
{
    struct ps_moment *moment =
        ps_races_device_moment(observed(backend)->runtime, device);
    return learned(
        inner(backend)->device_synchronize(inner(backend), device, limit),
        moment);
}

/* ---- Memory and work ---- */

static ps_status
memory_allocate(const struct ps_backend *backend, int device, ps_handle stream,
                size_t nbytes, void **data)
{
    ps_status status = inner(backend)->memory_allocate(inner(backend), device,
                                                       stream, nbytes, data);
    if (status == PS_SUCCESS) {
        ps_races_forget_memory((uintptr_t)*data, nbytes);
    }
    return status;
}

static ps_status
pinned_allocate(const struct ps_backend *backend, int device, size_t nbytes,
                void **data)
{
    ps_status status =
        inner(backend)->pinned_allocate(inner(backend), device, nbytes, data);
    if (status == PS_SUCCESS) {
        ps_races_forget_memory((uintptr_t)*data, nbytes);
    }
    return status;
}

static ps_status
memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, const void *source, size_t nbytes)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    struct ps_access accesses[] = {
        {(uintptr_t)source, nbytes, false},
        {(uintptr_t)destination, nbytes, true},
    };
    ps_status status = ps_races_operation(&name, "copy", accesses, 2);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->memory_copy(inner(backend), device, stream,
                                             destination, source, nbytes);
}

static ps_status
memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, uint8_t value, size_t nbytes)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    struct ps_access access = {(uintptr_t)destination, nbytes, true};
    ps_status status = ps_races_operation(&name, "fill", &access, 1);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->memory_fill(inner(backend), device, stream,
                                             destination, value, nbytes);
}

/* An operation whose accesses the table does not see. */
static ps_status
number(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    return ps_races_operation(&name, "work", NULL, 0);
}

static ps_status
host_function(const struct ps_backend *backend, int device, ps_handle stream,
              ps_host_function function, void *argument)
{
    ps_status status = number(backend, device, stream);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->host_function(inner(backend), device, stream,
                                               function, argument);
}

static ps_status
sleep(const struct ps_backend *backend, int device, ps_handle stream,
      uint64_t cycles)
{
    ps_status status = number(backend, device, stream);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->sleep(inner(backend), device, stream, cycles);
}

static ps_status
stream_gate(const struct ps_backend *backend, int device, ps_handle stream,
            ps_notification_function reached, void *argument, ps_handle *gate)
{
    ps_status status = number(backend, device, stream);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->stream_gate(inner(backend), device, stream,
                                             reached, argument, gate);
}

static ps_status
capture_gate(const struct ps_backend *backend, int device, ps_handle stream,
             ps_launched_gate_function reached, void *argument)
{
    ps_status status = number(backend, device, stream);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->capture_gate(inner(backend), device, stream,
                                              reached, argument);
}

/* ---- Captures and graphs ---- */

static ps_status
capture_begin(const struct ps_backend *backend, int device, ps_handle stream,
              enum ps_capture_mode mode)
{
    ps_status status =
        inner(backend)->capture_begin(inner(backend), device, stream, mode);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = name_of(backend, device, stream);
        ps_races_capture_begin(&name);
    }
    return status;
}

static ps_status
capture_end(const struct ps_backend *backend, int device, ps_handle stream,
            ps_handle *graph, size_t *operations)
{
    ps_status status = inner(backend)->capture_end(inner(backend), device,
                                                   stream, graph, operations);
    if (status != PS_ERROR_CAPTURE_UNMATCHED) {
        struct ps_actor_name name = name_of(backend, device, stream);
        ps_races_capture_end(&name, status == PS_SUCCESS ? *graph : 0);
    }
    return status;
}

static ps_status
event_record_external(const struct ps_backend *backend, int device,
                      ps_handle event, ps_handle stream)
{
    ps_status status = inner(backend)->event_record_external(
        inner(backend), device, event, stream);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = name_of(backend, device, stream);
        ps_races_capture_event(&name, event, true);
    }
    return status;
}

static ps_status
stream_wait_external(const struct ps_backend *backend, int device,
                     ps_handle stream, ps_handle event)
{
    ps_status status = inner(backend)->stream_wait_external(
        inner(backend), device, stream, event);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = name_of(backend, device, stream);
        ps_races_capture_event(&name, event, false);
    }
    return status;
}

static ps_status
graph_instantiate(const struct ps_backend *backend, int device,
                  ps_handle graph, ps_handle *executable)
{
    ps_status status = inner(backend)->graph_instantiate(
        inner(backend), device, graph, executable);
    if (status == PS_SUCCESS) {
        ps_races_instantiate(observed(backend)->runtime, graph, *executable);
    }
    return status;
}

static ps_status
graph_launch(const struct ps_backend *backend, int device,
             ps_handle executable, ps_handle stream)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    ps_status status = ps_races_launch(&name, executable);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->graph_launch(inner(backend), device,
                                              executable, stream);
}

static ps_status
graph_destroy(const struct ps_backend *backend, int device, ps_handle graph)
{
    ps_races_forget_graph(observed(backend)->runtime, graph);
    return inner(backend)->graph_destroy(inner(backend), device, graph);
}

static ps_status
executable_destroy(const struct ps_backend *backend, int device,
                   ps_handle executable)
{
    ps_races_forget_executable(observed(backend)->runtime, executable);
    return inner(backend)->executable_destroy(inner(backend), device,
                                              executable);
}

/* ---- The table ---- */

#define MEMBERS(X)           \
    X(status_name)           \
    X(status_text)           \
    X(device_count)          \
    X(device_current)        \
    X(device_set)            \
    X(device_restore)        \
    X(device_synchronize)    \
    X(device_properties)     \
    X(stream_priority_range) \
    X(stream_create)         \
    X(stream_destroy)        \
    X(stream_query)          \
    X(stream_synchronize)    \
    X(stream_wait_event)     \
    X(stream_wait_room)      \
    X(stream_device)         \
    X(event_create)          \
    X(event_destroy)         \
    X(event_record)          \
    X(event_query)           \
    X(event_synchronize)     \
    X(event_elapsed)         \
    X(event_export)          \
    X(event_open)            \
    X(memory_allocate)       \
    X(memory_free)           \
    X(pinned_allocate)       \
    X(pinned_free)           \
    X(memory_copy)           \
    X(memory_fill)           \
    X(memory_info)           \
    X(peer_accessible)       \
    X(memory_device)         \
    X(host_function)         \
    X(sleep)                 \
    X(stream_notify)         \
    X(event_notify)          \
    X(notify_cancel)         \
    X(stream_gate)           \
    X(gate_open)             \
    X(stream_capturing)      \
    X(capture_begin)         \
    X(capture_end)           \
    X(capture_mode_exchange) \
    X(event_record_external) \
    X(stream_wait_external)  \
    X(graph_instantiate)     \
    X(graph_launch)          \
    X(executable_destroy)    \
    X(graph_destroy)         \
    X(graph_print)           \
    X(versions)              \
    X(shutdown)              \
    X(stream_capture)        \
    X(capture_gate)          \
    X(graph_nodes)           \
    X(graph_upload)

#define COUNT(name) +1
_Static_assert(offsetof(struct ps_backend, status_name) +
                       (0 MEMBERS(COUNT)) * sizeof(void (*)(void)) ==
                   sizeof(struct ps_backend),
               "a member of the contract is not forwarded");

const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend)
{
    static struct observed all[MOST_RUNTIMES];
    struct observed *made = &all[runtime];
    if (made->inner == NULL) {
        made->table = *backend;
#define FILL(name) made->table.name = backend->name != NULL ? name : NULL;
        MEMBERS(FILL)
#undef FILL
        made->runtime = runtime;
        made->inner = backend;
    }
    return &made->table;
}
