/* Copies and fills: what `Buffer` does in stream order.
 *
 * Each marks its blocks as used by its stream after it was queued, so that no
 * block is reused under it.  Callers hold the blocks. */
#include "module.h"

/* One operation on a stream with the blocks that it uses; NULL for memory
 * that is not a Buffer's, or not of the stream's backend. */
struct transfer {
    struct ps_stream *stream;
    struct ps_block *destination;
    struct ps_block *source;
};

static struct ps_device *
device_of(BufferObject *buffer)
{
    return buffer->block->device;
}

int
buffer_check_open(PyObject *self)
{
    if (((BufferObject *)self)->block == NULL) {
        PyErr_SetString(PyExc_ValueError, "the Buffer is closed");
        return -1;
    }
    return 0;
}

void
buffer_release(struct module_state *state, struct ps_block *block)
{
    struct ps_runtime *runtime = block->device->runtime;
    ps_status status;
    if (atomic_load(&block->refs) > 1) {
        status = ps_block_unref(block);
    }
    else {
        WITHOUT_GIL(status = ps_block_unref(block));
    }
    report_cleanup(state, runtime, "freeing memory", status);
}

int
buffer_check_usable(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    if (buffer_check_open(op) < 0) {
        return -1;
    }
    if (self->block->generation != ps_generation()) {
        raise_status(state_of(op), device_of(self)->runtime, "using a Buffer",
                     PS_ERROR_FOREIGN);
        return -1;
    }
    return 0;
}

int
buffer_hold(PyObject *op, BufferObject *held)
{
    if (buffer_check_usable(op) < 0) {
        return -1;
    }
    *held = *(BufferObject *)op;
    ps_block_ref(held->block);
    return 0;
}

bool
buffer_is_host(BufferObject *buffer)
{
    return buffer->block->pinned ||
           device_of(buffer)->runtime->backend->device_type == PS_DEVICE_CPU;
}

static ps_status
mark_used(struct transfer *transfer)
{
    ps_status status = PS_SUCCESS;
    if (transfer->destination != NULL) {
        status = ps_block_use(transfer->destination, transfer->stream, false);
    }
    if (status == PS_SUCCESS && transfer->source != NULL) {
        status = ps_block_use(transfer->source, transfer->stream, false);
    }
    if (status != PS_SUCCESS) {
        /* Unmarked, the use must be over. */
        ps_stream_synchronize(transfer->stream);
    }
    return status;
}

/* Queue a copy, and wait for it if asked to.  Called with the GIL released. */
static ps_status
copy(struct transfer *transfer, void *destination, const void *source,
     size_t nbytes, bool wait)
{
    ps_status status =
        ps_stream_copy(transfer->stream, destination, source, nbytes);
    if (status == PS_SUCCESS) {
        status = mark_used(transfer);
    }
    if (status == PS_SUCCESS && wait) {
        status = ps_stream_synchronize(transfer->stream);
    }
    return status;
}

/* Likewise for a fill, which is not waited for. */
static ps_status
fill(struct transfer *transfer, void *destination, uint8_t value,
     size_t nbytes)
{
    ps_status status =
        ps_stream_fill(transfer->stream, destination, value, nbytes);
    return status == PS_SUCCESS ? mark_used(transfer) : status;
}

/* Run a copy on a stream that the caller holds; -1 with an exception. */
static int
run_copy(struct module_state *state, struct transfer *transfer,
         void *destination, const void *source, Py_ssize_t nbytes, bool wait)
{
    ps_status status;
    ENQUEUE_WITHOUT_GIL(
        status, transfer->stream,
        copy(transfer, destination, source, (size_t)nbytes, wait));
    if (status != PS_SUCCESS) {
        raise_status(state, transfer->stream->device->runtime, "a copy",
                     status);
        return -1;
    }
    return 0;
}

/* The stream for work on a Buffer: the one given, which must be of the same
 * backend, or the current stream of its device.  A new reference. */
static struct ps_stream *
work_stream(struct module_state *state, BufferObject *buffer,
            PyObject *argument)
{
    struct ps_device *device = device_of(buffer);
    if (argument == Py_None) {
        return ps_stream_ref(ps_current_stream(device));
    }
    struct ps_stream *stream = stream_argument(state, -1, argument);
    if (stream != NULL && stream->device->runtime != device->runtime) {
        PyErr_Format(PyExc_ValueError, "expected a %s stream, but got %R",
                     device->runtime->backend->name, argument);
        stream_release(state, stream);
        return NULL;
    }
    return stream;
}

/* Run a copy of the leader's size on the stream named, else on the leader's
 * current one; the transfer says which blocks it uses. */
static int
copy_on(struct module_state *state, BufferObject *leader,
        PyObject *stream_name, struct transfer transfer, void *destination,
        const void *source, bool wait)
{
    transfer.stream = work_stream(state, leader, stream_name);
    if (transfer.stream == NULL) {
        return -1;
    }
    int result =
        run_copy(state, &transfer, destination, source, leader->nbytes, wait);
    stream_release(state, transfer.stream);
    return result;
}

int
buffer_copy_to_host(struct module_state *state, BufferObject *self,
                    void *destination)
{
    struct transfer transfer = {.source = self->block};
    return copy_on(state, self, Py_None, transfer, destination, self->data,
                   true);
}

/* Wait for the work on host memory of another backend, which knows nothing of
 * the streams that will copy it. */
static int
settle_host_memory(struct module_state *state, BufferObject *host)
{
    struct ps_stream *stream = work_stream(state, host, Py_None);
    ps_status status;
    WITHOUT_GIL(status = ps_stream_synchronize(stream));
    stream_release(state, stream);
    if (status != PS_SUCCESS) {
        raise_status(state, device_of(host)->runtime, "a copy", status);
        return -1;
    }
    return 0;
}

/* One side is plain host memory to the other side's backend. */
static int
copy_between_backends(struct module_state *state, BufferObject *self,
                      BufferObject *source, PyObject *stream_name)
{
    BufferObject *host = buffer_is_host(source) ? source : self;
    BufferObject *other = host == source ? self : source;
    if (!buffer_is_host(host)) {
        PyErr_Format(PyExc_NotImplementedError,
                     "no copy from %s to %s device memory",
                     device_of(source)->runtime->backend->name,
                     device_of(self)->runtime->backend->name);
        return -1;
    }
    if (settle_host_memory(state, host) < 0) {
        return -1;
    }
    struct transfer transfer = {
        .destination = other == self ? self->block : NULL,
        .source = other == source ? source->block : NULL,
    };
    return copy_on(state, other, stream_name, transfer, self->data,
                   source->data, true);
}

/* Between devices, on the source's current stream and in the order of the
 * destination's too, as torch has it. */
static int
copy_between_devices(struct module_state *state, BufferObject *self,
                     BufferObject *source, bool wait)
{
    struct ps_stream *theirs = work_stream(state, source, Py_None);
    struct ps_stream *ours = work_stream(state, self, Py_None);
    struct transfer transfer = {theirs, self->block, source->block};
    int result = stream_wait_stream(state, theirs, ours);
    if (result == 0) {
        result = run_copy(state, &transfer, self->data, source->data,
                          self->nbytes, wait);
    }
    if (result == 0) {
        result = stream_wait_stream(state, ours, theirs);
    }
    stream_release(state, ours);
    stream_release(state, theirs);
    return result;
}

static int
copy_from_buffer(struct module_state *state, BufferObject *self,
                 BufferObject *source, PyObject *stream_name,
                 bool non_blocking)
{
    struct ps_device *from = device_of(source), *to = device_of(self);
    bool wait =
        !non_blocking && (buffer_is_host(self) || buffer_is_host(source));
    if (from->runtime != to->runtime) {
        return copy_between_backends(state, self, source, stream_name);
    }
    bool pinned = self->block->pinned || source->block->pinned;
    if (from != to && !pinned && stream_name == Py_None) {
        return copy_between_devices(state, self, source, wait);
    }
    /* Pinned memory is of every device, so the other side leads. */
    BufferObject *leader = source->block->pinned ? self : source;
    struct transfer transfer = {
        .destination = self->block,
        .source = source->block,
    };
    return copy_on(state, leader, stream_name, transfer, self->data,
                   source->data, wait);
}

static int
check_size(BufferObject *self, Py_ssize_t nbytes)
{
    if (nbytes != self->nbytes) {
        PyErr_Format(PyExc_ValueError,
                     "copy_ expects a source of %zd bytes, but got %zd",
                     self->nbytes, nbytes);
        return -1;
    }
    return 0;
}

static int
copy_buffer(struct module_state *state, BufferObject *self, PyObject *op,
            bool non_blocking, PyObject *stream)
{
    BufferObject source;
    if (buffer_hold(op, &source) < 0) {
        return -1;
    }
    int result = check_size(self, source.nbytes);
    if (result == 0 && self->block == source.block &&
        self->data < source.data + source.nbytes &&
        source.data < self->data + self->nbytes) {
        PyErr_SetString(PyExc_ValueError,
                        "the source and the destination of copy_ overlap");
        result = -1;
    }
    if (result == 0) {
        result = copy_from_buffer(state, self, &source, stream, non_blocking);
    }
    buffer_release(state, source.block);
    return result;
}

static int
copy_object(struct module_state *state, BufferObject *self, PyObject *source,
            PyObject *stream)
{
    Py_buffer view;
    if (!PyObject_CheckBuffer(source)) {
        PyErr_Format(PyExc_TypeError,
                     "copy_ expects a Buffer or an object with the buffer "
                     "protocol, but got %s",
                     Py_TYPE(source)->tp_name);
        return -1;
    }
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    int result = check_size(self, view.len);
    if (result == 0) {
        struct transfer transfer = {.destination = self->block};
        result =
            copy_on(state, self, stream, transfer, self->data, view.buf, true);
    }
    PyBuffer_Release(&view);
    return result;
}

int
buffer_copy(struct module_state *state, BufferObject *self, PyObject *source,
            bool non_blocking, PyObject *stream)
{
    return PyObject_TypeCheck(source, state->buffer_type)
               ? copy_buffer(state, self, source, non_blocking, stream)
               : copy_object(state, self, source, stream);
}

int
buffer_fill(struct module_state *state, BufferObject *self, uint8_t value,
            PyObject *stream_name)
{
    struct ps_stream *stream = work_stream(state, self, stream_name);
    ps_status status;
    if (stream == NULL) {
        return -1;
    }
    struct transfer transfer = {stream, self->block, NULL};
    ENQUEUE_WITHOUT_GIL(
        status, stream,
        fill(&transfer, self->data, value, (size_t)self->nbytes));
    struct ps_runtime *runtime = stream->device->runtime;
    stream_release(state, stream);
    if (status != PS_SUCCESS) {
        raise_status(state, runtime, "a fill", status);
        return -1;
    }
    return 0;
}
