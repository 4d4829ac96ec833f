/* The types `ExternalStream` and `cuda.ExternalStream`, and the CUDA stream
 * protocol: streams that somebody else owns.  The collector sees the owner,
 * which may refer back to the stream. */
#include "module.h"

/* Called where the last reference is dropped, which may be without the GIL. */
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

struct ps_stream *
stream_from_handle(struct module_state *state, struct ps_device *device,
                   bool strict, ps_handle handle, PyObject *owner)
{
    const struct ps_backend *backend = device->runtime->backend;
    struct ps_stream *stream;
    int actual = device->index;
    ps_status status = PS_SUCCESS;

    if (handle == 0) {
        return ps_stream_ref(&device->default_stream);
    }
    if (ps_stream_is_pooled(device, handle)) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    else if (backend->stream_device != NULL) {
        CALL_BACKEND(device->runtime, status = backend->stream_device(
                                          backend, handle, &actual));
    }
    if (status == PS_SUCCESS && strict && actual != device->index) {
        struct handle_text text = handle_text(handle);
        PyErr_Format(PyExc_ValueError,
                     "stream %s is of device %s:%d, not %s:%d", text.chars,
                     backend->name, actual, backend->name, device->index);
        return NULL;
    }
    if (status == PS_SUCCESS) {
        status = ps_runtime_device(device->runtime, actual, &device);
    }
    if (status == PS_SUCCESS) {
        status = ps_stream_wrap(device, handle, owner,
                                owner != NULL ? release_owner : NULL, &stream);
    }
    if (status != PS_SUCCESS) {
        raise_status(state, device->runtime, "wrapping a stream handle",
                     status);
        return NULL;
    }
    Py_XINCREF(owner);
    return stream;
}

/* What the tuple (version, handle) says. */
static int
parse_protocol(PyObject *object, PyObject *result, ps_handle *handle)
{
    const char *type = Py_TYPE(object)->tp_name;
    if (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) != 2) {
        PyErr_Format(PyExc_TypeError,
                     "__cuda_stream__ of %s must give a tuple "
                     "(version, address), but gave %R",
                     type, result);
        return -1;
    }
    PyObject *version = PyTuple_GET_ITEM(result, 0);
    long number = PyLong_Check(version) ? PyLong_AsLong(version) : -1;
    if (number != 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "__cuda_stream__ of %s has version %R; only version 0 "
                     "is supported",
                     type, version);
        return -1;
    }
    return handle_argument("the address in __cuda_stream__",
                           PyTuple_GET_ITEM(result, 1), handle);
}

int
cuda_stream_protocol(struct module_state *state, PyObject *object,
                     ps_handle *handle)
{
    PyObject *result;
    int found = optional_attribute(object, state->str_cuda_stream, &result);
    if (found != 1) {
        return found;
    }
    /* The protocol's first form was an attribute. */
    if (PyCallable_Check(result)) {
        Py_SETREF(result, PyObject_CallNoArgs(result));
        if (result == NULL) {
            return -1;
        }
    }
    int parsed = parse_protocol(object, result, handle);
    Py_DECREF(result);
    return parsed < 0 ? -1 : 1;
}

/* The handle an ExternalStream is given, and the object to keep alive. */
static int
external_handle(struct module_state *state, PyObject *source,
                ps_handle *handle, PyObject **owner)
{
    if (PyLong_Check(source)) {
        *owner = NULL;
        return handle_argument("the stream handle", source, handle);
    }
    int found = cuda_stream_protocol(state, source, handle);
    if (found == 0) {
        PyErr_Format(PyExc_TypeError,
                     "the stream handle must be an int or an object with "
                     "__cuda_stream__, not %s",
                     Py_TYPE(source)->tp_name);
    }
    *owner = source;
    return found == 1 ? 0 : -1;
}

static PyObject *
construct(PyTypeObject *type, PyObject *source, PyObject *argument,
          PyObject *priority, int device_type)
{
    struct module_state *state = state_of_type(type);
    PyObject *owner;
    ps_handle handle;
    if (priority != NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "an external stream has the priority that its owner "
                        "gave it; priority is not accepted");
        return NULL;
    }
    if (external_handle(state, source, &handle, &owner) < 0) {
        return NULL;
    }
    if (owner != NULL) {
        device_type = PS_DEVICE_CUDA;
    }
    struct ps_device *device = device_argument(state, device_type, argument);
    if (device == NULL) {
        return NULL;
    }
    struct ps_stream *stream =
        stream_from_handle(state, device, argument != Py_None, handle, owner);
    return stream != NULL ? stream_wrap(state, type, stream) : NULL;
}

static PyObject *
ExternalStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"handle", "device", "priority", NULL};
    PyObject *source, *device = Py_None, *priority = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:ExternalStream",
                                     keywords, &source, &device, &priority)) {
        return NULL;
    }
    return construct(type, source, device, priority, -1);
}

static PyObject *
CudaExternalStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"stream_ptr", "device", "priority", NULL};
    PyObject *source, *device = Py_None, *priority = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:ExternalStream",
                                     keywords, &source, &device, &priority)) {
        return NULL;
    }
    return construct(type, source, device, priority, PS_DEVICE_CUDA);
}

/* The owner, where this object alone keeps it alive. */
static PyObject *
sole_owner(PyObject *self)
{
    struct ps_stream *stream = ((StreamObject *)self)->stream;
    return stream != NULL && atomic_load(&stream->refs) == 1 ? stream->owner
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
ExternalStream_clear(PyObject *op)
{
    StreamObject *self = (StreamObject *)op;
    struct ps_stream *stream = self->stream;
    if (stream != NULL) {
        self->stream = NULL;
        stream_release(state_of(op), stream);
    }
    return 0;
}

PyDoc_STRVAR(
    external_stream_doc,
    "ExternalStream(handle, device=None)\n--\n\n"
    "A stream that somebody else owns, such as another library.\n\n"
    "handle is its native handle as an int, or any object with "
    "__cuda_stream__, which\nis then kept alive.  An int must be live "
    "until this object and all Buffers that\nwork on it has used "
    "are given up: a wrong CUDA handle crashes the process.  0 is\n"
    "the default stream.\n\n"
    "Raises TypeError for another type, ValueError for an int out "
    "of range or a device\nthat is not the stream's, RuntimeError "
    "when a priority is given.");

PyDoc_STRVAR(
    cuda_external_stream_doc,
    "ExternalStream(stream_ptr, device=None)\n--\n\n"
    "A CUDA stream that somebody else owns, such as another "
    "library.\n\n"
    "stream_ptr is a cudaStream_t as an int, or any object with "
    "__cuda_stream__, which\nis then kept alive.  An int must be live "
    "until this object and all Buffers that\nwork on it has used "
    "are given up: a wrong handle crashes the process.  0 is the\n"
    "default stream.\n\n"
    "Raises as pystreams.ExternalStream.");

static PyType_Slot external_stream_slots[] = {
    {Py_tp_new, ExternalStream_new},
    {Py_tp_traverse, ExternalStream_traverse},
    {Py_tp_clear, ExternalStream_clear},
    {Py_tp_doc, (void *)external_stream_doc},
    {0, NULL},
};

static PyType_Slot cuda_external_stream_slots[] = {
    {Py_tp_new, CudaExternalStream_new},
    {Py_tp_traverse, ExternalStream_traverse},
    {Py_tp_clear, ExternalStream_clear},
    {Py_tp_doc, (void *)cuda_external_stream_doc},
    {0, NULL},
};

PyType_Spec external_stream_spec = {
    .name = "pystreams.ExternalStream",
    .basicsize = sizeof(StreamObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = external_stream_slots,
};

PyType_Spec cuda_external_stream_spec = {
    .name = "pystreams.cuda.ExternalStream",
    .basicsize = sizeof(StreamObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = cuda_external_stream_slots,
};
