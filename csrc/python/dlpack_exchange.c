/* `Buffer.__dlpack_c_exchange_api__`: DLPack's exchange table.  Other
 * libraries call the functions of this table to exchange tensors without
 * running Python code.  The functions do not make any stream wait for another,
 * so the consumer must use the memory on the current stream. */
#include "dlpack.h"

#include "args.h"
#include "buffer.h"
#include "current.h"
#include "device.h"
#include "errors.h"
#include "stream.h"

/* Get a new reference to the current stream of a DLPack device.  The consumer
 * must use the memory on this stream.  *stream becomes NULL for the CPU, which
 * has no streams.  On failure, returns -1 with an exception. */
static int
work_stream(int32_t type, int32_t id, struct ps_stream **stream)
{
    static const char function[] = "current_work_stream";
    struct ps_device *device;
    *stream = NULL;
    if (dlpack_place(function, type, id, &device) < 0) {
        return -1;
    }
    if (type == DLPACK_CUDA_HOST) {
        device = device_at(function, (struct device_name){PS_DEVICE_CUDA, -1});
        if (device == NULL) {
            return -1;
        }
    }
    if (device != NULL) {
        *stream = current_stream_of(device);
        return *stream != NULL ? 0 : -1;
    }
    return 0;
}

static int
prepare(struct span *span, struct dlpack_tensor *tensor)
{
    struct ps_stream *stream;
    if (dlpack_describe(span, tensor) < 0 ||
        work_stream(tensor->device_type, tensor->device_id, &stream) < 0) {
        return -1;
    }
    /* The consumer may access host memory at once, without a stream, so wait
     * for the work that uses it. */
    int result = span->block->host ? dlpack_settle_host(span) : 0;
    if (result == 0 && stream != NULL) {
        result = dlpack_use(span, stream);
    }
    stream_release(stream);
    return result;
}

/* Get the span of a Buffer, describe it in *tensor, without shape and strides,
 * and make its memory ready for the consumer.  On failure, returns -1 with an
 * exception. */
static int
hold_tensor(void *object, struct span *span, struct dlpack_tensor *tensor)
{
    if (!PyObject_TypeCheck((PyObject *)object, module_state.buffer_type)) {
        return refuse_type("__dlpack_c_exchange_api__", "a Buffer",
                           "py_object", object);
    }
    if (buffer_hold(object, span) < 0) {
        return -1;
    }
    if (prepare(span, tensor) < 0) {
        span_release(span);
        return -1;
    }
    return 0;
}

static int
managed_from_object(void *object, struct dlpack_versioned **tensor)
{
    struct dlpack_tensor form;
    struct span span;
    if (hold_tensor(object, &span, &form) < 0) {
        return -1;
    }
    int64_t extent = span.nbytes;
    form.shape = &extent;
    *tensor = dlpack_export(&span, &form);
    return *tensor != NULL ? 0 : -1;
}

static int
tensor_from_object(void *object, struct dlpack_tensor *tensor)
{
    static int64_t one = 1;
    struct span span;
    if (hold_tensor(object, &span, tensor) < 0) {
        return -1;
    }
    /* The shape points into the Buffer, which the caller keeps alive. */
    tensor->shape = &((BufferObject *)object)->nbytes;
    tensor->strides = &one;
    span_release(&span);
    return 0;
}

static int
managed_to_object(struct dlpack_versioned *tensor, void **object)
{
    struct span span;
    /* The tensor must still belong to the caller after a failure.  So allocate
     * the Buffer first.  After that, only dlpack_versioned_hold can fail, and
     * on failure it does not take over the tensor. */
    PyObject *buffer = buffer_new();
    if (buffer == NULL) {
        return -1;
    }
    if (dlpack_versioned_hold(tensor, NULL, &span) < 0) {
        Py_DECREF(buffer);
        return -1;
    }
    buffer_open(buffer, &span);
    *object = buffer;
    return 0;
}

/* Returns the device on which a tensor must be allocated; NULL with an
 * exception.  *kind becomes the kind of memory. */
static struct ps_device *
allocating_device(const struct dlpack_tensor *form, enum memory_kind *kind)
{
    struct device_name host = {PS_DEVICE_CPU, form->device_id};
    struct ps_device *device;
    *kind = MEMORY_ORDERED;
    if (form->device_type == DLPACK_CUDA_MANAGED) {
        PyErr_SetString(PyExc_BufferError,
                        "pystreams allocates no managed memory: ask for "
                        "device memory");
        return NULL;
    }
    if (dlpack_place("managed_tensor_allocator", form->device_type,
                     form->device_id, &device) < 0) {
        return NULL;
    }
    if (form->device_type == DLPACK_CUDA_HOST) {
        *kind = MEMORY_PINNED;
        host = (struct device_name){PS_DEVICE_CUDA, -1};
    }
    if (device == NULL) {
        device = device_at("managed_tensor_allocator", host);
    }
    if (device != NULL && device->runtime->backend->memory_allocate == NULL) {
        raise_absent(device->runtime, "memory");
        device = NULL;
    }
    return device;
}

static int
allocate_tensor(const struct dlpack_tensor *prototype,
                struct dlpack_versioned **tensor)
{
    /* Copy only these fields, because the caller need not have set the
     * others. */
    struct dlpack_tensor form = {
        .device_type = prototype->device_type,
        .device_id = prototype->device_id,
        .ndim = prototype->ndim,
        .type_code = prototype->type_code,
        .type_bits = prototype->type_bits,
        .type_lanes = prototype->type_lanes,
        .shape = prototype->shape,
    };
    enum memory_kind kind;
    Py_ssize_t nbytes;
    struct span span;
    if (dlpack_nbytes(&form, &nbytes) < 0) {
        return -1;
    }
    struct ps_device *device = allocating_device(&form, &kind);
    if (device == NULL) {
        return -1;
    }
    struct ps_stream *stream = current_stream_of(device);
    int result =
        stream != NULL ? span_create(kind, device, stream, nbytes, &span) : -1;
    stream_release(stream);
    if (result < 0) {
        return -1;
    }
    *tensor = dlpack_export(&span, &form);
    return *tensor != NULL ? 0 : -1;
}

/* Pass the pending exception to set_error, with the name of the nearest
 * built-in exception type. */
static void
pass_error(void *context, void (*set_error)(void *context, const char *kind,
                                            const char *message))
{
    bool memory = PyErr_ExceptionMatches(PyExc_MemoryError);
    struct saved_exception raised = exception_save();
    PyTypeObject *kind = (PyTypeObject *)raised.type;
    while (kind->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        kind = kind->tp_base;
    }
    PyErr_NormalizeException(&raised.type, &raised.value, &raised.traceback);
    PyObject *text = PyObject_Str(raised.value);
    const char *message = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    PyErr_Clear();
    set_error(context, memory ? "MemoryError" : kind->tp_name,
              message != NULL ? message : "no memory for the error's text");
    Py_XDECREF(text);
    exception_restore(raised);
    PyErr_Clear();
}

/* Called with or without the GIL, and with or without a pending exception. */
static int
allocate(struct dlpack_tensor *prototype, struct dlpack_versioned **tensor,
         void *context,
         void (*set_error)(void *context, const char *kind,
                           const char *message))
{
    if (is_finalizing()) {
        set_error(context, "RuntimeError",
                  "managed_tensor_allocator() cannot allocate: the "
                  "interpreter is at its end");
        return -1;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    struct saved_exception pending = exception_save();
    int result = allocate_tensor(prototype, tensor);
    if (result < 0) {
        pass_error(context, set_error);
    }
    exception_restore(pending);
    PyGILState_Release(gil);
    return result;
}

static int
current_work_stream(int device_type, int32_t device_id, void **handle)
{
    struct ps_stream *stream;
    if (work_stream(device_type, device_id, &stream) < 0) {
        return -1;
    }
    *handle = stream != NULL ? (void *)stream->handle : NULL;
    stream_release(stream);
    return 0;
}

int
dlpack_add_exchange(PyTypeObject *type)
{
    static struct dlpack_exchange table = {
        .major = DLPACK_MAJOR,
        .minor = DLPACK_MINOR,
        .allocate = allocate,
        .managed_from_object = managed_from_object,
        .managed_to_object = managed_to_object,
        .tensor_from_object = tensor_from_object,
        .current_work_stream = current_work_stream,
    };
    PyObject *capsule = PyCapsule_New(&table, DLPACK_EXCHANGE_NAME, NULL);
    /* The type is immutable from Python, but C code can change its
     * dictionary. */
    int result =
        capsule != NULL
            ? PyDict_SetItem(type->tp_dict, module_state.str_dlpack_exchange,
                             capsule)
            : -1;
    Py_XDECREF(capsule);
    PyType_Modified(type);
    return result;
}
