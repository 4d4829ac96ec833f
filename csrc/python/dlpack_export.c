/* `Buffer.__dlpack__`: exports a Buffer as a tensor of bytes.  The tensor
 * holds a reference to the memory, but none to the Buffer.  The reference is
 * dropped when the consumer calls the deleter, or when the capsule is
 * destroyed without having been consumed. */
#include "dlpack.h"

#include "../core/memory_use.h"

#include "args.h"
#include "borrow.h"
#include "buffer.h"
#include "current.h"
#include "device.h"
#include "errors.h"
#include "races.h"
#include "schedules.h"
#include "stream.h"
#include "transfer.h"

/* A tensor that another library gets.  The managed tensor is the first member,
 * so that a pointer to it is also a pointer to the export. */
struct export
{
    union {
        struct dlpack_managed managed;
        struct dlpack_versioned versioned;
    };
    struct span span;
    /* The shape, followed by the strides. */
    int64_t extents[];
};

/* The consumer calls this on any thread, with or without the GIL. */
static void
delete_export(struct export *export)
{
    if (is_finalizing()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    span_release(&export->span);
    PyMem_Free(export);
    PyGILState_Release(gil);
}

static void
delete_managed(struct dlpack_managed *self)
{
    delete_export((struct export *)self);
}

static void
delete_versioned(struct dlpack_versioned *self)
{
    delete_export((struct export *)self);
}

static void
destroy_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (PyCapsule_IsValid(capsule, DLPACK_NAME) ||
        PyCapsule_IsValid(capsule, DLPACK_VERSIONED_NAME)) {
        delete_export(PyCapsule_GetPointer(capsule, name));
    }
}

int
dlpack_describe(struct span *span, struct dlpack_tensor *tensor)
{
    struct ps_device *device = span->block->device;
    const struct ps_backend *backend = device->runtime->backend;
    *tensor = (struct dlpack_tensor){
        .data = span->data,
        .device_id = device->index,
        .ndim = 1,
        .type_code = DLPACK_UINT,
        .type_bits = 8,
        .type_lanes = 1,
    };
    if (span->block->pinned && backend->device_type == PS_DEVICE_CUDA) {
        tensor->device_type = DLPACK_CUDA_HOST;
        tensor->device_id = 0;
    }
    else if (span->block->host) {
        tensor->device_type = DLPACK_CPU;
    }
    else if (backend->device_type == PS_DEVICE_CUDA) {
        tensor->device_type = DLPACK_CUDA;
    }
    else if (backend->device_type == PS_DEVICE_PRIVATEUSEONE) {
        tensor->device_type = DLPACK_EXTENSION;
    }
    else {
        return refuse(PyExc_BufferError,
                      "DLPack has no device type for memory of %s",
                      backend->name);
    }
    return 0;
}

/* The arguments of __dlpack__. */
struct request {
    PyObject *stream;
    /* Describes the tensor's device and item type. */
    struct dlpack_tensor form;
    bool versioned;
    bool copy;
    bool to_host;
};

/* Make an export of the span.  Takes over the span, even on failure.  On
 * failure, returns NULL with an exception. */
static struct export *
export_create(struct span *span, const struct dlpack_tensor *form,
              bool versioned, uint64_t flags)
{
    size_t ndim = (size_t)form->ndim;
    struct export *export =
        PyMem_Malloc(sizeof(*export) + 2 * ndim * sizeof(int64_t));
    if (export == NULL) {
        PyErr_NoMemory();
        span_release(span);
        return NULL;
    }
    struct dlpack_tensor tensor = *form;
    tensor.data = span->data;
    tensor.shape = export->extents;
    tensor.strides = export->extents + ndim;
    int64_t stride = 1;
    for (size_t i = ndim; i-- > 0;) {
        tensor.shape[i] = form->shape[i];
        tensor.strides[i] = stride;
        /* This overflows only if another extent is 0.  In that case, the
         * strides do not matter. */
        (void)__builtin_mul_overflow(stride, form->shape[i], &stride);
    }
    export->span = *span;
    if (versioned) {
        flags |= span->block->read_only ? DLPACK_READ_ONLY : 0;
        export->versioned = (struct dlpack_versioned){
            DLPACK_MAJOR, DLPACK_MINOR, NULL, delete_versioned, flags, tensor,
        };
    }
    else {
        export->managed =
            (struct dlpack_managed){tensor, NULL, delete_managed};
    }
    return export;
}

struct dlpack_versioned *
dlpack_export(struct span *span, const struct dlpack_tensor *form)
{
    struct export *export = export_create(span, form, true, 0);
    return export != NULL ? &export->versioned : NULL;
}

/* Make a capsule for the span.  Takes over the span, even on failure. */
static PyObject *
export_span(struct span *span, const struct request *request)
{
    int64_t extent = span->nbytes;
    struct dlpack_tensor form = request->form;
    form.shape = &extent;
    struct export *export = export_create(
        span, &form, request->versioned, request->copy ? DLPACK_IS_COPIED : 0);
    if (export == NULL) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(
        export, request->versioned ? DLPACK_VERSIONED_NAME : DLPACK_NAME,
        destroy_capsule);
    if (capsule == NULL) {
        delete_export(export);
    }
    return capsule;
}

int
dlpack_settle_host(struct span *span)
{
    bool writes = !span->block->read_only;
    if (span_settle(span, NULL) < 0 ||
        host_access("a DLPack export", span->data, span->nbytes, writes) < 0) {
        return -1;
    }
    note_memory(writes ? PS_NOTE_VIEW_WRITES : PS_NOTE_VIEW, span->data,
                (size_t)span->nbytes);
    return 0;
}

int
dlpack_use(struct span *span, struct ps_stream *stream)
{
    ps_status status;
    /* Do not mark the block as used by an external stream, because the owner
     * of the stream may destroy the stream while the block still refers to
     * it. */
    if (stream->kind == PS_STREAM_EXTERNAL) {
        return 0;
    }
    WITHOUT_GIL(status = ps_block_use(span->block, stream, true));
    return zero_or_raise(span->block->device->runtime, "a DLPack export",
                         status);
}

/* Make the memory ready for the consumer's stream, which has this number.  The
 * number -1 means that the consumer does not want a wait. */
static int
make_ready(struct span *span, PyObject *number)
{
    struct ps_device *device = span->block->device;
    struct ps_stream *stream;
    int overflow;
    if (span->block->host) {
        if (number != Py_None) {
            return refuse(PyExc_ValueError,
                          "__dlpack__() expects None for stream of host "
                          "memory, but got %R",
                          number);
        }
        return dlpack_settle_host(span);
    }
    if (PyLong_Check(number) &&
        PyLong_AsLongAndOverflow(number, &overflow) == -1 && overflow == 0) {
        return 0;
    }
    stream = number == Py_None
                 ? ps_stream_ref(&device->default_stream)
                 : protocol_stream(device, "__dlpack__", "stream", number);
    if (stream == NULL) {
        return -1;
    }
    int result = span_settle(span, stream) < 0 ? -1 : dlpack_use(span, stream);
    stream_release(stream);
    return result;
}

/* Replace the span with a copy of its memory.  The copy is in host memory if
 * to_host is true, otherwise in memory of the same kind. */
static int
copy_span(struct span *span, bool to_host)
{
    struct device_name cpu = {.type = PS_DEVICE_CPU, .index = -1};
    struct ps_device *device =
        to_host ? device_at("__dlpack__", cpu) : span->block->device;
    if (device == NULL) {
        return -1;
    }
    bool ordered = !span->block->pinned || to_host;
    struct ps_stream *current = current_stream_of(span->block->device);
    struct ps_stream *order =
        current != NULL && ordered ? current_stream_of(device) : NULL;
    struct span copied;
    int result = current != NULL && (order != NULL || !ordered)
                     ? span_settle(span, current)
                     : -1;
    if (result == 0) {
        result = span_create(order != NULL ? MEMORY_ORDERED : MEMORY_PINNED,
                             device, order, span->nbytes, &copied);
    }
    stream_release(order);
    stream_release(current);
    if (result < 0) {
        return -1;
    }
    if (span_copy("__dlpack__", &copied, span, NULL, false) < 0) {
        span_release(&copied);
        return -1;
    }
    span_release(span);
    *span = copied;
    return 0;
}

static int
parse_version(PyObject *version, bool *versioned)
{
    int major = 0, minor;
    if (version != Py_None &&
        !(PyTuple_Check(version) &&
          PyArg_ParseTuple(version, "ii", &major, &minor))) {
        return refuse(PyExc_TypeError,
                      "__dlpack__() expects None or a tuple (major, minor) "
                      "for max_version, but got %R",
                      version);
    }
    *versioned = major >= DLPACK_MAJOR;
    return 0;
}

/* Read the argument dl_device, which may be the memory's own device or the
 * host. */
static int
parse_place(struct span *span, PyObject *place, struct request *request)
{
    struct dlpack_tensor *form = &request->form;
    int type, id;
    if (dlpack_describe(span, form) < 0) {
        return -1;
    }
    request->to_host = false;
    if (place == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(place) || !PyArg_ParseTuple(place, "ii", &type, &id)) {
        return refuse(PyExc_TypeError,
                      "__dlpack__() expects None or a tuple (device type, "
                      "device id) for dl_device, but got %R",
                      place);
    }
    if (type == form->device_type && id == form->device_id) {
        return 0;
    }
    if (type != DLPACK_CPU) {
        return refuse(PyExc_BufferError,
                      "memory of DLPack device (%d, %d) cannot be given as "
                      "that of (%d, %d); copy it to a Buffer there",
                      form->device_type, form->device_id, type, id);
    }
    request->to_host = !span->block->host;
    form->device_type = type;
    form->device_id = id;
    return 0;
}

static int
parse_request(struct span *span, PyObject *const *values,
              struct request *request)
{
    PyObject *copy = values[3] != NULL ? values[3] : Py_None;
    request->stream = values[0] != NULL ? values[0] : Py_None;
    if (parse_version(values[1] != NULL ? values[1] : Py_None,
                      &request->versioned) < 0 ||
        parse_place(span, values[2] != NULL ? values[2] : Py_None, request) <
            0) {
        return -1;
    }
    bool wanted;
    if (switch_argument("__dlpack__", "copy", copy, &wanted) < 0) {
        return -1;
    }
    request->copy = wanted || request->to_host;
    if (request->to_host && copy != Py_None && !wanted) {
        return refuse(PyExc_BufferError,
                      "device memory cannot be given to the host without a "
                      "copy, which copy=False forbids");
    }
    if (span->block->read_only && !request->versioned && !request->copy) {
        return refuse(PyExc_BufferError,
                      "read-only memory needs DLPack 1.0: ask with "
                      "max_version=(1, 0), or with copy=True");
    }
    return 0;
}

PyObject *
Buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    static const struct signature signature = {
        "__dlpack__", 0, 0, {"stream", "max_version", "dl_device", "copy"}};
    PyObject *values[4];
    struct request request;
    struct span span;

    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0 ||
        buffer_hold(self, &span) < 0) {
        return NULL;
    }
    if (parse_request(&span, values, &request) < 0 ||
        (request.copy && copy_span(&span, request.to_host) < 0) ||
        make_ready(&span, request.to_host ? Py_None : request.stream) < 0) {
        span_release(&span);
        return NULL;
    }
    return export_span(&span, &request);
}

PyObject *
Buffer_dlpack_device(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct dlpack_tensor tensor;
    struct span span;
    if (buffer_hold(self, &span) < 0) {
        return NULL;
    }
    int result = dlpack_describe(&span, &tensor);
    span_release(&span);
    return result == 0 ? Py_BuildValue("(ii)", (int)tensor.device_type,
                                       (int)tensor.device_id)
                       : NULL;
}
