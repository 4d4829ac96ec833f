/* Streams that another library owns: the types `ExternalStream` and
 * `cuda.ExternalStream`, and the CUDA stream protocol (__cuda_stream__).  The
 * owner may have a reference to the stream object, so the garbage collector
 * traverses the owner. */
#include "external_stream.h"

#include "args.h"
#include "current.h"
#include "device.h"
#include "errors.h"
#include "stream.h"

/* Called when the last reference to a stream is dropped.  The calling thread
 * may hold the GIL or not. */
static void
release_owner(void *owner)
{
    if (is_finalizing()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)owner);
    PyGILState_Release(gil);
}

/* Returns whether the handle means the default stream.  The handle 0 does, and
 * on CUDA, the handle 1 (cudaStreamLegacy) does, too. */
static bool
is_default(struct ps_device *device, ps_handle handle)
{
    const struct ps_backend *backend = device->runtime->backend;
    return handle == 0 ||
           (backend->device_type == PS_DEVICE_CUDA && handle == 1);
}

/* Replace *device with the handle's device, if the backend can tell which one
 * that is. */
static ps_status
find_device(struct ps_device **device, ps_handle handle)
{
    struct ps_runtime *runtime = (*device)->runtime;
    const struct ps_backend *backend = runtime->backend;
    int actual = (*device)->index;
    ps_status status = PS_SUCCESS;
    if (backend->stream_device != NULL) {
        CALL_BACKEND(runtime, status = backend->stream_device(backend, handle,
                                                              &actual));
    }
    return status == PS_SUCCESS ? ps_runtime_device(runtime, actual, device)
                                : status;
}

/* Returns 0 if `actual`, the device of the stream with this handle, is
 * `device`.  Otherwise returns -1 with ValueError. */
static int
check_device(struct ps_device *actual, ps_handle handle,
             struct ps_device *device)
{
    const char *name = device->runtime->backend->name;
    struct handle_text text = handle_text(handle);
    if (actual == device) {
        return 0;
    }
    return refuse(PyExc_ValueError, "stream %s is of device %s:%d, not %s:%d",
                  text.chars, actual->runtime->backend->name, actual->index,
                  name, device->index);
}

/* Check that the handle does not belong to a stream of another runtime that
 * has the same device type.  Such a runtime is another emulation, or the
 * runtime that the present emulation hides.  If the handle belongs to such a
 * stream, returns -1 with an exception. */
static int
check_handle(const char *function, struct ps_runtime *present,
             ps_handle handle)
{
    int type = present->backend->device_type, result = 0;
    for (int i = 0; i < ps_runtime_count() && result == 0; i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        int devices = runtime != present &&
                              runtime->backend->device_type == type &&
                              ps_runtime_is_used(runtime)
                          ? atomic_load(&runtime->device_count)
                          : 0;
        for (int d = 0; d < devices && result == 0; d++) {
            struct ps_stream *stream =
                ps_stream_find(&runtime->devices[d], handle);
            if (stream != NULL) {
                stream_release(stream);
                result = check_emulations(function, "stream", runtime,
                                          "device", present);
            }
        }
    }
    return result;
}

struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner)
{
    struct ps_device *actual = device;
    struct ps_stream *stream;
    if (is_default(device, handle)) {
        return ps_stream_ref(&device->default_stream);
    }
    if (handle == PS_STREAM_PER_THREAD &&
        device->runtime->backend->thread_stream != NULL) {
        return thread_stream(device);
    }
    /* For a stream that this library has created, no call to the backend is
     * needed. */
    stream = owner == NULL ? ps_stream_find(device, handle) : NULL;
    if (stream != NULL) {
        return stream;
    }
    if (check_handle(function, device->runtime, handle) < 0) {
        return NULL;
    }
    ps_status status = find_device(&actual, handle);
    if (status == PS_SUCCESS && strict &&
        check_device(actual, handle, device) < 0) {
        return NULL;
    }
    if (status == PS_SUCCESS) {
        status = ps_stream_wrap(actual, handle, owner,
                                owner != NULL ? release_owner : NULL, &stream);
    }
    if (status != PS_SUCCESS) {
        char operation[96];
        snprintf(operation, sizeof(operation),
                 "%.32s() of the stream handle %s", function,
                 handle_text(handle).chars);
        raise_status(device->runtime, operation, status);
        return NULL;
    }
    Py_XINCREF(owner);
    return stream;
}

/* Get the handle from `result`, the tuple (version, handle) from the object's
 * __cuda_stream__.  On failure, returns -1 with an exception. */
static int
parse_protocol(const char *function, PyObject *object, PyObject *result,
               ps_handle *handle)
{
    const char *type = Py_TYPE(object)->tp_name;
    if (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) != 2) {
        return refuse(PyExc_TypeError,
                      "%s() expects a tuple (version, address) from "
                      "__cuda_stream__ of %s, but got %R",
                      function, type, result);
    }
    PyObject *version = PyTuple_GET_ITEM(result, 0);
    if (!PyLong_Check(version)) {
        return refuse(PyExc_TypeError,
                      "%s() expects an int for the version from "
                      "__cuda_stream__ of %s, but got %R",
                      function, type, version);
    }
    if (PyLong_AsLong(version) != 0) {
        PyErr_Clear();
        return refuse(PyExc_ValueError,
                      "%s() expects version 0 from __cuda_stream__ of %s, but "
                      "got %R",
                      function, type, version);
    }
    return handle_argument(function, "the address in __cuda_stream__",
                           PyTuple_GET_ITEM(result, 1), handle);
}

/* Get the handle that an object's __cuda_stream__ returns.  Returns 1 on
 * success, 0 if the object has no such method, -1 with an exception. */
static int
cuda_stream_protocol(const char *function, PyObject *object, ps_handle *handle)
{
    PyObject *result;
    int found =
        optional_attribute(object, module_state.str_cuda_stream, &result);
    if (found != 1) {
        return found;
    }
    /* In the protocol's first version, __cuda_stream__ was not a method, but
     * an attribute whose value was the tuple. */
    if (PyCallable_Check(result)) {
        Py_SETREF(result, PyObject_CallNoArgs(result));
        if (result == NULL) {
            return -1;
        }
    }
    int parsed = parse_protocol(function, object, result, handle);
    Py_DECREF(result);
    return parsed < 0 ? -1 : 1;
}

struct ps_stream *
foreign_stream(const char *function, PyObject *object)
{
    ps_handle handle;
    int found = cuda_stream_protocol(function, object, &handle);
    if (found == 0) {
        raise_expected(function, "a Stream or an object with __cuda_stream__",
                       "stream", object);
    }
    struct device_name cuda = {PS_DEVICE_CUDA, -1};
    struct ps_device *device = found > 0 ? device_at(function, cuda) : NULL;
    return device != NULL
               ? stream_from_handle(function, device, false, handle, object)
               : NULL;
}

/* Returns a new reference to the stream of `source`, one of this package's
 * Stream objects.  Returns NULL with an exception on failure, for example if
 * the argument names a device other than the stream's. */
static struct ps_stream *
share(const char *function, PyObject *source, PyObject *argument)
{
    struct ps_stream *stream = stream_share(source);
    if (stream == NULL) {
        return NULL;
    }
    struct ps_device *device = stream->device;
    if (argument != NULL && argument != Py_None) {
        device = device_argument(
            function, device->runtime->backend->device_type, argument);
    }
    if (device == NULL ||
        check_device(stream->device, stream->handle, device) < 0) {
        stream_release(stream);
        return NULL;
    }
    return stream;
}

/* Get the handle for an ExternalStream.  `source` is the handle, or an object
 * that owns the stream.  On failure, returns -1 with an exception. */
static int
external_handle(const char *function, const char *name, PyObject *source,
                ps_handle *handle)
{
    if (PyLong_Check(source)) {
        return handle_argument(function, name, source, handle);
    }
    int found = cuda_stream_protocol(function, source, handle);
    if (found == 0) {
        raise_expected(function, "an int or an object with __cuda_stream__",
                       name, source);
    }
    return found == 1 ? 0 : -1;
}

/* Returns a stream for `source`, which is a handle or an object of another
 * library that owns the stream. */
static struct ps_stream *
adopt(const char *function, const char *name, PyObject *source,
      PyObject *argument, int device_type)
{
    PyObject *owner = PyLong_Check(source) ? NULL : source;
    bool strict = argument != NULL && argument != Py_None;
    ps_handle handle;
    if (external_handle(function, name, source, &handle) < 0) {
        return NULL;
    }
    struct ps_device *device = device_argument(
        function, owner != NULL ? PS_DEVICE_CUDA : device_type, argument);
    return device != NULL
               ? stream_from_handle(function, device, strict, handle, owner)
               : NULL;
}

/* Construct an object of this type.  device_type: as in device_argument. */
static PyObject *
construct(PyTypeObject *type, const struct signature *signature,
          PyObject *args, PyObject *kwargs, int device_type)
{
    const char *function = signature->function;
    PyObject *values[3] = {NULL};
    if (parse_tuple(signature, args, kwargs, values) < 0) {
        return NULL;
    }
    if (values[2] != NULL) {
        return PyErr_Format(PyExc_RuntimeError,
                            "an external stream has the priority that its "
                            "owner gave it; priority is not accepted");
    }
    PyObject *source = values[0];
    bool ours =
        is_stream(source) &&
        (device_type < 0 ||
         ((StreamObject *)source)->device->runtime->backend->device_type ==
             device_type);
    struct ps_stream *stream = ours ? share(function, source, values[1])
                                    : adopt(function, signature->names[0],
                                            source, values[1], device_type);
    return stream != NULL ? stream_wrap(type, stream) : NULL;
}

static PyObject *
ExternalStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "ExternalStream", 1, 2, {"handle", "device", "priority"}};
    return construct(type, &signature, args, kwargs, -1);
}

static PyObject *
CudaExternalStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "ExternalStream", 1, 2, {"stream_ptr", "device", "priority"}};
    return construct(type, &signature, args, kwargs, PS_DEVICE_CUDA);
}

static PyObject *
get_stream_from_external(PyObject *Py_UNUSED(module), PyObject *args,
                         PyObject *kwargs)
{
    static const struct signature signature = {
        "get_stream_from_external", 1, 2, {"data_ptr", "device"}};
    return construct(module_state.cuda_external_stream_type, &signature, args,
                     kwargs, PS_DEVICE_CUDA);
}

PyMethodDef get_stream_from_external_function = FUNCTION(
    "get_stream_from_external",
    (PyCFunction)(void (*)(void))get_stream_from_external,
    METH_VARARGS | METH_KEYWORDS, "data_ptr, device=None",
    "Return a stream for a cudaStream_t that another library owns.\n\n"
    "A handle that is not of a live stream cannot be detected, and crashes "
    "the process when\nit is used.");

/* Returns the stream's owner if only this object keeps the owner alive, else
 * NULL.  The object alone keeps the owner alive if the object has the only
 * reference to the stream, and no call is using the stream.  A call that is
 * using the stream could add a reference while the GIL is released.  During a
 * garbage collection, neither references nor uses are added, so if this
 * function returns the owner, the result stays correct until the collection
 * ends.  If references or uses end during a collection, it is enough that the
 * next collection finds the owner. */
static PyObject *
sole_owner(PyObject *op)
{
    StreamObject *self = (StreamObject *)op;
    return self->uses == 0 && atomic_load(&self->stream->refs) == 1
               ? self->stream->owner
               : NULL;
}

static int
ExternalStream_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(sole_owner(self));
    return 0;
}

static int
ExternalStream_clear(PyObject *self)
{
    stream_release(stream_take(self));
    return 0;
}

PyDoc_STRVAR(external_stream_doc,
             "ExternalStream(handle, device=None)\n--\n\n"
             "A stream that other code owns, such as another library.\n\n"
             "handle is its native handle as an int, or any object with "
             "__cuda_stream__, which is\nthen kept alive.  The handle must "
             "stay valid until this object, and all Buffers that\nwork on the "
             "stream has used, are closed or collected: a wrong CUDA handle "
             "crashes the\nprocess.  0, and on CUDA 1, is the default stream; "
             "2 is the default stream of whichever\nthread uses this object.  "
             "A Stream of this package, or its handle, "
             "is shared:\nthe stream lives until all objects that share it "
             "are closed.\n\n"
             "Raises TypeError for another type, ValueError for an int out of "
             "range or a device that\nis not the stream's, RuntimeError if a "
             "priority is given.");

PyDoc_STRVAR(
    cuda_external_stream_doc,
    "ExternalStream(stream_ptr, device=None)\n--\n\n"
    "A CUDA stream that other code owns, such as another library.\n\n"
    "stream_ptr is a cudaStream_t as an int, or any object with "
    "__cuda_stream__, which is\nthen kept alive.  The handle must stay valid "
    "until this object, and all Buffers that\nwork on the stream has used, "
    "are closed or collected: a wrong handle crashes the\nprocess.  0 and 1 "
    "are the default stream, 2 is that of whichever thread uses this object.  "
    "A\nStream of this package, or its handle, is shared: the stream lives "
    "until all\nobjects that share it are closed.\n\n"
    "Raises what pystreams.ExternalStream raises.");

static PyType_Slot external_stream_slots[] = {
    {Py_tp_new, ExternalStream_new},
    {Py_tp_methods, stream_methods},
    {Py_tp_traverse, ExternalStream_traverse},
    {Py_tp_clear, ExternalStream_clear},
    {Py_tp_doc, (void *)external_stream_doc},
    {0, NULL},
};

static PyType_Slot cuda_external_stream_slots[] = {
    {Py_tp_new, CudaExternalStream_new},
    {Py_tp_methods, stream_methods},
    {Py_tp_traverse, ExternalStream_traverse},
    {Py_tp_clear, ExternalStream_clear},
    {Py_tp_doc, (void *)cuda_external_stream_doc},
    {0, NULL},
};

PyType_Spec external_stream_spec =
    TYPE_SPEC("pystreams.ExternalStream", StreamObject,
              Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, external_stream_slots);

PyType_Spec cuda_external_stream_spec = TYPE_SPEC(
    "pystreams.cuda.ExternalStream", StreamObject,
    Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, cuda_external_stream_slots);
