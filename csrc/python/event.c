/* The types `Event` and `cuda.Event`.  The core event (struct ps_event) lives
 * at least as long as the object.  An interprocess event is pickled as its
 * handle. */
#include "event.h"

#include "args.h"
#include "backends.h"
#include "buffer.h"
#include "device.h"
#include "enqueue.h"
#include "errors.h"
#include "ipc.h"
#include "races.h"
#include "stream.h"
#include "wait.h"
#include "waiter.h"

static struct ps_event *
event_of(PyObject *self)
{
    return ((EventObject *)self)->event;
}

static const struct ps_backend *
backend_of(PyObject *self)
{
    return event_of(self)->runtime->backend;
}

/* Returns the device of the event's native event; NULL if the event was never
 * recorded, exported or opened. */
static struct ps_device *
recorded_on(PyObject *self)
{
    struct ps_event *event = event_of(self);
    return atomic_load(&event->recorded) != 0 || ps_event_is_shared(event)
               ? atomic_load(&event->device)
               : NULL;
}

static void
release(struct ps_event *event)
{
    struct ps_runtime *runtime = event->runtime;
    ps_status status;
    /* ps_event_let_go only returns the native event to its pool.  It calls no
     * backend, so the GIL can be kept. */
    if (!ps_event_let_go(event)) {
        WITHOUT_GIL(status = ps_event_finish(event));
        report_cleanup(runtime, NULL, "dropping an event", status);
    }
}

/* Returns an object of this type for the event.  Takes over the reference to
 * the event, even on failure. */
static PyObject *
event_wrap(PyTypeObject *type, struct ps_event *event)
{
    EventObject *self = (EventObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        release(event);
        return NULL;
    }
    self->event = event;
    return (PyObject *)self;
}

static int
check_flags(struct ps_runtime *runtime, unsigned flags)
{
    if ((flags & PS_EVENT_TIMING) && (flags & PS_EVENT_INTERPROCESS)) {
        return refuse(PyExc_ValueError,
                      "an interprocess event cannot be timed: expected "
                      "enable_timing=False with interprocess=True");
    }
    if ((flags & PS_EVENT_TIMING) && runtime->backend->event_elapsed == NULL) {
        return zero_or_raise(runtime, "timing", PS_ERROR_NOT_SUPPORTED);
    }
    return 0;
}

PyObject *
event_new(PyTypeObject *type, struct ps_runtime *runtime, unsigned flags)
{
    struct ps_event *event;
    if (check_flags(runtime, flags) < 0) {
        return NULL;
    }
    ps_status status = ps_event_create(runtime, flags, &event);
    if (status != PS_SUCCESS) {
        return raise_status(runtime, "creating an event", status);
    }
    return event_wrap(type, event);
}

/* Convert a constructor's four switches to core's flags.  A switch that was
 * not given is NULL, and counts as False.  On failure, returns -1 with
 * TypeError. */
static int
event_flags(const char *const *names, PyObject *const *switches,
            unsigned *flags)
{
    static const unsigned meant[] = {PS_EVENT_TIMING, PS_EVENT_BLOCKING,
                                     PS_EVENT_INTERPROCESS, PS_EVENT_EXTERNAL};
    *flags = 0;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(meant); i++) {
        if (switches[i] != NULL && !PyBool_Check(switches[i])) {
            return refuse_type("Event", "a bool", names[i], switches[i]);
        }
        *flags |= switches[i] == Py_True ? meant[i] : 0;
    }
    return 0;
}

static const struct signature event_signature = {
    "Event",
    0,
    1,
    {"device", "enable_timing", "blocking", "interprocess", "external"}};
static const struct signature cuda_event_signature = {
    "Event", 0, 4, {"enable_timing", "blocking", "interprocess", "external"}};

static PyObject *
construct(PyTypeObject *type, PyObject **values)
{
    struct device_name name;
    unsigned flags;

    bool decide = values[1] == NULL || values[1] == Py_None;
    if (decide) {
        values[1] = NULL;
    }
    if (event_flags(event_signature.names + 1, values + 1, &flags) < 0 ||
        device_name_argument("Event", "device", -1, values[0], &name) < 0) {
        return NULL;
    }
    struct ps_runtime *runtime = use_runtime(name.type);
    struct ps_device *home = NULL;
    if (runtime == NULL ||
        (name.index >= 0 && (home = device_at("Event", name)) == NULL)) {
        return NULL;
    }
    if (decide && runtime->backend->event_elapsed != NULL &&
        !(flags & PS_EVENT_INTERPROCESS)) {
        flags |= PS_EVENT_TIMING;
    }
    PyObject *self = event_new(type, runtime, flags);
    if (self != NULL) {
        ((EventObject *)self)->event->home = home;
    }
    return self;
}

static const struct constructor event_constructor = {
    .signature = &event_signature,
    .construct = construct,
};

static PyObject *
Event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return construct_from_tuple(&event_constructor, type, args, kwargs);
}

static PyObject *
call(PyObject *type, PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    return call_constructor(&event_constructor, type, args, nargs, kwnames);
}

const vectorcallfunc event_call = call;

static void
Event_dealloc(PyObject *op)
{
    EventObject *self = (EventObject *)op;
    clear_weakrefs(op, self->weakrefs);
    if (self->event != NULL && !is_finalizing()) {
        release(self->event);
    }
    object_free(op);
}

static PyObject *
Event_repr(PyObject *self)
{
    struct ps_device *device = recorded_on(self);
    struct ps_device *home = event_of(self)->home;
    const char *type = Py_TYPE(self)->tp_name;
    if (device == NULL && home != NULL) {
        return PyUnicode_FromFormat("<%s %s:%d uninitialized>", type,
                                    backend_of(self)->name, home->index);
    }
    if (device == NULL) {
        return PyUnicode_FromFormat("<%s uninitialized>", type);
    }
    struct handle_text text =
        handle_text(atomic_load(&event_of(self)->handle));
    return PyUnicode_FromFormat("<%s %s:%d %s>", type, backend_of(self)->name,
                                device->index, text.chars);
}

/* Raise torch's error for an event and a stream of different device types.  If
 * the device types are the same, the event or the stream belongs to an
 * emulation, and the error says this instead. */
__attribute__((cold)) static int
raise_types(const char *operation, struct ps_event *event,
            struct ps_stream *stream, const char *stream_role)
{
    if (check_emulations(operation, "event", event->runtime, "stream",
                         stream->device->runtime) < 0) {
        return -1;
    }
    return refuse(
        PyExc_RuntimeError,
        "Event device type %s does not match %s stream's device type %s.",
        shout(event->runtime).chars, stream_role,
        shout(stream->device->runtime).chars);
}

/* Returns the name of the operation for an error message. */
static const char *
operation_on(struct ps_event *event, const char *operation)
{
    return event->external && (event->flags & PS_EVENT_INTERPROCESS)
               ? "an external event that is interprocess"
               : operation;
}

__attribute__((cold)) static int
raise_record(struct ps_event *event, struct ps_stream *stream,
             ps_status status)
{
    struct ps_device *device =
        event->home != NULL ? event->home : atomic_load(&event->device);
    if (status == PS_ERROR_INVALID_DEVICE && device != NULL &&
        device != stream->device) {
        PyErr_Format(PyExc_RuntimeError,
                     "Event device index %d does not match recording stream's "
                     "device index %d.",
                     device->index, stream->device->index);
    }
    else {
        raise_on_stream(
            stream,
            operation_on(event, event->flags & PS_EVENT_INTERPROCESS
                                    ? "recording an interprocess event"
                                    : "Event.record"),
            status);
    }
    return -1;
}

int
event_record_on(struct ps_event *event, struct ps_stream *stream)
{
    ps_status status;
    if (event->runtime != stream->device->runtime) {
        return raise_types("Event.record", event, stream, "recording");
    }
    if (atomic_load_explicit(&event->handle, memory_order_relaxed) == 0 &&
        !ps_event_bind_pooled(event, stream)) {
        /* The first record creates a native event, which may block. */
        ENQUEUE_WITHOUT_GIL(status, stream, ps_event_record(event, stream));
    }
    else {
        ENQUEUE(status, stream, ps_event_record(event, stream));
    }
    return status == PS_SUCCESS ? 0 : raise_record(event, stream, status);
}

__attribute__((cold)) static int
raise_event_wait(struct ps_event *event, struct ps_stream *stream,
                 const char *operation, ps_status status)
{
    ps_handle source = atomic_load(&event->source);
    bool known = source != (ps_handle)event;
    return raise_wait(stream, operation_on(event, operation),
                      known ? atomic_load(&event->device) : NULL, source,
                      status);
}

int
event_wait_on(struct ps_event *event, struct ps_stream *stream,
              const char *operation)
{
    ps_status status;
    if (event->runtime != stream->device->runtime) {
        return raise_types(operation, event, stream, "blocking");
    }
    status = ps_stream_wait_known(stream, event);
    if (status == PS_ERROR_NOT_KNOWN &&
        atomic_load_explicit(&event->handle, memory_order_relaxed) == 0) {
        /* A captured wait for an external event may create its native event,
         * which may block. */
        ENQUEUE_WITHOUT_GIL(status, stream,
                            ps_stream_wait_pending(stream, event));
    }
    else if (status == PS_ERROR_NOT_KNOWN) {
        ENQUEUE(status, stream, ps_stream_wait_pending(stream, event));
        if (status == PS_SUCCESS) {
            return note_wait(stream, atomic_load(&event->device),
                             atomic_load(&event->source));
        }
    }
    return status == PS_SUCCESS
               ? 0
               : raise_event_wait(event, stream, operation, status);
}

static PyObject *
Event_record(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    struct stream_use use;
    if (stream_use_parsed("record", backend_of(self)->device_type, args, nargs,
                          kwnames, &use) < 0) {
        return NULL;
    }
    int result = event_record_on(event_of(self), use.stream);
    stream_use_end(&use);
    return none_unless_raised(result);
}

static PyObject *
Event_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    struct stream_use use;
    if (stream_use_parsed("wait", backend_of(self)->device_type, args, nargs,
                          kwnames, &use) < 0) {
        return NULL;
    }
    int result = event_wait_on(event_of(self), use.stream, "Event.wait");
    stream_use_end(&use);
    return none_unless_raised(result);
}

static PyObject *
Event_query(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_status status = ps_event_query(event_of(self));
    if (status == PS_SUCCESS) {
        event_reached(event_of(self));
    }
    return bool_or_raise(event_of(self)->runtime, "Event.query", status);
}

static PyObject *
Event_synchronize(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    struct ps_event *event = event_of(self);
    PyObject *timeout;
    int64_t timeout_ns;
    if (parse_optional("synchronize", "timeout", args, nargs, kwnames,
                       &timeout) < 0 ||
        timeout_argument("synchronize", timeout, &timeout_ns) < 0) {
        return NULL;
    }
    ps_status status = ps_event_synchronize_known(event);
    if (status != PS_ERROR_NOT_KNOWN) {
        if (status == PS_SUCCESS) {
            event_reached(event);
        }
        if (ps_memory_has_retired(&event->runtime->memory)) {
            memory_settle(event->runtime);
        }
        return none_or_raise(event->runtime, "Event.synchronize", status);
    }
    struct work work = {
        .operation = "Event.synchronize",
        .device = atomic_load(&event->device),
        .event = event,
    };
    return waited(&work, timeout, timeout_ns);
}

/* Make all of elapsed_time's checks, except whether the two events have
 * completed. */
static int
check_timed(PyObject *self, PyObject *other)
{
    struct ps_event *start = event_of(self), *end = event_of(other);
    if (start->runtime != end->runtime) {
        if (check_emulations("Event.elapsed_time", "event", start->runtime,
                             "other one", end->runtime) < 0) {
            return -1;
        }
        return refuse(
            PyExc_RuntimeError,
            "Event device type %s does not match other's device type %s.",
            shout(start->runtime).chars, shout(end->runtime).chars);
    }
    if (start->runtime->backend->event_elapsed == NULL) {
        return zero_or_raise(start->runtime, "timing", PS_ERROR_NOT_SUPPORTED);
    }
    if (!(start->flags & end->flags & PS_EVENT_TIMING)) {
        return refuse(
            PyExc_ValueError,
            "Both events must be created with argument 'enable_timing=True'.");
    }
    struct ps_device *a = recorded_on(self), *b = recorded_on(other);
    if (a == NULL || b == NULL) {
        return refuse(
            PyExc_ValueError,
            "Both events must be recorded before calculating elapsed time.");
    }
    if (a != b) {
        return refuse(
            PyExc_RuntimeError,
            "Event device index %d does not match other's device index %d.",
            a->index, b->index);
    }
    return 0;
}

static PyObject *
Event_elapsed_time(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    PyObject *other;
    if (parse_required("elapsed_time", "end_event", args, nargs, kwnames,
                       &other) < 0) {
        return NULL;
    }
    if (!is_event(other)) {
        return raise_expected("elapsed_time", "an Event", "end_event", other);
    }
    if (check_timed(self, other) < 0) {
        return NULL;
    }
    struct ps_event *start = event_of(self), *end = event_of(other);
    float milliseconds;
    ps_status status = ps_event_query(start);
    if (status == PS_SUCCESS) {
        status = ps_event_query(end);
    }
    if (status == PS_SUCCESS) {
        status = ps_event_elapsed(start, end, &milliseconds);
    }
    if (status == PS_ERROR_NOT_READY) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "Both events must be completed before calculating elapsed time.");
    }
    if (status != PS_SUCCESS) {
        return raise_status(start->runtime, "Event.elapsed_time", status);
    }
    return PyFloat_FromDouble((double)milliseconds);
}

static PyObject *
Event_get_device(PyObject *self, void *Py_UNUSED(closure))
{
    struct ps_device *device = recorded_on(self);
    if (device == NULL) {
        device = event_of(self)->home;
    }
    return device_new(backend_of(self)->device_type,
                      device != NULL ? device->index : -1);
}

static PyObject *
Event_get_event_id(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(
        recorded_on(self) != NULL ? atomic_load(&event_of(self)->handle) : 0);
}

static PyObject *
Event_get_flag(PyObject *self, void *closure)
{
    return PyBool_FromLong(event_of(self)->flags & (uintptr_t)closure);
}

/* ---- Interprocess events ---- */

static const struct shared_kind shared_event = {
    .type = "Event",
    .noun = "event",
    .feature = "interprocess events",
    .bytes = PS_IPC_HANDLE_BYTES,
};

static const unsigned char *
export_handle(PyObject *self)
{
    struct ps_event *event = event_of(self);
    const unsigned char *handle;
    if (event->runtime->backend->event_export == NULL) {
        raise_absent(event->runtime, shared_event.feature);
        return NULL;
    }
    struct ps_device *device = atomic_load(&event->device);
    if (device == NULL) {
        device = event->home;
    }
    if (device == NULL) {
        struct device_name name = {event->runtime->backend->device_type, -1};
        device = device_at("ipc_handle", name);
    }
    if (device == NULL) {
        return NULL;
    }
    ps_status status;
    WITHOUT_GIL(status = ps_event_export(event, device, &handle));
    if (status != PS_SUCCESS) {
        raise_status(event->runtime, "Event.ipc_handle", status);
        return NULL;
    }
    return handle;
}

static PyObject *
Event_ipc_handle(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!(event_of(self)->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "ipc_handle() needs an interprocess event: expected one made with "
            "interprocess=True and enable_timing=False");
    }
    const unsigned char *handle = export_handle(self);
    return handle != NULL ? PyBytes_FromStringAndSize((const char *)handle,
                                                      PS_IPC_HANDLE_BYTES)
                          : NULL;
}

static PyObject *
Event_from_ipc_handle(PyObject *cls, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames)
{
    PyTypeObject *type = (PyTypeObject *)cls;
    int only = PyType_IsSubtype(type, module_state.cuda_event_type)
                   ? PS_DEVICE_CUDA
                   : -1;
    struct ps_device *device;
    struct ps_event *event;
    Py_buffer handle;
    ps_status status;
    bool indexed;
    if (ipc_arguments(&shared_event, only, args, nargs, kwnames, &device,
                      &indexed, &handle) < 0) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_event_open(device, handle.buf, &event));
    PyBuffer_Release(&handle);
    return status == PS_SUCCESS
               ? event_wrap(type, event)
               : raise_not_opened(&shared_event, device, status);
}

static PyObject *
Event_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_event *event = event_of(self);
    if (!(event->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(PyExc_TypeError,
                            "cannot pickle '%s' object: expected one made "
                            "with interprocess=True and enable_timing=False, "
                            "which other processes can open",
                            Py_TYPE(self)->tp_name);
    }
    const unsigned char *handle = export_handle(self);
    if (handle == NULL) {
        return NULL;
    }
    struct ps_device *device = atomic_load(&event->device);
    struct device_name name = {device->runtime->backend->device_type,
                               device->index};
    return ipc_reduce(self, name, handle, PS_IPC_HANDLE_BYTES,
                      event->flags & PS_EVENT_BLOCKING ? Py_True : NULL);
}

static PyObject *
Event_setstate(PyObject *self, PyObject *blocking)
{
    struct ps_event *event = event_of(self);
    /* The flags of other events must not change, because they decide to which
     * pool the native event returns.  The native event of an interprocess
     * event is never pooled. */
    if (!PyBool_Check(blocking) || !(event->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(PyExc_TypeError,
                            "__setstate__() is for an interprocess event that "
                            "is being unpickled");
    }
    if (blocking == Py_True) {
        event->flags |= PS_EVENT_BLOCKING;
    }
    Py_RETURN_NONE;
}

static PyMethodDef event_methods[] = {
    METHOD("record", Event_record, METH_FASTCALL | METH_KEYWORDS,
           ", /, stream=None",
           "Record the stream's current position: the event completes when "
           "all work queued before\nthis call has completed "
           "(cudaEventRecord).\n\n"
           "The default is the current stream of the event's device type.  "
           "Replaces any earlier\nrecord.  Blocks with the GIL released while "
           "the stream's queue is full, as\nStream.record_event does.  Raises "
           "RuntimeError for a stream of a device other than the\nevent's."),
    METHOD("wait", Event_wait, METH_FASTCALL | METH_KEYWORDS,
           ", /, stream=None",
           "Make all work queued on the stream after this call wait for the "
           "event's latest record\n(cudaStreamWaitEvent).\n\n"
           "The default is the current stream.  Does nothing if the event was "
           "never recorded.  In a\ncapture, an external event is bound to the "
           "stream's device, and each replay waits for\nthe record that is "
           "the latest at the time of the replay.  Blocks with the GIL "
           "released\nwhile the stream's queue is full."),
    METHOD("query", Event_query, METH_NOARGS, ", /",
           "Return whether the work before the latest record has completed "
           "(cudaEventQuery).\n\n"
           "True if never recorded.  Does not block, but other Python threads "
           "may run before it\nreturns False.  Raises AcceleratorError with "
           "the failure of that work."),
    METHOD(
        "synchronize", Event_synchronize, METH_FASTCALL | METH_KEYWORDS,
        ", /, timeout=None",
        "Wait until the work before the latest record has completed "
        "(cudaEventSynchronize).\n\n"
        "Blocks with the GIL released, for timeout seconds at most; returns "
        "at once if never\nrecorded.  Ctrl-C ends a wait with a timeout, and "
        "any wait on the CPU engine; the work\ngoes on.  Raises TimeoutError, "
        "or AcceleratorError with the failure of that work."),
    METHOD("elapsed_time", Event_elapsed_time, METH_FASTCALL | METH_KEYWORDS,
           ", /, end_event",
           "Return the milliseconds from this event to end_event "
           "(cudaEventElapsedTime).\n\n"
           "Does not block.  Raises ValueError unless both are timed and "
           "recorded, RuntimeError\nunless both are done and on the same "
           "device, NotImplementedError if the backend has no\ntiming."),
    METHOD("ipc_handle", Event_ipc_handle, METH_NOARGS, ", /",
           "Return the 64 bytes by which another process opens the event "
           "(cudaIpcGetEventHandle).\n\n"
           "If the event was never recorded, creates it, on its device or, if "
           "it has none, on the\ncurrent one.  The handle is valid while the "
           "Event and its process live.  Raises\nRuntimeError unless the "
           "event was made with interprocess=True, NotImplementedError "
           "if\nthe backend has no such events."),
    CLASS_METHOD(
        "from_ipc_handle", Event_from_ipc_handle,
        METH_FASTCALL | METH_KEYWORDS, ", /, device, handle",
        "Open an event of another process (cudaIpcOpenEventHandle).\n\n"
        "Either process may record it; wait, query and synchronize use the "
        "latest record by any\nprocess.  On the CPU engine, a record fails if "
        "its process ends before its work.  Raises\nValueError for anything "
        "but the handle of an event of the device, RuntimeError if the\nevent "
        "no longer exists or belongs to this process."),
    METHOD("__reduce__", Event_reduce, METH_NOARGS, ", /",
           "Pickle an interprocess event, to be opened by its handle.\n\n"
           "Raises TypeError for any other event."),
    METHOD(
        "__setstate__", Event_setstate, METH_O, ", blocking, /",
        "Restore the flag of a pickled event that its handle does not carry."),
    {NULL},
};

static PyGetSetDef event_getset[] = {
    {"device", Event_get_device, NULL,
     PyDoc_STR("The event's device; its index is None until the event is "
               "first recorded or exported,\nunless the constructor was given "
               "one.")},
    {"event_id", Event_get_event_id, NULL,
     PyDoc_STR("The native handle; 0 until first recorded or exported.")},
    {"enable_timing", Event_get_flag, NULL,
     PyDoc_STR("Whether elapsed_time is available."), (void *)PS_EVENT_TIMING},
    {"blocking", Event_get_flag, NULL,
     PyDoc_STR("Whether synchronize sleeps instead of spinning."),
     (void *)PS_EVENT_BLOCKING},
    {"interprocess", Event_get_flag, NULL,
     PyDoc_STR("Whether another process may open the event."),
     (void *)PS_EVENT_INTERPROCESS},
    {NULL},
};

static PyMemberDef event_members[] = {
    WEAKREFS(EventObject),
    {NULL},
};

PyDoc_STRVAR(
    event_doc,
    "Event(device=None, *, enable_timing=True, blocking=False, "
    "interprocess=False, external=False)\n--\n\n"
    "A point in a stream's work that can be waited for and timed.\n\n"
    "device: the event's device type, and, with an index, the only device "
    "that may record\nthe event; by default the default accelerator's type, "
    "and the device of the first\nrecord.  enable_timing: by default true if "
    "the backend has timing and the event is not\ninterprocess.  An event is "
    "equal only to itself.\n\n"
    "blocking: synchronize() on CUDA sleeps instead of spinning, which frees "
    "the core for\nother threads but ends later.  interprocess: other "
    "processes can open it.  external:\neach replay of a graph executes a "
    "captured record or wait again; not together with\ninterprocess on the "
    "CPU engine.\n\n"
    "Raises TypeError for a switch that is not a bool, ValueError for "
    "enable_timing=True\nwith interprocess=True, NotImplementedError for "
    "enable_timing=True if the backend has\nno timing, RuntimeError if the "
    "device type is not available.  Safe to use from several\nthreads.");

static PyType_Slot event_slots[] = {
    {Py_tp_new, Event_new},
    {Py_tp_dealloc, Event_dealloc},
    {Py_tp_repr, Event_repr},
    {Py_tp_methods, event_methods},
    {Py_tp_getset, event_getset},
    {Py_tp_members, event_members},
    {Py_am_await, Event_await},
    {Py_tp_doc, (void *)event_doc},
    {0, NULL},
};

PyType_Spec event_spec = TYPE_SPEC("pystreams.Event", EventObject,
                                   Py_TPFLAGS_BASETYPE, event_slots);

static PyObject *
construct_cuda(PyTypeObject *type, PyObject **values)
{
    unsigned flags;
    if (event_flags(cuda_event_signature.names, values, &flags) < 0) {
        return NULL;
    }
    /* As in torch, an event may be created on a machine without a GPU. */
    struct ps_runtime *runtime = find_runtime(PS_DEVICE_CUDA);
    return runtime != NULL ? event_new(type, runtime, flags) : NULL;
}

static const struct constructor cuda_event_constructor = {
    .signature = &cuda_event_signature,
    .construct = construct_cuda,
};

static PyObject *
CudaEvent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return construct_from_tuple(&cuda_event_constructor, type, args, kwargs);
}

static PyObject *
call_cuda(PyObject *type, PyObject *const *args, size_t nargs,
          PyObject *kwnames)
{
    return call_constructor(&cuda_event_constructor, type, args, nargs,
                            kwnames);
}

const vectorcallfunc cuda_event_call = call_cuda;

static PyObject *
CudaEvent_get_device(PyObject *self, void *Py_UNUSED(closure))
{
    struct ps_device *device = atomic_load(&event_of(self)->device);
    if (device == NULL) {
        Py_RETURN_NONE;
    }
    return device_new(PS_DEVICE_CUDA, device->index);
}

static PyObject *
CudaEvent_get_handle(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(atomic_load(&event_of(self)->handle));
}

static PyObject *
CudaEvent_get_as_parameter(PyObject *self, void *Py_UNUSED(closure))
{
    return ctypes_pointer(atomic_load(&event_of(self)->handle));
}

static PyGetSetDef cuda_event_getset[] = {
    {"device", CudaEvent_get_device, NULL,
     PyDoc_STR("The event's device; None until it is created at the first "
               "record.")},
    {"cuda_event", CudaEvent_get_handle, NULL,
     PyDoc_STR("The cudaEvent_t as an int; 0 until the first record.")},
    {"_as_parameter_", CudaEvent_get_as_parameter, NULL,
     PyDoc_STR("The cudaEvent_t as ctypes passes it to a foreign "
               "function.")},
    {NULL},
};

PyDoc_STRVAR(
    cuda_event_doc,
    "Event(enable_timing=False, blocking=False, interprocess=False, "
    "external=False)\n--\n\n"
    "A CUDA event (cudaEventCreateWithFlags), created at its first record.\n\n"
    "external: each replay of a captured record or wait executes it "
    "again\n(cudaEventRecordExternal, cudaEventWaitExternal); otherwise it "
    "only orders the\ncaptured work.\n\n"
    "Raises TypeError for a switch that is not a bool, ValueError for an "
    "interprocess event\nthat is timed.");

static PyType_Slot cuda_event_slots[] = {
    {Py_tp_new, CudaEvent_new},
    {Py_tp_dealloc, Event_dealloc},
    /* The derived type repeats these methods instead of inheriting them; see
     * stream_methods in stream.h. */
    {Py_tp_methods, event_methods},
    {Py_tp_getset, cuda_event_getset},
    {Py_tp_doc, (void *)cuda_event_doc},
    {0, NULL},
};

PyType_Spec cuda_event_spec = TYPE_SPEC("pystreams.cuda.Event", EventObject,
                                        Py_TPFLAGS_BASETYPE, cuda_event_slots);
