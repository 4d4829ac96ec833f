/* The table that stands between core and a backend while something looks for
 * races: it reports the calls to the race detector. */
#include "table.h"

#include "forward.h"
#include "races.h"

enum { MOST_RUNTIMES = 8 };

static const struct ps_backend *
inner(const struct ps_backend *backend)
{
    return ps_observed(backend);
}

static struct ps_actor_name
name_of(const struct ps_backend *backend, int device, ps_handle stream)
{
    return ps_actor_in_order(backend, device, stream);
}

/* ---- Streams and events ---- */

static ps_status
stream_destroy(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
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
        ps_races_share_event(ps_observer_of(backend)->runtime, *event);
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
        ps_races_share_event(ps_observer_of(backend)->runtime, *event);
    }
    return status;
}

static ps_status
event_destroy(const struct ps_backend *backend, int device, ps_handle event)
{
    ps_races_forget_event(ps_observer_of(backend)->runtime, event);
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
            ps_races_recorded(ps_observer_of(backend)->runtime, event);
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
        ps_races_recorded(ps_observer_of(backend)->runtime, event);
    return learned(inner(backend)->event_query(inner(backend), device, event),
                   moment);
}

static ps_status
event_synchronize(const struct ps_backend *backend, int device,
                  ps_handle event, const struct ps_limit *limit)
{
    struct ps_moment *moment =
        ps_races_recorded(ps_observer_of(backend)->runtime, event);
    return learned(inner(backend)->event_synchronize(inner(backend), device,
                                                     event, limit),
                   moment);
}

static ps_status
device_synchronize(const struct ps_backend *backend, int device,
                   const struct ps_limit *limit)
{
    struct ps_moment *moment =
        ps_races_device_moment(ps_observer_of(backend)->runtime, device);
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
shared_allocate(const struct ps_backend *backend, int device, size_t nbytes,
                unsigned char handle[PS_IPC_HANDLE_BYTES], void **data)
{
    ps_status status = inner(backend)->shared_allocate(inner(backend), device,
                                                       nbytes, handle, data);
    if (status == PS_SUCCESS) {
        ps_races_forget_memory((uintptr_t)*data, nbytes);
    }
    return status;
}

static ps_status
shared_open(const struct ps_backend *backend, int device,
            const unsigned char handle[PS_IPC_HANDLE_BYTES], size_t nbytes,
            void **data)
{
    ps_status status = inner(backend)->shared_open(inner(backend), device,
                                                   handle, nbytes, data);
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

static ps_status
memory_fill_items(const struct ps_backend *backend, int device,
                  ps_handle stream, void *destination, uint32_t value,
                  size_t size, size_t nbytes)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    struct ps_access access = {(uintptr_t)destination, nbytes, true};
    ps_status status = ps_races_operation(&name, "fill", &access, 1);
    return status != PS_SUCCESS
               ? status
               : inner(backend)->memory_fill_items(inner(backend), device,
                                                   stream, destination, value,
                                                   size, nbytes);
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
capture_graph(const struct ps_backend *backend, int device, ps_handle stream,
              ps_handle graph)
{
    struct ps_actor_name name = name_of(backend, device, stream);
    ps_status status = ps_races_capture_graph(&name, graph);
    return status != PS_SUCCESS ? status
                                : inner(backend)->capture_graph(
                                      inner(backend), device, stream, graph);
}

static ps_status
graph_instantiate(const struct ps_backend *backend, int device,
                  ps_handle graph, ps_handle *executable)
{
    ps_status status = inner(backend)->graph_instantiate(
        inner(backend), device, graph, executable);
    if (status == PS_SUCCESS) {
        ps_races_instantiate(ps_observer_of(backend)->runtime, graph,
                             *executable);
    }
    return status;
}

static ps_status
graph_instantiate_with(const struct ps_backend *backend, int device,
                       ps_handle graph, unsigned options,
                       ps_handle *executable)
{
    ps_status status = inner(backend)->graph_instantiate_with(
        inner(backend), device, graph, options, executable);
    if (status == PS_SUCCESS) {
        ps_races_instantiate(ps_observer_of(backend)->runtime, graph,
                             *executable);
    }
    return status;
}

static ps_status
graph_update(const struct ps_backend *backend, int device,
             ps_handle executable, ps_handle graph,
             struct ps_graph_difference *difference)
{
    ps_status status = inner(backend)->graph_update(
        inner(backend), device, executable, graph, difference);
    if (status == PS_SUCCESS) {
        ps_races_instantiate(ps_observer_of(backend)->runtime, graph,
                             executable);
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
    ps_races_forget_graph(ps_observer_of(backend)->runtime, graph);
    return inner(backend)->graph_destroy(inner(backend), device, graph);
}

static ps_status
executable_destroy(const struct ps_backend *backend, int device,
                   ps_handle executable)
{
    ps_races_forget_executable(ps_observer_of(backend)->runtime, executable);
    return inner(backend)->executable_destroy(inner(backend), device,
                                              executable);
}

/* ---- The table ---- */

const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend)
{
    static struct ps_observer all[MOST_RUNTIMES][2];
    int released = (backend->flags & PS_BACKEND_SHARED) != 0;
    struct ps_observer *made = &all[runtime][released];
    if (made->inner == NULL) {
        ps_forward(made, runtime, backend);
        PS_REPLACE(made, stream_destroy);
        PS_REPLACE(made, event_create);
        PS_REPLACE(made, event_open);
        PS_REPLACE(made, event_destroy);
        PS_REPLACE(made, stream_wait_event);
        PS_REPLACE(made, event_record);
        PS_REPLACE(made, stream_query);
        PS_REPLACE(made, stream_synchronize);
        PS_REPLACE(made, event_query);
        PS_REPLACE(made, event_synchronize);
        PS_REPLACE(made, device_synchronize);
        PS_REPLACE(made, memory_allocate);
        PS_REPLACE(made, pinned_allocate);
        PS_REPLACE(made, shared_allocate);
        PS_REPLACE(made, shared_open);
        PS_REPLACE(made, memory_copy);
        PS_REPLACE(made, memory_fill);
        PS_REPLACE(made, memory_fill_items);
        PS_REPLACE(made, host_function);
        PS_REPLACE(made, sleep);
        PS_REPLACE(made, stream_gate);
        PS_REPLACE(made, capture_begin);
        PS_REPLACE(made, capture_end);
        PS_REPLACE(made, capture_gate);
        PS_REPLACE(made, event_record_external);
        PS_REPLACE(made, stream_wait_external);
        PS_REPLACE(made, capture_graph);
        PS_REPLACE(made, graph_instantiate);
        PS_REPLACE(made, graph_instantiate_with);
        PS_REPLACE(made, graph_update);
        PS_REPLACE(made, graph_launch);
        PS_REPLACE(made, graph_destroy);
        PS_REPLACE(made, executable_destroy);
    }
    atomic_store(&made->inner, backend);
    return &made->table;
}
