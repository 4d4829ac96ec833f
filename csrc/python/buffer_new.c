/* Making Buffers, and holding what they stand for. */
#include "span.h"

#include <inttypes.h>

int
buffer_check_open(PyObject *self)
{
    if (((BufferObject *)self)->block == NULL) {
        PyErr_SetString(PyExc_ValueError, "the Buffer is closed");
        return -1;
    }
    return 0;
}

int
buffer_check_usable(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    if (buffer_check_open(op) < 0) {
        return -1;
    }
    if (self->block->generation != ps_generation()) {
        raise_status(state_of(op), self->block->device->runtime,
                     "using a Buffer", PS_ERROR_FOREIGN);
        return -1;
    }
    return 0;
}

int
buffer_hold(PyObject *op, struct span *span)
{
    BufferObject *self = (BufferObject *)op;
    if (buffer_check_usable(op) < 0) {
        return -1;
    }
    *span = (struct span){
        .block = ps_block_ref(self->block),
        .data = self->data,
        .nbytes = self->nbytes,
    };
    return 0;
}

/* Report a failure to give memory up that failed no call. */
static void
memory_report(struct module_state *state, struct ps_runtime *runtime)
{
    report_cleanup(state, runtime, "freeing memory",
                   ps_memory_take_failure(&runtime->memory));
}

void
block_release(struct module_state *state, struct ps_block *block)
{
    struct ps_device *device = block->device;
    ps_status status;
    if (ps_refs_drop_shared(&block->refs)) {
        return;
    }
    WITHOUT_GIL(status = ps_block_unref(block));
    report_cleanup_on(state, device, "freeing memory", status);
    memory_report(state, device->runtime);
}

void
memory_settle(struct module_state *state, struct ps_runtime *runtime)
{
    if (ps_memory_has_retired(&runtime->memory)) {
        WITHOUT_GIL(ps_memory_sweep(runtime));
    }
    memory_report(state, runtime);
}

PyObject *
buffer_wrap(struct module_state *state, struct span *span)
{
    PyTypeObject *type = state->buffer_type;
    BufferObject *self = (BufferObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        block_release(state, span->block);
        return NULL;
    }
    self->block = span->block;
    self->data = span->data;
    self->nbytes = span->nbytes;
    return (PyObject *)self;
}

static void
raise_not_allocated(struct module_state *state, struct ps_device *device,
                    Py_ssize_t nbytes, bool pinned, ps_status status)
{
    const struct ps_backend *backend = device->runtime->backend;
    char operation[160];
    uint64_t free, total;
    int length = snprintf(operation, sizeof(operation),
                          "allocating %zd "
                          "bytes of %s",
                          nbytes, pinned ? "pinned memory" : "memory");
    if (status == PS_ERROR_OUT_OF_MEMORY && !pinned) {
        ps_status known;
        WITHOUT_GIL(known = backend->memory_info(backend, device->index, &free,
                                                 &total));
        if (known == PS_SUCCESS) {
            snprintf(operation + length, sizeof(operation) - (size_t)length,
                     " (%s:%d has %" PRIu64 " free of %" PRIu64 ")",
                     backend->name, device->index, free, total);
        }
    }
    raise_status(state, device->runtime, operation, status);
}

int
span_create(struct module_state *state, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span)
{
    struct ps_runtime *runtime = device->runtime;
    struct ps_block *block;
    ps_status status;
    let_others_run();
    Py_BEGIN_ALLOW_THREADS
    ps_memory_sweep(runtime);
    status = stream != NULL
                 ? ps_block_create(stream, (size_t)nbytes, &block)
                 : ps_block_create_pinned(device, (size_t)nbytes, &block);
    Py_END_ALLOW_THREADS
    memory_report(state, runtime);
    if (status != PS_SUCCESS) {
        raise_not_allocated(state, device, nbytes, stream == NULL, status);
        return -1;
    }
    *span = (struct span){block, block->data, nbytes, false};
    return 0;
}

/* The stream to allocate in the order of: the one given, which must be of the
 * device, or the device's current stream.  A new reference. */
static struct ps_stream *
allocation_stream(struct module_state *state, struct ps_device *device,
                  PyObject *argument)
{
    if (argument == Py_None) {
        return ps_stream_ref(current_stream_of(device));
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

PyObject *
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
    if (device->runtime->backend->memory_allocate == NULL) {
        return raise_absent(device->runtime,
                            pinned ? "pinned memory" : "memory");
    }
    struct ps_stream *stream = NULL;
    if (!pinned) {
        stream = allocation_stream(state, device, stream_name);
        if (stream == NULL) {
            return NULL;
        }
    }
    struct span span;
    int result = span_create(state, device, stream, nbytes, &span);
    stream_release(state, stream);
    return result == 0 ? buffer_wrap(state, &span) : NULL;
}
