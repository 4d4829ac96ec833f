/* The type `Buffer`: bytes of device or pinned memory, or a part of another
 * Buffer's.  A method that may release the GIL works on a held copy of the
 * object's fields, because another thread may close it meanwhile. */
#include "module.h"

#include <string.h>
#include <structmember.h>

static BufferObject *
as_buffer(PyObject *self)
{
    return (BufferObject *)self;
}

static struct ps_device *
device_of(BufferObject *self)
{
    return self->block->device;
}

/* Takes over the caller's reference to the block. */
static PyObject *
wrap_block(struct module_state *state, struct ps_block *block, char *data,
           Py_ssize_t nbytes)
{
    PyTypeObject *type = state->buffer_type;
    BufferObject *self = (BufferObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        buffer_release(state, block);
        return NULL;
    }
    self->block = block;
    self->data = data;
    self->nbytes = nbytes;
    return (PyObject *)self;
}

/* A Buffer of pinned memory for the device, or of device memory in the order
 * of the stream. */
static PyObject *
create(struct module_state *state, struct ps_device *device,
       struct ps_stream *stream, Py_ssize_t nbytes)
{
    struct ps_runtime *runtime = device->runtime;
    struct ps_block *block;
    ps_status swept, status;
    Py_BEGIN_ALLOW_THREADS
    swept = ps_memory_sweep(runtime);
    status = stream != NULL
                 ? ps_block_create(stream, (size_t)nbytes, &block)
                 : ps_block_create_pinned(device, (size_t)nbytes, &block);
    Py_END_ALLOW_THREADS
    report_cleanup(state, runtime, "freeing memory", swept);
    if (status != PS_SUCCESS) {
        char operation[80];
        snprintf(operation, sizeof(operation), "allocating %zd bytes of %s",
                 nbytes, stream != NULL ? "memory" : "pinned memory");
        return raise_status(state, runtime, operation, status);
    }
    return wrap_block(state, block, block->data, nbytes);
}

/* The stream to allocate in the order of: the one given, which must be of the
 * device, or the device's current stream.  A new reference. */
static struct ps_stream *
allocation_stream(struct module_state *state, struct ps_device *device,
                  PyObject *argument)
{
    if (argument == Py_None) {
        return ps_stream_ref(ps_current_stream(device));
    }
    struct ps_stream *stream = stream_argument(state, -1, argument);
    if (stream != NULL && stream->device != device) {
        PyErr_Format(PyExc_ValueError,
                     "expected a stream of %s:%d, but got %R",
                     device->runtime->backend->name, device->index, argument);
        stream_release(state, stream);
        return NULL;
    }
    return stream;
}

/* The device whose backend pins memory: a CPU has no need of it, so "cpu"
 * stands for the accelerator. */
static struct ps_device *
pinning_device(struct module_state *state, struct ps_device *device)
{
    bool cpu = device->runtime->backend->device_type == PS_DEVICE_CPU;
    return cpu ? device_argument(state, -1, Py_None) : device;
}

static PyObject *
Buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"nbytes", "device", "stream", "pin_memory",
                               NULL};
    struct module_state *state = state_of_type(type);
    PyObject *size, *device_name = Py_None, *stream_name = Py_None;
    int pinned = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOp:Buffer", keywords,
                                     &size, &device_name, &stream_name,
                                     &pinned)) {
        return NULL;
    }
    Py_ssize_t nbytes = PyNumber_AsSsize_t(size, PyExc_OverflowError);
    if (nbytes == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (nbytes < 0) {
        return PyErr_Format(PyExc_ValueError,
                            "nbytes must not be negative, got %zd", nbytes);
    }
    if (pinned && stream_name != Py_None) {
        PyErr_SetString(PyExc_ValueError,
                        "pinned memory is not allocated in stream order; "
                        "stream must be None with pin_memory=True");
        return NULL;
    }
    struct ps_device *device = device_argument(state, -1, device_name);
    if (device != NULL && pinned) {
        device = pinning_device(state, device);
    }
    if (device == NULL) {
        return NULL;
    }
    if (pinned) {
        return create(state, device, NULL, nbytes);
    }
    struct ps_stream *stream = allocation_stream(state, device, stream_name);
    if (stream == NULL) {
        return NULL;
    }
    PyObject *self = create(state, device, stream, nbytes);
    stream_release(state, stream);
    return self;
}

static void
Buffer_dealloc(PyObject *op)
{
    BufferObject *self = as_buffer(op);
    PyTypeObject *type = Py_TYPE(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    if (self->block != NULL && !is_finalizing()) {
        buffer_release(state_of(op), self->block);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Buffer_repr(PyObject *op)
{
    BufferObject *self = as_buffer(op);
    if (self->block == NULL) {
        return PyUnicode_FromString("<pystreams.Buffer closed>");
    }
    struct handle_text text = handle_text((ps_handle)self->data);
    if (self->block->pinned) {
        return PyUnicode_FromFormat(
            "<pystreams.Buffer device=cpu pinned nbytes=%zd data=%s>",
            self->nbytes, text.chars);
    }
    return PyUnicode_FromFormat(
        "<pystreams.Buffer device=%s:%d nbytes=%zd data=%s>",
        device_of(self)->runtime->backend->name, device_of(self)->index,
        self->nbytes, text.chars);
}

static PyObject *
Buffer_copy(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    static const char *const names[] = {"src", "non_blocking", "stream", NULL};
    static const struct signature signature = {"copy_", 1, 3, names};
    struct module_state *state = state_of(op);
    PyObject *values[3];
    BufferObject self;

    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    PyObject *stream = values[2] != NULL ? values[2] : Py_None;
    int non_blocking = values[1] != NULL ? PyObject_IsTrue(values[1]) : 0;
    if (non_blocking < 0 || buffer_hold(op, &self) < 0) {
        return NULL;
    }
    int result = buffer_copy(state, &self, values[0], non_blocking, stream);
    buffer_release(state, self.block);
    return result == 0 ? Py_NewRef(op) : NULL;
}

static PyObject *
fill_with(PyObject *op, uint8_t value, PyObject *stream)
{
    struct module_state *state = state_of(op);
    BufferObject self;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    int result =
        buffer_fill(state, &self, value, stream != NULL ? stream : Py_None);
    buffer_release(state, self.block);
    return result == 0 ? Py_NewRef(op) : NULL;
}

static PyObject *
Buffer_fill(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    static const char *const names[] = {"byte", "stream", NULL};
    static const struct signature signature = {"fill_", 1, 2, names};
    PyObject *values[2];
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    Py_ssize_t value = PyNumber_AsSsize_t(values[0], PyExc_OverflowError);
    if (value == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (value < 0 || value > 255) {
        return PyErr_Format(PyExc_ValueError,
                            "fill_ expects a byte from 0 to 255, got %zd",
                            value);
    }
    return fill_with(op, (uint8_t)value, values[1]);
}

static PyObject *
Buffer_zero(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PyObject *stream;
    if (parse_optional("zero_", "stream", args, nargs, kwnames, &stream) < 0) {
        return NULL;
    }
    return fill_with(op, 0, stream);
}

static PyObject *
Buffer_record_stream(PyObject *op, PyObject *argument)
{
    struct module_state *state = state_of(op);
    BufferObject self;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    struct ps_runtime *runtime = device_of(&self)->runtime;
    struct ps_stream *stream = required_stream_argument(state, -1, argument);
    ps_status status = PS_SUCCESS;
    if (stream != NULL && stream->device->runtime != runtime) {
        PyErr_Format(PyExc_ValueError, "expected a %s stream, but got %R",
                     runtime->backend->name, argument);
    }
    else if (stream != NULL) {
        WITHOUT_GIL(status = ps_block_use(self.block, stream, true));
        raise_status(state, runtime, "Buffer.record_stream", status);
    }
    if (stream != NULL) {
        stream_release(state, stream);
    }
    buffer_release(state, self.block);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
Buffer_tobytes(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct module_state *state = state_of(op);
    BufferObject self;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self.nbytes);
    if (bytes != NULL &&
        buffer_copy_to_host(state, &self, PyBytes_AS_STRING(bytes)) < 0) {
        Py_CLEAR(bytes);
    }
    buffer_release(state, self.block);
    return bytes;
}

static PyObject *
Buffer_memoryview(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyMemoryView_FromObject(op);
}

static PyObject *
Buffer_data_ptr(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (buffer_check_open(op) < 0) {
        return NULL;
    }
    return PyLong_FromVoidPtr(as_buffer(op)->data);
}

static PyObject *
Buffer_is_pinned(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (buffer_check_open(op) < 0) {
        return NULL;
    }
    return PyBool_FromLong(as_buffer(op)->block->pinned);
}

static PyObject *
Buffer_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    BufferObject *self = as_buffer(op);
    struct ps_block *block = self->block;
    ps_status status;
    if (block == NULL) {
        Py_RETURN_NONE;
    }
    if (self->exports > 0) {
        return PyErr_Format(PyExc_BufferError,
                            "cannot close a Buffer with %zd exported views; "
                            "release them first",
                            self->exports);
    }
    struct ps_runtime *runtime = block->device->runtime;
    self->block = NULL;
    self->data = NULL;
    WITHOUT_GIL(status = ps_block_unref(block));
    return none_or_raise(state_of(op), runtime, "Buffer.close", status);
}

static Py_ssize_t
Buffer_length(PyObject *op)
{
    return as_buffer(op)->nbytes;
}

static PyObject *
Buffer_subscript(PyObject *op, PyObject *key)
{
    BufferObject *self = as_buffer(op);
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        return PyErr_Format(PyExc_TypeError,
                            "a Buffer is indexed by slices, not by %s",
                            Py_TYPE(key)->tp_name);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0 ||
        buffer_check_open(op) < 0) {
        return NULL;
    }
    if (step != 1) {
        return PyErr_Format(PyExc_ValueError,
                            "a slice of a Buffer must have step 1, got %zd",
                            step);
    }
    Py_ssize_t length =
        PySlice_AdjustIndices(self->nbytes, &start, &stop, step);
    return wrap_block(state_of(op), ps_block_ref(self->block),
                      self->data + start, length);
}

static int
Buffer_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    BufferObject *self = as_buffer(op);
    static char empty;
    view->obj = NULL;
    if (buffer_check_usable(op) < 0) {
        return -1;
    }
    if (!buffer_is_host(self)) {
        PyErr_Format(PyExc_BufferError,
                     "the host cannot address memory of %s:%d; copy it to a "
                     "pinned Buffer, or use tobytes()",
                     device_of(self)->runtime->backend->name,
                     device_of(self)->index);
        return -1;
    }
    if (PyBuffer_FillInfo(view, op, self->data != NULL ? self->data : &empty,
                          self->nbytes, 0, flags) < 0) {
        return -1;
    }
    self->exports++;
    return 0;
}

static void
Buffer_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    as_buffer(op)->exports--;
}

static PyObject *
Buffer_get_nbytes(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(as_buffer(op)->nbytes);
}

static PyObject *
Buffer_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    if (buffer_check_open(op) < 0) {
        return NULL;
    }
    BufferObject *self = as_buffer(op);
    if (self->block->pinned) {
        return device_new(state_of(op), PS_DEVICE_CPU, -1);
    }
    return device_new(state_of(op),
                      device_of(self)->runtime->backend->device_type,
                      device_of(self)->index);
}

static PyMethodDef buffer_methods[] = {
    {"data_ptr", Buffer_data_ptr, METH_NOARGS,
     PyDoc_STR("data_ptr($self, /)\n--\n\n"
               "Return the address of the first byte; 0 where there is "
               "none.")},
    {"is_pinned", Buffer_is_pinned, METH_NOARGS,
     PyDoc_STR("is_pinned($self, /)\n--\n\n"
               "Return whether this is pinned host memory.")},
    {"copy_", (PyCFunction)(void (*)(void))Buffer_copy,
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("copy_($self, /, src, non_blocking=False, stream=None)\n--\n\n"
               "Copy the bytes of src, of the same size, and return self "
               "(cudaMemcpyAsync).\n\n"
               "src is a Buffer, or any contiguous object with the buffer "
               "protocol.  The copy is\nqueued on the stream given, else on "
               "the current stream of the device memory\ninvolved; between "
               "devices, on the source's, and in the order of both.  Blocks\n"
               "with the GIL released until the copy is done when src is not "
               "a Buffer, or when\none side is host memory and non_blocking "
               "is false.\n\n"
               "Raises ValueError for another size or overlapping memory, "
               "TypeError for another\ntype.")},
    {"fill_", (PyCFunction)(void (*)(void))Buffer_fill,
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("fill_($self, /, byte, stream=None)\n--\n\n"
               "Queue the setting of every byte and return self "
               "(cudaMemsetAsync).\n\n"
               "Does not wait for it.  Raises ValueError unless byte is from "
               "0 to 255.")},
    {"zero_", (PyCFunction)(void (*)(void))Buffer_zero,
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("zero_($self, /, stream=None)\n--\n\n"
               "Queue the setting of every byte to 0 and return self.")},
    {"record_stream", Buffer_record_stream, METH_O,
     PyDoc_STR("record_stream($self, stream, /)\n--\n\n"
               "Say that work on the stream uses the memory, so that it is "
               "not reused before\nwhat the stream has when the Buffer is "
               "given up is done.")},
    {"tobytes", Buffer_tobytes, METH_NOARGS,
     PyDoc_STR("tobytes($self, /)\n--\n\n"
               "Return the bytes, after the work of the current stream of "
               "the Buffer's device.\n\n"
               "Blocks with the GIL released.")},
    {"memoryview", Buffer_memoryview, METH_NOARGS,
     PyDoc_STR("memoryview($self, /)\n--\n\n"
               "Return a writable memoryview of host memory, without waiting "
               "for any work.\n\n"
               "Raises BufferError for memory that the host cannot "
               "address.")},
    {"close", Buffer_close, METH_NOARGS,
     PyDoc_STR("close($self, /)\n--\n\n"
               "Give the memory up now; it is freed after the work that uses "
               "it.\n\n"
               "Closing twice is harmless.  Raises BufferError while "
               "memoryviews of it exist.")},
    {NULL},
};

static PyGetSetDef buffer_getset[] = {
    {"nbytes", Buffer_get_nbytes, NULL, PyDoc_STR("The size in bytes.")},
    {"device", Buffer_get_device, NULL,
     PyDoc_STR("The memory's device; device('cpu') when pinned.")},
    {NULL},
};

static PyMemberDef buffer_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(BufferObject, weakrefs),
     READONLY, NULL},
    {NULL},
};

PyDoc_STRVAR(buffer_doc,
             "Buffer(nbytes, *, device=None, stream=None, "
             "pin_memory=False)\n--\n\n"
             "nbytes of uninitialized memory that streams order.\n\n"
             "Device memory is allocated and freed in the order of a stream "
             "(cudaMallocAsync),\nby default the device's current one; "
             "pinned memory is host memory that devices\ncopy "
             "asynchronously (cudaHostAlloc).  buffer[a:b] is a Buffer for a "
             "part of the\nsame memory.  Host memory has the buffer "
             "protocol.\n\n"
             "Raises ValueError for a negative size or a stream of another "
             "device,\nOutOfMemoryError where there is no such memory.");

static PyType_Slot buffer_slots[] = {
    {Py_tp_new, Buffer_new},
    {Py_tp_dealloc, Buffer_dealloc},
    {Py_tp_repr, Buffer_repr},
    {Py_tp_methods, buffer_methods},
    {Py_tp_getset, buffer_getset},
    {Py_tp_members, buffer_members},
    {Py_mp_length, Buffer_length},
    {Py_mp_subscript, Buffer_subscript},
    {Py_bf_getbuffer, Buffer_getbuffer},
    {Py_bf_releasebuffer, Buffer_releasebuffer},
    {Py_tp_doc, (void *)buffer_doc},
    {0, NULL},
};

PyType_Spec buffer_spec = {
    .name = "pystreams.Buffer",
    .basicsize = sizeof(BufferObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = buffer_slots,
};
