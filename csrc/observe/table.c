/* The race detector's table.  While the detector is on, core calls it instead
 * of the backend's own table, and it reports the calls to the detector. */
#include "table.h"

#include "forward.h"
#include "races.h"

static int
runtime_of(const struct ps_backend *backend)
{
    return ps_observer_of(backend)->runtime;
}

/* If `status` is PS_SUCCESS, forwards the call like PS_PASS, and evaluates to
 * the call's result.  Otherwise, does not forward the call, and evaluates to
 * `status`. */
#define PASS_AFTER(status, ...)                                 \
    ({                                                          \
        ps_status status_ = (status);                           \
        status_ == PS_SUCCESS ? PS_PASS(__VA_ARGS__) : status_; \
    })

/* ---- Streams and events ---- */

static ps_status
stream_destroy(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
    ps_races_forget_stream(&name);
    return PS_PASS(backend, stream_destroy, device, stream);
}

static ps_status
event_create(const struct ps_backend *backend, int device, unsigned flags,
             ps_handle *event)
{
    ps_status status = PS_PASS(backend, event_create, device, flags, event);
    if (status == PS_SUCCESS && (flags & PS_EVENT_INTERPROCESS)) {
        ps_races_share_event(runtime_of(backend), *event);
    }
    return status;
}

static ps_status
event_open(const struct ps_backend *backend, int device,
           const unsigned char handle[PS_IPC_HANDLE_BYTES], ps_handle *event)
{
    ps_status status = PS_PASS(backend, event_open, device, handle, event);
    if (status == PS_SUCCESS) {
        ps_races_share_event(runtime_of(backend), *event);
    }
    return status;
}

static ps_status
event_destroy(const struct ps_backend *backend, int device, ps_handle event)
{
    ps_races_forget_event(runtime_of(backend), event);
    return PS_PASS(backend, event_destroy, device, event);
}

static ps_status
stream_wait_event(const struct ps_backend *backend, int device,
                  ps_handle stream, ps_handle event)
{
    ps_status status =
        PS_PASS(backend, stream_wait_event, device, stream, event);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
        struct ps_moment *moment =
            ps_races_recorded(runtime_of(backend), event);
        ps_races_wait(&name, moment);
        ps_moment_unref(moment);
    }
    return status;
}

static ps_status
event_record(const struct ps_backend *backend, int device, ps_handle event,
             ps_handle stream)
{
    ps_status status = PS_PASS(backend, event_record, device, event, stream);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
        ps_races_record(event, &name);
    }
    return status;
}

/* ---- Completions of which the host learns ---- */

/* Report to the detector that the moment has been reached, unless the status
 * of the query or wait says that the work may still be pending.  Failed work
 * no longer counts as pending.  Drops the reference to the moment, and returns
 * the status. */
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
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    struct ps_moment *moment = ps_races_moment(&name, true);
    return learned(PS_PASS(backend, stream_query, device, stream), moment);
}

static ps_status
stream_synchronize(const struct ps_backend *backend, int device,
                   ps_handle stream, const struct ps_limit *limit)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    struct ps_moment *moment = ps_races_moment(&name, false);
    return learned(PS_PASS(backend, stream_synchronize, device, stream, limit),
                   moment);
}

static ps_status
event_query(const struct ps_backend *backend, int device, ps_handle event)
{
    struct ps_moment *moment = ps_races_recorded(runtime_of(backend), event);
    return learned(PS_PASS(backend, event_query, device, event), moment);
}

static ps_status
event_synchronize(const struct ps_backend *backend, int device,
                  ps_handle event, const struct ps_limit *limit)
{
    struct ps_moment *moment = ps_races_recorded(runtime_of(backend), event);
    return learned(PS_PASS(backend, event_synchronize, device, event, limit),
                   moment);
}

static ps_status
device_synchronize(const struct ps_backend *backend, int device,
                   const struct ps_limit *limit)
{
    struct ps_moment *moment =
        ps_races_device_moment(runtime_of(backend), device);
    return learned(PS_PASS(backend, device_synchronize, device, limit),
                   moment);
}

/* ---- Memory and work ---- */

/* If the status is PS_SUCCESS, report to the detector that the memory was
 * allocated.  Returns the status. */
static ps_status
allocated(ps_status status, void *const *data, size_t nbytes)
{
    if (status == PS_SUCCESS) {
        ps_races_forget_memory((uintptr_t)*data, nbytes);
    }
    return status;
}

static ps_status
memory_allocate(const struct ps_backend *backend, int device, ps_handle stream,
                size_t nbytes, void **data)
{
    return allocated(
        PS_PASS(backend, memory_allocate, device, stream, nbytes, data), data,
        nbytes);
}

static ps_status
pinned_allocate(const struct ps_backend *backend, int device, size_t nbytes,
                void **data)
{
    return allocated(PS_PASS(backend, pinned_allocate, device, nbytes, data),
                     data, nbytes);
}

static ps_status
shared_allocate(const struct ps_backend *backend, int device, size_t nbytes,
                unsigned char handle[PS_IPC_HANDLE_BYTES], void **data)
{
    return allocated(
        PS_PASS(backend, shared_allocate, device, nbytes, handle, data), data,
        nbytes);
}

static ps_status
shared_open(const struct ps_backend *backend, int device,
            const unsigned char handle[PS_IPC_HANDLE_BYTES], size_t nbytes,
            void **data)
{
    return allocated(
        PS_PASS(backend, shared_open, device, handle, nbytes, data), data,
        nbytes);
}

static ps_status
memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, const void *source, size_t nbytes)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    struct ps_access accesses[] = {
        {(uintptr_t)source, nbytes, false},
        {(uintptr_t)destination, nbytes, true},
    };
    return PASS_AFTER(ps_races_operation(&name, "copy", accesses, 2), backend,
                      memory_copy, device, stream, destination, source,
                      nbytes);
}

static ps_status
note_fill(const struct ps_backend *backend, int device, ps_handle stream,
          void *destination, size_t nbytes)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    struct ps_access access = {(uintptr_t)destination, nbytes, true};
    return ps_races_operation(&name, "fill", &access, 1);
}

static ps_status
memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, uint8_t value, size_t nbytes)
{
    return PASS_AFTER(note_fill(backend, device, stream, destination, nbytes),
                      backend, memory_fill, device, stream, destination, value,
                      nbytes);
}

static ps_status
memory_fill_items(const struct ps_backend *backend, int device,
                  ps_handle stream, void *destination, uint32_t value,
                  size_t size, size_t nbytes)
{
    return PASS_AFTER(note_fill(backend, device, stream, destination, nbytes),
                      backend, memory_fill_items, device, stream, destination,
                      value, size, nbytes);
}

/* Report an operation whose accesses to memory are not known, so that it gets
 * a number. */
static ps_status
number(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    return ps_races_operation(&name, "work", NULL, 0);
}

static ps_status
host_function(const struct ps_backend *backend, int device, ps_handle stream,
              ps_host_function function, void *argument)
{
    return PASS_AFTER(number(backend, device, stream), backend, host_function,
                      device, stream, function, argument);
}

static ps_status
sleep(const struct ps_backend *backend, int device, ps_handle stream,
      uint64_t cycles)
{
    return PASS_AFTER(number(backend, device, stream), backend, sleep, device,
                      stream, cycles);
}

static ps_status
stream_gate(const struct ps_backend *backend, int device, ps_handle stream,
            ps_notification_function reached, void *argument, ps_handle *gate)
{
    return PASS_AFTER(number(backend, device, stream), backend, stream_gate,
                      device, stream, reached, argument, gate);
}

static ps_status
capture_gate(const struct ps_backend *backend, int device, ps_handle stream,
             uint64_t capture, ps_launched_gate_function reached,
             void *argument)
{
    return PASS_AFTER(number(backend, device, stream), backend, capture_gate,
                      device, stream, capture, reached, argument);
}

/* ---- Captures and graphs ---- */

static ps_status
capture_begin(const struct ps_backend *backend, int device, ps_handle stream,
              enum ps_capture_mode mode)
{
    ps_status status = PS_PASS(backend, capture_begin, device, stream, mode);
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
        ps_races_capture_begin(&name);
    }
    return status;
}

static ps_status
capture_end(const struct ps_backend *backend, int device, ps_handle stream,
            ps_handle *graph, size_t *operations)
{
    ps_status status =
        PS_PASS(backend, capture_end, device, stream, graph, operations);
    if (status != PS_ERROR_CAPTURE_UNMATCHED) {
        struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
        ps_races_capture_end(&name, status == PS_SUCCESS ? *graph : 0);
    }
    return status;
}

/* If the status is PS_SUCCESS, report that a record of the event, or a wait
 * for it, was captured.  Returns the status. */
static ps_status
captured(const struct ps_backend *backend, ps_status status, int device,
         ps_handle stream, ps_handle event, bool records)
{
    if (status == PS_SUCCESS) {
        struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
        ps_races_capture_event(&name, event, records);
    }
    return status;
}

static ps_status
event_record_external(const struct ps_backend *backend, int device,
                      ps_handle event, ps_handle stream)
{
    return captured(
        backend,
        PS_PASS(backend, event_record_external, device, event, stream), device,
        stream, event, true);
}

static ps_status
stream_wait_external(const struct ps_backend *backend, int device,
                     ps_handle stream, ps_handle event)
{
    return captured(
        backend, PS_PASS(backend, stream_wait_external, device, stream, event),
        device, stream, event, false);
}

static ps_status
capture_graph(const struct ps_backend *backend, int device, ps_handle stream,
              ps_handle graph)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    return PASS_AFTER(ps_races_capture_graph(&name, graph), backend,
                      capture_graph, device, stream, graph);
}

/* If the status is PS_SUCCESS, report to the detector that a launch of the
 * executable will do the work of the graph.  Returns the status. */
static ps_status
instantiated(const struct ps_backend *backend, ps_status status,
             ps_handle graph, const ps_handle *executable)
{
    if (status == PS_SUCCESS) {
        ps_races_instantiate(runtime_of(backend), graph, *executable);
    }
    return status;
}

static ps_status
graph_instantiate(const struct ps_backend *backend, int device,
                  ps_handle graph, ps_handle *executable)
{
    return instantiated(
        backend,
        PS_PASS(backend, graph_instantiate, device, graph, executable), graph,
        executable);
}

static ps_status
graph_instantiate_with(const struct ps_backend *backend, int device,
                       ps_handle graph, unsigned options,
                       ps_handle *executable)
{
    return instantiated(backend,
                        PS_PASS(backend, graph_instantiate_with, device, graph,
                                options, executable),
                        graph, executable);
}

static ps_status
graph_update(const struct ps_backend *backend, int device,
             ps_handle executable, ps_handle graph,
             struct ps_graph_difference *difference)
{
    return instantiated(
        backend,
        PS_PASS(backend, graph_update, device, executable, graph, difference),
        graph, &executable);
}

static ps_status
graph_launch(const struct ps_backend *backend, int device,
             ps_handle executable, ps_handle stream)
{
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    return PASS_AFTER(ps_races_launch(&name, executable), backend,
                      graph_launch, device, executable, stream);
}

static ps_status
graph_destroy(const struct ps_backend *backend, int device, ps_handle graph)
{
    ps_races_forget_graph(runtime_of(backend), graph);
    return PS_PASS(backend, graph_destroy, device, graph);
}

static ps_status
executable_destroy(const struct ps_backend *backend, int device,
                   ps_handle executable)
{
    ps_races_forget_executable(runtime_of(backend), executable);
    return PS_PASS(backend, executable_destroy, device, executable);
}

/* ---- The table ---- */

static void
replace(struct ps_backend *table)
{
    PS_REPLACE(table, stream_destroy);
    PS_REPLACE(table, event_create);
    PS_REPLACE(table, event_open);
    PS_REPLACE(table, event_destroy);
    PS_REPLACE(table, stream_wait_event);
    PS_REPLACE(table, event_record);
    PS_REPLACE(table, stream_query);
    PS_REPLACE(table, stream_synchronize);
    PS_REPLACE(table, event_query);
    PS_REPLACE(table, event_synchronize);
    PS_REPLACE(table, device_synchronize);
    PS_REPLACE(table, memory_allocate);
    PS_REPLACE(table, pinned_allocate);
    PS_REPLACE(table, shared_allocate);
    PS_REPLACE(table, shared_open);
    PS_REPLACE(table, memory_copy);
    PS_REPLACE(table, memory_fill);
    PS_REPLACE(table, memory_fill_items);
    PS_REPLACE(table, host_function);
    PS_REPLACE(table, sleep);
    PS_REPLACE(table, stream_gate);
    PS_REPLACE(table, capture_begin);
    PS_REPLACE(table, capture_end);
    PS_REPLACE(table, capture_gate);
    PS_REPLACE(table, event_record_external);
    PS_REPLACE(table, stream_wait_external);
    PS_REPLACE(table, capture_graph);
    PS_REPLACE(table, graph_instantiate);
    PS_REPLACE(table, graph_instantiate_with);
    PS_REPLACE(table, graph_update);
    PS_REPLACE(table, graph_launch);
    PS_REPLACE(table, graph_destroy);
    PS_REPLACE(table, executable_destroy);
}

const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend)
{
    static struct ps_observer observers[PS_MOST_RUNTIMES][2];
    return ps_observer_table(observers, runtime, backend, replace);
}
