/* The types `Stream` and `cuda.Stream`.  A method that may block or release
 * the GIL first begins a use of the stream (struct stream_use), because
 * another thread may close the object meanwhile. */
#include "stream.h"

#include <limits.h>

#include "../core/trace.h"
#include "../core/work.h"

#include "args.h"
#include "captured.h"
#include "backends.h"
#include "buffer.h"
#include "current.h"
#include "device.h"
#include "enqueue.h"
#include "errors.h"
#include "event.h"
#include "external_stream.h"
#include "schedules.h"
#include "submit.h"
#include "wait.h"
#include "waiter.h"

static StreamObject *
as_stream(PyObject *self)
{
    return (StreamObject *)self;
}

static const struct ps_backend *
backend_of(PyObject *self)
{
    return as_stream(self)->device->runtime->backend;
}

/* Call this before the program gets the stream's handle or can queue work on
 * the stream.  A stream that was not marked is assumed to be idle, and is not
 * queried. */
static void
mark_used(struct ps_stream *stream)
{
    atomic_store_explicit(&stream->used, true, memory_order_relaxed);
}

/* Compare and exchange: if the object's `uses` still equals *uses, which the
 * caller has read, set it to `changed` and return true.  Otherwise, store its
 * present value in *uses and return false.  May also fail spuriously, so call
 * this in a loop.  With a GIL, always succeeds. */
static inline bool
change_uses(PyObject *self, unsigned *uses, unsigned changed)
{
#ifdef Py_GIL_DISABLED
    return atomic_compare_exchange_weak(&as_stream(self)->uses, uses, changed);
#else
    (void)uses;
    as_stream(self)->uses = changed;
    return true;
#endif
}

struct ps_stream *
stream_take(PyObject *self)
{
    unsigned uses = as_stream(self)->uses;
    do {
        if (uses & STREAM_CLOSED) {
            return NULL;
        }
    } while (!change_uses(self, &uses, uses | STREAM_CLOSED));
    return uses == 0 ? as_stream(self)->stream : NULL;
}

__attribute__((noinline)) static void
release_last(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    ps_status status;
    WITHOUT_GIL(status = ps_stream_unref(stream));
    report_cleanup(device->runtime, device, "dropping a stream", status);
}

void
stream_release(struct ps_stream *stream)
{
    if (stream != NULL && !ps_stream_drop_shared(stream)) {
        release_last(stream);
    }
}

PyObject *
stream_name_at(struct ps_device *device, ps_handle handle)
{
    struct ps_stream *stream =
        handle != 0 ? ps_stream_find(device, handle) : NULL;
    const char *name = stream != NULL ? ps_stream_name(stream) : NULL;
    PyObject *result =
        name != NULL ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
    stream_release(stream);
    return result;
}

static inline bool
try_use(PyObject *stream, struct stream_use *use)
{
    unsigned uses = as_stream(stream)->uses;
    do {
        if (uses & (STREAM_CLOSED | STREAM_CALLERS)) {
            return false;
        }
    } while (!change_uses(stream, &uses, uses + 1));
    use->object = as_stream(stream);
    use->stream = use->object->stream;
    mark_used(use->stream);
    return true;
}

/* Called for an object with STREAM_CLOSED or STREAM_CALLERS set.  Returns a
 * new reference to the calling thread's default stream.  On failure, returns
 * NULL with an exception, which is ValueError if the object is closed. */
__attribute__((cold, noinline)) static struct ps_stream *
callers_stream(PyObject *stream)
{
    if (stream_is_closed(stream)) {
        PyErr_Format(PyExc_ValueError, "the Stream is closed: %R", stream);
        return NULL;
    }
    return thread_stream(as_stream(stream)->device);
}

/* Like callers_stream, but on failure returns NULL without an exception. */
__attribute__((cold, noinline)) static struct ps_stream *
try_callers_stream(PyObject *stream)
{
    struct saved_exception saved = exception_save();
    struct ps_stream *callers = callers_stream(stream);
    exception_restore(saved);
    return callers;
}

int
stream_use(PyObject *stream, struct stream_use *use)
{
    if (try_use(stream, use)) {
        return 0;
    }
    use->object = NULL;
    use->stream = callers_stream(stream);
    return use->stream != NULL ? 0 : -1;
}

bool
stream_try_use(PyObject *stream, struct stream_use *use)
{
    if (try_use(stream, use)) {
        return true;
    }
    use->object = NULL;
    use->stream = try_callers_stream(stream);
    return use->stream != NULL;
}

/* End a use of the object.  Returns true if the object is closed and this was
 * its last use.  The caller must then release the stream. */
static inline bool
end_use(PyObject *stream)
{
    /* On a free-threaded interpreter, `uses` is atomic, so that no other
     * thread can change it between the decrement and the comparison. */
    return --as_stream(stream)->uses == STREAM_CLOSED;
}

void
stream_use_end(struct stream_use *use)
{
    if (use->object == NULL || end_use((PyObject *)use->object)) {
        stream_release(use->stream);
    }
}

struct ps_stream *
stream_share(PyObject *stream)
{
    struct stream_use use;
    if (stream_use(stream, &use) < 0) {
        return NULL;
    }
    ps_stream_ref(use.stream);
    stream_use_end(&use);
    return use.stream;
}

/* Check that the Stream is open, before its handle is used.  The handle of a
 * closed Stream may belong to another stream by now.  On failure, returns -1
 * with an exception, which is ValueError if the Stream is closed. */
static int
check_open(PyObject *stream)
{
    struct stream_use use;
    if (stream_use(stream, &use) < 0) {
        return -1;
    }
    stream_use_end(&use);
    return 0;
}

/* Returns the stream to store in the object for `stream`, whose handle is
 * PS_STREAM_PER_THREAD.  If `stream` is a thread's default stream, drops the
 * reference to it and returns the device's callers_stream.  Otherwise returns
 * `stream`.  Sets self->uses accordingly. */
__attribute__((cold, noinline)) static struct ps_stream *
stand_in(StreamObject *self, struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    if (stream->kind == PS_STREAM_THREADS) {
        stream_release(stream);
        stream = &device->callers_stream;
    }
    self->uses = stream->kind == PS_STREAM_CALLERS ? STREAM_CALLERS : 0;
    return stream;
}

PyObject *
stream_wrap(PyTypeObject *type, struct ps_stream *stream)
{
    if (type == NULL) {
        int device_type = stream->device->runtime->backend->device_type;
        type = device_type == PS_DEVICE_CUDA ? module_state.cuda_stream_type
                                             : module_state.stream_type;
    }
    StreamObject *self = (StreamObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        stream_release(stream);
        return NULL;
    }
    if (stream->handle == PS_STREAM_PER_THREAD) {
        stream = stand_in(self, stream);
    }
    self->stream = stream;
    self->device = stream->device;
    self->handle = stream->handle;
    const char *name = ps_stream_name(stream);
    if (name != NULL && (self->name = PyUnicode_FromString(name)) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

struct ps_stream *
stream_named(const char *function, PyObject *argument)
{
    return is_stream(argument) ? stream_share(argument)
                               : foreign_stream(function, argument);
}

int
stream_use_named(const char *function, PyObject *argument,
                 struct stream_use *use)
{
    if (is_stream(argument)) {
        return stream_use(argument, use);
    }
    use->object = NULL;
    use->stream = foreign_stream(function, argument);
    return use->stream != NULL ? 0 : -1;
}

int
stream_use_parsed(const char *method, int type, PyObject *const *args,
                  Py_ssize_t nargs, PyObject *kwnames, struct stream_use *use)
{
    PyObject *argument;
    if (parse_optional(method, "stream", args, nargs, kwnames, &argument) <
        0) {
        return -1;
    }
    if (argument != NULL) {
        return stream_use_named(method, argument, use);
    }
    use->object = NULL;
    use->stream = current_stream_at(type);
    return use->stream != NULL ? 0 : -1;
}

/* The indices of the constructors' parameters. */
enum {
    DEVICE,
    PRIORITY,
    STREAM_ID,
    DEVICE_INDEX,
    DEVICE_TYPE,
    NAME,
    RESERVE,
    BLOCKING,
    PARAMETERS
};

/* Stream(stream_id=, device_index=, device_type=): returns another object for
 * an existing stream. */
static PyObject *
stream_from_ids(PyTypeObject *type, PyObject **values)
{
    struct device_name name;
    ps_handle handle;
    if (values[STREAM_ID] == NULL || values[DEVICE_INDEX] == NULL ||
        values[DEVICE_TYPE] == NULL) {
        return PyErr_Format(PyExc_TypeError,
                            "Stream() expects stream_id, device_index and "
                            "device_type together");
    }
    if (handle_argument("Stream", "stream_id", values[STREAM_ID], &handle) <
            0 ||
        clamped_argument("Stream", "device_type", values[DEVICE_TYPE],
                         &name.type) < 0 ||
        find_runtime(name.type) == NULL) {
        return NULL;
    }
    if (PyType_IsSubtype(type, module_state.cuda_stream_type) &&
        name.type != PS_DEVICE_CUDA) {
        return PyErr_Format(PyExc_ValueError,
                            "Expected a cuda device, but got: %s",
                            device_type_name(name.type));
    }
    struct ps_device *device =
        index_argument("Stream", "device_index", values[DEVICE_INDEX],
                       &name.index) == 0
            ? device_at("Stream", name)
            : NULL;
    if (device == NULL) {
        return NULL;
    }
    struct ps_stream *stream =
        stream_from_handle("Stream", device, true, handle, NULL);
    return stream != NULL ? stream_wrap(type, stream) : NULL;
}

static PyObject *
stream_create(PyTypeObject *type, struct ps_device *device, int priority,
              bool blocking, const char *name)
{
    struct ps_stream *stream;
    ps_status status;
    if (blocking && device->runtime->backend->blocking_create == NULL) {
        return raise_absent(device->runtime,
                            "Stream(blocking=True): order the stream and the "
                            "default one by wait_stream()");
    }
    WITHOUT_GIL(
        status = ps_stream_create(device, priority, blocking, name, &stream));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "creating a stream", status);
    }
    return stream_wrap(type, stream);
}

/* Construct a Stream.  positional: the number of parameters that may be given
 * by position.  device_type: see `type` in device_argument. */
static PyObject *
stream_construct(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                 int positional, int device_type)
{
    const struct signature signature = {"Stream",
                                        0,
                                        positional,
                                        {"device", "priority", "stream_id",
                                         "device_index", "device_type", "name",
                                         "reserve", "blocking"}};
    PyObject *values[PARAMETERS];
    const char *name;
    bool reserve, blocking;
    int priority = 0;

    if (parse_tuple(&signature, args, kwargs, values) < 0 ||
        (values[PRIORITY] != NULL &&
         clamped_argument("Stream", "priority", values[PRIORITY], &priority) <
             0) ||
        name_argument("Stream", "name", values[NAME], &name) < 0 ||
        switch_argument("Stream", "reserve", values[RESERVE], &reserve) < 0 ||
        switch_argument("Stream", "blocking", values[BLOCKING], &blocking) <
            0) {
        return NULL;
    }
    if (values[STREAM_ID] == NULL && values[DEVICE_INDEX] == NULL &&
        values[DEVICE_TYPE] == NULL) {
        struct ps_device *device =
            device_argument("Stream", device_type, values[DEVICE]);
        return device != NULL
                   ? stream_create(type, device, priority, blocking, name)
                   : NULL;
    }
    const char *other = values[DEVICE] != NULL     ? "device"
                        : values[PRIORITY] != NULL ? "priority"
                        : name != NULL             ? "name"
                        : blocking                 ? "blocking"
                                                   : NULL;
    if (other != NULL) {
        const char *id = values[STREAM_ID] != NULL      ? "stream_id"
                         : values[DEVICE_INDEX] != NULL ? "device_index"
                                                        : "device_type";
        return PyErr_Format(PyExc_TypeError,
                            "Stream() expects either device, priority, name "
                            "and blocking, or stream_id, device_index and "
                            "device_type, but got %s and %s",
                            other, id);
    }
    return stream_from_ids(type, values);
}

static PyObject *
Stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return stream_construct(type, args, kwargs, 1, -1);
}

void
Stream_dealloc(PyObject *op)
{
    if (PyType_IS_GC(Py_TYPE(op))) {
        PyObject_GC_UnTrack(op);
    }
    clear_weakrefs(op, as_stream(op)->weakrefs);
    if (!is_finalizing()) {
        stream_release(stream_take(op));
    }
    Py_XDECREF(as_stream(op)->name);
    object_free(op);
}

/* Returns the number of the stream's pending operations.  Returns 0 if the
 * backend cannot tell, or might first have to wait for other libraries. */
static unsigned
count_pending(PyObject *self)
{
    struct ps_device *device = as_stream(self)->device;
    const struct ps_backend *backend = device->runtime->registered;
    struct ps_stream_state states[2];
    struct stream_use use;
    int count;
    if (backend->stream_explain == NULL ||
        (backend->flags & PS_BACKEND_SHARED) || !stream_try_use(self, &use)) {
        return 0;
    }
    ps_status status = PS_ERROR_FOREIGN;
    if (use.stream->generation == ps_generation()) {
        status = backend->stream_explain(
            backend, device->index, use.stream->handle, states, 2, &count);
    }
    stream_use_end(&use);
    return status == PS_SUCCESS ? states[0].pending : 0;
}

static PyObject *
stream_repr(PyObject *self, const char *handle_name)
{
    const char *type = Py_TYPE(self)->tp_name;
    const char *device = backend_of(self)->name;
    int index = as_stream(self)->device->index;
    PyObject *name = as_stream(self)->name;
    struct handle_text text = handle_text(as_stream(self)->handle);
    PyObject *named = name != NULL ? PyUnicode_FromFormat("%s %R", type, name)
                                   : PyUnicode_FromString(type);
    PyObject *result = NULL;
    if (named != NULL && stream_is_closed(self)) {
        result = PyUnicode_FromFormat("<%U device=%s:%d closed>", named,
                                      device, index);
    }
    else if (named != NULL) {
        unsigned pending = count_pending(self);
        char busy[32] = "";
        if (pending > 0) {
            snprintf(busy, sizeof(busy), " pending=%u", pending);
        }
        result =
            PyUnicode_FromFormat("<%U device=%s:%d %s=%s%s>", named, device,
                                 index, handle_name, text.chars, busy);
    }
    Py_XDECREF(named);
    return result;
}

static PyObject *
Stream_repr(PyObject *self)
{
    return stream_repr(self, "handle");
}

static PyObject *
Stream_richcompare(PyObject *self, PyObject *other, int operation)
{
    if ((operation != Py_EQ && operation != Py_NE) ||
        (!Py_IS_TYPE(other, Py_TYPE(self)) && !is_stream(other))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    StreamObject *a = as_stream(self), *b = as_stream(other);
    bool equal =
        a == b || (a->handle == b->handle && a->device == b->device &&
                   !stream_is_closed(self) && !stream_is_closed(other));
    return Py_NewRef(equal == (operation == Py_EQ) ? Py_True : Py_False);
}

static Py_hash_t
Stream_hash(PyObject *self)
{
    Py_hash_t hash = (Py_hash_t)(as_stream(self)->handle ^
                                 ((uintptr_t)as_stream(self)->device >> 4));
    return hash != -1 ? hash : -2;
}

ps_status
stream_query(struct ps_stream *stream)
{
    ps_status status;
    CALL_BACKEND(stream->device->runtime, status = ps_stream_query(stream));
    return status;
}

static PyObject *
Stream_query(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    ps_status status = stream_query(use.stream);
    if (status != PS_SUCCESS && status != PS_ERROR_NOT_READY) {
        raise_on_stream(use.stream, "Stream.query", status);
        status = PS_RAISED;
    }
    stream_use_end(&use);
    return bool_or_raise(as_stream(self)->device->runtime, "Stream.query",
                         status);
}

static PyObject *
Stream_synchronize(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    PyObject *timeout, *result;
    int64_t timeout_ns;
    struct stream_use use;
    if (parse_optional("synchronize", "timeout", args, nargs, kwnames,
                       &timeout) < 0 ||
        timeout_argument("synchronize", timeout, &timeout_ns) < 0 ||
        stream_use(self, &use) < 0) {
        return NULL;
    }
    struct ps_device *device = use.stream->device;
    /* Query first, because a query is faster than a wait, which also checks
     * for signals.  Do not query while a schedule keeps notes, because the
     * schedule would mistake this query for one by the program. */
    if (!ps_cpu_schedules.is_noted() &&
        stream_query(use.stream) == PS_SUCCESS && !any_captured_failed()) {
        ps_trace(PS_TRACE_STREAM_SYNCHRONIZATION, device, use.stream->handle,
                 0);
        memory_settle(device->runtime);
        result = Py_NewRef(Py_None);
    }
    else {
        struct work work = {
            .operation = "Stream.synchronize",
            .device = device,
            .stream = use.stream,
        };
        result = waited(&work, timeout, timeout_ns);
    }
    stream_use_end(&use);
    return result;
}

static PyObject *
Stream_wait_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    PyObject *event;
    if (parse_required("wait_event", "event", args, nargs, kwnames, &event) <
        0) {
        return NULL;
    }
    if (!is_event(event)) {
        return raise_expected("wait_event", "an Event", "event", event);
    }
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    int result = event_wait_on(((EventObject *)event)->event, use.stream,
                               "Stream.wait_event");
    stream_use_end(&use);
    return none_unless_raised(result);
}

static PyObject *
Stream_wait_stream(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    PyObject *argument;
    if (parse_required("wait_stream", "stream", args, nargs, kwnames,
                       &argument) < 0) {
        return NULL;
    }
    struct stream_use other, use;
    int result = -1;
    if (stream_use_named("wait_stream", argument, &other) < 0) {
        return NULL;
    }
    if (stream_use(self, &use) == 0) {
        result = stream_wait_stream(use.stream, other.stream);
        stream_use_end(&use);
    }
    stream_use_end(&other);
    return none_unless_raised(result);
}

/* Create the event that record_event returns if the caller passes none. */
static PyObject *
event_for(PyObject *self)
{
    struct ps_runtime *runtime = as_stream(self)->device->runtime;
    if (PyObject_TypeCheck(self, module_state.cuda_stream_type)) {
        return event_new(module_state.cuda_event_type, runtime, 0);
    }
    bool timed = runtime->backend->event_elapsed != NULL;
    return event_new(module_state.event_type, runtime,
                     timed ? PS_EVENT_TIMING : 0);
}

static PyObject *
Stream_record_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    PyObject *event;
    if (parse_optional("record_event", "event", args, nargs, kwnames, &event) <
        0) {
        return NULL;
    }
    if (event != NULL && !is_event(event)) {
        return raise_expected("record_event", "an Event", "event", event);
    }
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    event = event != NULL ? Py_NewRef(event) : event_for(self);
    if (event != NULL &&
        event_record_on(((EventObject *)event)->event, use.stream) < 0) {
        Py_CLEAR(event);
    }
    stream_use_end(&use);
    return event;
}

static PyObject *
Stream_is_capturing(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_runtime *runtime = as_stream(self)->device->runtime;
    struct stream_use use;
    ps_status status;
    int capturing;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    CALL_BACKEND(runtime,
                 status = ps_stream_capturing(use.stream, &capturing));
    int result = zero_or_raise_on(use.stream, "Stream.is_capturing", status);
    stream_use_end(&use);
    return result < 0 ? NULL : PyBool_FromLong(capturing);
}

static PyObject *
Stream_priority_range(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames)
{
    PyTypeObject *type = (PyTypeObject *)op;
    PyObject *argument;
    int least, greatest;
    ps_status status;

    if (parse_optional("priority_range", "device", args, nargs, kwnames,
                       &argument) < 0) {
        return NULL;
    }
    bool cuda = PyType_IsSubtype(type, module_state.cuda_stream_type);
    struct ps_device *device = device_argument(
        "priority_range", cuda ? PS_DEVICE_CUDA : -1, argument);
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    WITHOUT_GIL(status = backend->stream_priority_range(backend, device->index,
                                                        &least, &greatest));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "Stream.priority_range", status);
    }
    return Py_BuildValue("(ii)", least, greatest);
}

static PyObject *
Stream_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_stream *stream = stream_take(self);
    ps_status status;
    if (stream == NULL) {
        Py_RETURN_NONE;
    }
    WITHOUT_GIL(status = ps_stream_unref(stream));
    return none_or_raise(as_stream(self)->device->runtime, "Stream.close",
                         status);
}

static PyObject *
Stream_cuda_stream(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (check_open(self) < 0) {
        return NULL;
    }
    if (backend_of(self)->device_type != PS_DEVICE_CUDA) {
        return PyErr_Format(PyExc_RuntimeError,
                            "a %s stream is not a CUDA stream",
                            backend_of(self)->name);
    }
    return Py_BuildValue("(iK)", 0,
                         (unsigned long long)as_stream(self)->handle);
}

static PyObject *
Stream_get_handle(PyObject *self, void *Py_UNUSED(closure))
{
    return check_open(self) == 0
               ? PyLong_FromUnsignedLongLong(as_stream(self)->handle)
               : NULL;
}

static PyObject *
Stream_get_device_index(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(as_stream(self)->device->index);
}

static PyObject *
Stream_get_device_type(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(backend_of(self)->device_type);
}

static PyObject *
Stream_get_device(PyObject *self, void *Py_UNUSED(closure))
{
    return device_new(backend_of(self)->device_type,
                      as_stream(self)->device->index);
}

static PyObject *
Stream_get_priority(PyObject *self, void *Py_UNUSED(closure))
{
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    int priority = use.stream->priority;
    stream_use_end(&use);
    return PyLong_FromLong(priority);
}

static PyObject *
Stream_get_is_non_blocking(PyObject *self, void *Py_UNUSED(closure))
{
    struct ps_runtime *runtime = as_stream(self)->device->runtime;
    struct stream_use use;
    ps_status status;
    int blocking;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    CALL_BACKEND(runtime, status = ps_stream_blocking(use.stream, &blocking));
    int result =
        zero_or_raise_on(use.stream, "Stream.is_non_blocking", status);
    stream_use_end(&use);
    return result < 0 ? NULL : PyBool_FromLong(!blocking);
}

static PyObject *
Stream_get_name(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *name = as_stream(self)->name;
    return Py_NewRef(name != NULL ? name : Py_None);
}

static PyObject *
Stream_get_as_parameter(PyObject *self, void *Py_UNUSED(closure))
{
    return check_open(self) == 0 ? ctypes_pointer(as_stream(self)->handle)
                                 : NULL;
}

PyMethodDef stream_methods[] = {
    METHOD("query", Stream_query, METH_NOARGS, ", /",
           "Return whether all work queued so far has completed "
           "(cudaStreamQuery).\n\n"
           "Does not block, except on CUDA while another thread waits for "
           "room in the stream's\nqueue; it then releases the GIL.  Other "
           "Python threads may run before it returns False.\nRaises "
           "AcceleratorError with the failure of that work."),
    METHOD("synchronize", Stream_synchronize, METH_FASTCALL | METH_KEYWORDS,
           ", /, timeout=None",
           "Wait until all work queued before the call has completed "
           "(cudaStreamSynchronize).\n\n"
           "Blocks with the GIL released, for timeout seconds at most.  "
           "Ctrl-C ends a wait with a\ntimeout, and any wait on the CPU "
           "engine; the work goes on.  Raises TimeoutError, "
           "or\nAcceleratorError with the first failure of that work."),
    METHOD("submit", Stream_submit, METH_FASTCALL | METH_KEYWORDS,
           ", fn, /, *args, **kwargs",
           "Queue a call of fn(*args, **kwargs) in stream order and return "
           "a\nconcurrent.futures.Future for its result.\n\n"
           "fn runs on one of the package's threads, in a copy of the "
           "caller's context\n(contextvars), and may block and use CUDA.  In "
           "fn, the default streams are current, even\nif submit is called "
           "inside `with stream:`.  Work queued on the stream later "
           "starts\nafter fn has returned.  An exception goes to the Future, "
           "and the stream goes on.  At\nmost 256 callables run at once.  A "
           "callable that waits for its own stream gets a\nRuntimeError.  A "
           "child process that fn forks ends when fn returns, as a child "
           "of\nmultiprocessing does: with status 0, or with 1 and a "
           "traceback if fn raised, and\nwithout atexit functions.  On CUDA, "
           "fn must not be the first to use a kernel: the\ndriver loads a "
           "kernel when all streams are idle, and fn's own stream is not.\n\n"
           "While the stream is being captured, fn is captured instead: each "
           "replay runs it, with\nthese arguments and in a copy of this "
           "context.  The Future is done at once, and its\nresult() raises "
           "RuntimeError; the next wait for the replay's stream or device "
           "raises\nfn's exception.  Raises NotImplementedError if the "
           "backend cannot capture callables.\n\n"
           "Blocks with the GIL released while the stream's queue is full.  "
           "The CPU engine's queue\nholds 65,536 operations, and Ctrl-C ends "
           "the wait.  On CUDA a stream queues about five\nhundred "
           "callables.  Callables that have not started when the program ends "
           "are cancelled;\nafter that submit raises RuntimeError.  Raises "
           "NotImplementedError if the backend has no\ngates."),
    METHOD("wait_event", Stream_wait_event, METH_FASTCALL | METH_KEYWORDS,
           ", /, event",
           "Make all work queued after this call wait for the event's latest "
           "record\n(cudaStreamWaitEvent).\n\n"
           "Does nothing if the event was never recorded; a later record "
           "changes nothing.  Blocks\nwith the GIL released while the "
           "stream's queue is full."),
    METHOD("wait_stream", Stream_wait_stream, METH_FASTCALL | METH_KEYWORDS,
           ", /, stream",
           "Make all work queued after this call wait for all work that the "
           "other stream has now.\n\n"
           "The other stream is a Stream of the same device type, or any "
           "object with\n__cuda_stream__.  Blocks with the GIL released while "
           "either queue is full."),
    METHOD("record_event", Stream_record_event, METH_FASTCALL | METH_KEYWORDS,
           ", /, event=None",
           "Record an event on this stream and return it.\n\n"
           "If event is None, creates a new one: timed on a Stream, not timed "
           "on a cuda.Stream.\nBlocks with the GIL released while the "
           "stream's queue is full.  The CPU engine's queue\nholds 65,536 "
           "operations, and Ctrl-C ends the wait.  On CUDA the driver sets "
           "the limit."),
    METHOD("is_capturing", Stream_is_capturing, METH_NOARGS, ", /",
           "Return whether work on this stream is being captured into a "
           "graph\n(cudaStreamIsCapturing); False if the backend has no "
           "capture."),
    CLASS_METHOD(
        "priority_range", Stream_priority_range, METH_FASTCALL | METH_KEYWORDS,
        ", /, device=None",
        "Return the (least, greatest) priority of a device's streams; a lower "
        "number is\nserved first (cudaDeviceGetStreamPriorityRange)."),
    METHOD(
        "close", Stream_close, METH_NOARGS, ", /",
        "Release the stream now instead of when the object is collected.\n\n"
        "Queued work still runs.  A stream that is current, or that another "
        "object shares,\nlives on.  Closing twice is harmless; using a closed "
        "stream, or asking for its handle,\nraises ValueError."),
    METHOD("__enter__", Stream_enter, METH_NOARGS, ", /",
           "Make the stream current on its device, and its device current, in "
           "this thread.\n\n"
           "Returns the stream.  Re-entrant; several threads may enter one "
           "stream."),
    METHOD("__exit__", Stream_exit, METH_FASTCALL, ", /, *exc_info",
           "Restore the device, and the current streams of both devices, that "
           "__enter__ found."),
    METHOD("__cuda_stream__", Stream_cuda_stream, METH_NOARGS, ", /",
           "Return (0, handle), by the CUDA stream protocol.\n\n"
           "Raises RuntimeError for a stream of another device type."),
    {NULL},
};

static PyGetSetDef stream_getset[] = {
    {"stream_id", Stream_get_handle, NULL,
     PyDoc_STR("The stream's number on its device: its native handle.")},
    {"device_index", Stream_get_device_index, NULL,
     PyDoc_STR("The index of the stream's device.")},
    {"device_type", Stream_get_device_type, NULL,
     PyDoc_STR("torch's number of the device type: 0 cpu, 1 cuda.")},
    {"device", Stream_get_device, NULL, PyDoc_STR("The stream's device.")},
    {"native_handle", Stream_get_handle, NULL,
     PyDoc_STR("The backend's handle as an int; 0 is the default stream.")},
    {"priority", Stream_get_priority, NULL,
     PyDoc_STR("The priority; a lower number is served first.")},
    {"is_non_blocking", Stream_get_is_non_blocking, NULL,
     PyDoc_STR("Whether the stream does not serialize with the default stream "
               "of its device\n(cudaStreamGetFlags).")},
    {"name", Stream_get_name, NULL,
     PyDoc_STR("The name that the stream was made with, or None.")},
    {"_as_parameter_", Stream_get_as_parameter, NULL,
     PyDoc_STR("The handle as ctypes passes it to a foreign function.")},
    {NULL},
};

static PyMemberDef stream_members[] = {
    WEAKREFS(StreamObject),
    {NULL},
};

PyDoc_STRVAR(
    stream_doc,
    "Stream(device=None, *, priority=0, name=None, reserve=False, "
    "blocking=False)\n--\n\n"
    "A queue of work on a device, run in order.\n\n"
    "The default device is the current device of the default accelerator.  No "
    "two live\nStreams share a native stream, so reserve changes nothing.  "
    "priority is clamped to\npriority_range(); a lower number is served "
    "first.  name is for people: repr, errors and\nreports show it.  "
    "blocking=True makes a stream that serializes with the default stream\nof "
    "its device, as CUDA's legacy default stream does with blocking streams: "
    "work queued\non either one starts after all work that the other has at "
    "that time.\n\n"
    "Stream(stream_id=, device_index=, device_type=) makes another object for "
    "an existing\nstream.\n\n"
    "Raises RuntimeError if the device type is not available, "
    "AcceleratorError if there is\nno such device, NotImplementedError if the "
    "backend has no blocking streams.  Safe to\nuse from several threads.");

static PyType_Slot stream_slots[] = {
    {Py_tp_new, Stream_new},
    {Py_tp_dealloc, Stream_dealloc},
    {Py_tp_repr, Stream_repr},
    {Py_tp_richcompare, Stream_richcompare},
    {Py_tp_hash, Stream_hash},
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, stream_getset},
    {Py_tp_members, stream_members},
    {Py_am_await, Stream_await},
    {Py_tp_doc, (void *)stream_doc},
    {0, NULL},
};

PyType_Spec stream_spec = TYPE_SPEC("pystreams.Stream", StreamObject,
                                    Py_TPFLAGS_BASETYPE, stream_slots);

static PyObject *
CudaStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return stream_construct(type, args, kwargs, 2, PS_DEVICE_CUDA);
}

static PyObject *
CudaStream_repr(PyObject *self)
{
    return stream_repr(self, "cuda_stream");
}

static PyGetSetDef cuda_stream_getset[] = {
    {"cuda_stream", Stream_get_handle, NULL,
     PyDoc_STR("The cudaStream_t as an int; 0 is the default stream.")},
    {NULL},
};

PyDoc_STRVAR(
    cuda_stream_doc,
    "Stream(device=None, priority=0, *, name=None, reserve=False, "
    "blocking=False)\n--\n\n"
    "A CUDA stream (cudaStreamCreateWithPriority).\n\n"
    "The default device is the current CUDA device.  No two live Streams "
    "share a native\nstream, so reserve changes nothing.  priority is clamped "
    "to priority_range(); a lower\nnumber is served first.  name is for "
    "people: repr, errors and reports show it.\n\n"
    "A stream is made with cudaStreamNonBlocking, and so is not ordered with "
    "the default\nstream; with blocking=True it is made with "
    "cudaStreamDefault: work queued on it or on\nits device's default stream "
    "starts after all work that the other has at that time.\n\n"
    "Raises ValueError for a device of another type, RuntimeError if no GPU "
    "is usable,\nAcceleratorError if there is no such device.");

static PyType_Slot cuda_stream_slots[] = {
    {Py_tp_new, CudaStream_new},
    {Py_tp_dealloc, Stream_dealloc},
    {Py_tp_repr, CudaStream_repr},
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, cuda_stream_getset},
    {Py_tp_doc, (void *)cuda_stream_doc},
    {0, NULL},
};

PyType_Spec cuda_stream_spec =
    TYPE_SPEC("pystreams.cuda.Stream", StreamObject, Py_TPFLAGS_BASETYPE,
              cuda_stream_slots);
