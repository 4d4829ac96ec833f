/* DLPack tensors from other libraries, as sources and destinations of copies,
 * and as Buffers.  A capsule must be consumed only once.  So it is renamed in
 * the same critical section in which it is read.  If the tensor is then
 * refused, the capsule gets its old name back, so that its destructor still
 * frees the tensor.
 *
 * An object is borrowed through the exchange table of its type only if the
 * object lacks __dlpack__ or __dlpack_device__.  The reason is that __dlpack__
 * refuses tensors that should not be shared, while the functions in a table
 * may export them.  For example, torch's table exports tensors that need
 * gradients, and exports a conjugated tensor without its conjugation. */
#include "dlpack.h"

#include "args.h"
#include "backends.h"
#include "borrow.h"
#include "buffer.h"
#include "device.h"
#include "enqueue.h"
#include "external_stream.h"
#include "stream.h"

/* The content of a capsule of either kind. */
struct tensor {
    const struct dlpack_tensor *dl;
    uint64_t flags;
    void *owner;
    void (*release)(void *owner);
    const char *name;
    const char *used_name;
};

static void
release_managed(void *owner)
{
    struct dlpack_managed *managed = owner;
    if (managed->deleter != NULL) {
        managed->deleter(managed);
    }
}

static void
release_versioned(void *owner)
{
    struct dlpack_versioned *versioned = owner;
    if (versioned->deleter != NULL) {
        versioned->deleter(versioned);
    }
}

static int
read_versioned(struct dlpack_versioned *versioned, struct tensor *tensor)
{
    if (versioned->major != DLPACK_MAJOR) {
        return refuse(PyExc_BufferError,
                      "the DLPack tensor has version %u.%u, but only "
                      "versions %d.x are understood",
                      versioned->major, versioned->minor, DLPACK_MAJOR);
    }
    *tensor = (struct tensor){
        .dl = &versioned->tensor,
        .flags = versioned->flags,
        .owner = versioned,
        .release = release_versioned,
        .name = DLPACK_VERSIONED_NAME,
        .used_name = DLPACK_VERSIONED_USED_NAME,
    };
    return 0;
}

static int
read_capsule(PyObject *capsule, struct tensor *tensor)
{
    if (PyCapsule_IsValid(capsule, DLPACK_VERSIONED_NAME)) {
        return read_versioned(
            PyCapsule_GetPointer(capsule, DLPACK_VERSIONED_NAME), tensor);
    }
    if (PyCapsule_IsValid(capsule, DLPACK_NAME)) {
        struct dlpack_managed *managed =
            PyCapsule_GetPointer(capsule, DLPACK_NAME);
        *tensor = (struct tensor){
            .dl = &managed->tensor,
            .owner = managed,
            .release = release_managed,
            .name = DLPACK_NAME,
            .used_name = DLPACK_USED_NAME,
        };
        return 0;
    }
    if (PyCapsule_IsValid(capsule, DLPACK_USED_NAME) ||
        PyCapsule_IsValid(capsule, DLPACK_VERSIONED_USED_NAME)) {
        return refuse(PyExc_ValueError,
                      "the DLPack capsule was consumed already; ask the "
                      "producer for another one");
    }
    return refuse(PyExc_TypeError,
                  "expected a DLPack capsule, named '" DLPACK_NAME
                  "' or '" DLPACK_VERSIONED_NAME "', but got %R",
                  capsule);
}

/* A DLPack device. */
struct place {
    long type;
    long id;
};

static bool
is_host(long type)
{
    return type == DLPACK_CPU || type == DLPACK_CUDA_HOST;
}

/* Check what can be checked without knowing the tensor's device.  On failure,
 * returns -1 with ValueError. */
static int
check_tensor(const struct dlpack_tensor *dl)
{
    if (dl->ndim < 0 || dl->ndim > MOST_DIMENSIONS ||
        (dl->ndim > 0 && dl->shape == NULL)) {
        return refuse(PyExc_ValueError,
                      "the DLPack tensor has %d dimensions and %s shape, "
                      "but 0 to %d and a shape are expected",
                      dl->ndim, dl->shape != NULL ? "a" : "no",
                      MOST_DIMENSIONS);
    }
    if (dl->type_bits == 0 || dl->type_lanes == 0) {
        return refuse(PyExc_ValueError,
                      "the DLPack tensor has items of %d bits in %d lanes",
                      dl->type_bits, dl->type_lanes);
    }
    if (dl->byte_offset > UINTPTR_MAX - (uintptr_t)dl->data) {
        return refuse(
            PyExc_ValueError,
            "the DLPack tensor has a byte_offset that overflows: %llu",
            (unsigned long long)dl->byte_offset);
    }
    return 0;
}

int
dlpack_place(const char *function, long type, long id,
             struct ps_device **device)
{
    struct device_name name = {.index = (int)id};
    *device = NULL;
    if (id < 0 || id > INT32_MAX) {
        return refuse(PyExc_ValueError,
                      "the DLPack device id %ld is not from 0 to %d", id,
                      INT32_MAX);
    }
    switch (type) {
    case DLPACK_CPU:
    case DLPACK_CUDA_HOST:
        return 0;
    case DLPACK_CUDA:
    case DLPACK_CUDA_MANAGED:
        name.type = PS_DEVICE_CUDA;
        break;
    case DLPACK_EXTENSION:
        name.type = PS_DEVICE_PRIVATEUSEONE;
        break;
    default:
        return refuse(PyExc_BufferError,
                      "memory of DLPack device type %ld is not supported",
                      type);
    }
    *device = device_at(function, name);
    return *device != NULL ? 0 : -1;
}

/* Returns the device to which a block of host memory belongs if the caller has
 * not chosen one.  If CUDA has pinned the memory and a CUDA device is usable,
 * it is the current CUDA device; otherwise it is the CPU.  On failure, returns
 * NULL with an exception. */
static struct ps_device *
home_of(const struct dlpack_tensor *tensor)
{
    struct ps_runtime *cuda = ps_runtime_find(PS_DEVICE_CUDA);
    struct device_name name = {PS_DEVICE_CPU, tensor->device_id};
    int count;
    if (tensor->device_type == DLPACK_CUDA_HOST) {
        bool usable =
            cuda != NULL && count_devices(cuda, &count) == PS_SUCCESS;
        name.type = usable ? PS_DEVICE_CUDA : PS_DEVICE_CPU;
        name.index = -1;
    }
    return device_at("from_dlpack", name);
}

/* Check that the tensor is on the device that its producer named.  DLPack's
 * two devices for host memory count as one, because torch uses both.  On
 * failure, returns -1 with an exception. */
static int
check_promise(const struct dlpack_tensor *dl, const struct place *promise)
{
    if ((dl->device_type != promise->type || dl->device_id != promise->id) &&
        !(is_host(dl->device_type) && is_host(promise->type))) {
        return refuse(PyExc_BufferError,
                      "the DLPack tensor is on device (%d, %d), but its "
                      "producer's __dlpack_device__ said (%ld, %ld)",
                      dl->device_type, dl->device_id, promise->type,
                      promise->id);
    }
    return 0;
}

/* Make a claim for the tensor's memory.  On failure, returns -1 with
 * ValueError. */
static int
make_claim(const struct dlpack_tensor *dl, uint64_t flags, struct claim *claim)
{
    if (check_tensor(dl) < 0) {
        return -1;
    }
    *claim = (struct claim){
        .what = "the DLPack tensor",
        .read_only = (flags & DLPACK_READ_ONLY) != 0,
        .data = dl->data != NULL ? (char *)dl->data + dl->byte_offset : NULL,
        .item_bits = (uint64_t)dl->type_bits * dl->type_lanes,
        .ndim = dl->ndim,
        .shape = dl->shape,
        .strides = dl->strides,
        .stride_unit = 1,
    };
    if (flags & DLPACK_PADDED) {
        claim->item_bits = (claim->item_bits + 7) / 8 * 8;
    }
    return 0;
}

int
dlpack_nbytes(const struct dlpack_tensor *tensor, Py_ssize_t *nbytes)
{
    struct claim claim;
    const char *begin;
    return make_claim(tensor, 0, &claim) < 0
               ? -1
               : claim_extent(&claim, &begin, nbytes);
}

static int
tensor_hold(const struct tensor *tensor, struct ps_device *host_device,
            struct span *span)
{
    const struct dlpack_tensor *dl = tensor->dl;
    struct claim claim;
    if (make_claim(dl, tensor->flags, &claim) < 0 ||
        dlpack_place("from_dlpack", dl->device_type, dl->device_id,
                     &claim.device) < 0) {
        return -1;
    }
    if (claim.device == NULL && host_device == NULL) {
        host_device = home_of(dl);
        if (host_device == NULL) {
            return -1;
        }
    }
    claim.pinned =
        dl->device_type == DLPACK_CUDA_HOST &&
        host_device->runtime->backend->device_type == PS_DEVICE_CUDA;
    return claim_hold(&claim, host_device, tensor->owner, tensor->release,
                      span);
}

int
dlpack_versioned_hold(struct dlpack_versioned *versioned,
                      struct ps_device *host_device, struct span *span)
{
    struct tensor tensor;
    return read_versioned(versioned, &tensor) < 0
               ? -1
               : tensor_hold(&tensor, host_device, span);
}

/* Consume a capsule, and make a span of its tensor.  `promise` is the device
 * that the producer's __dlpack_device__ returned, or NULL.  Returns 1 on
 * success, -1 with an exception. */
static int
capsule_hold(PyObject *capsule, const struct place *promise,
             struct ps_device *host_device, struct span *span)
{
    struct tensor tensor;
    int read;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    read = read_capsule(capsule, &tensor);
    if (read == 0) {
        read = PyCapsule_SetName(capsule, tensor.used_name);
    }
    Py_END_CRITICAL_SECTION();
    if (read < 0) {
        return -1;
    }
    if ((promise != NULL && check_promise(tensor.dl, promise) < 0) ||
        tensor_hold(&tensor, host_device, span) < 0) {
        PyCapsule_SetName(capsule, tensor.name);
        return -1;
    }
    return 1;
}

/* Call __dlpack_device__.  On failure, returns -1 with an exception. */
static int
ask_device(PyObject *object, struct place *place)
{
    PyObject *pair =
        PyObject_CallMethodNoArgs(object, module_state.str_dlpack_device);
    if (pair == NULL) {
        return -1;
    }
    int parsed = PyTuple_Check(pair) &&
                 PyArg_ParseTuple(pair, "ll", &place->type, &place->id);
    if (!parsed) {
        PyErr_Format(PyExc_TypeError,
                     "__dlpack_device__ of %s must give a tuple (device type, "
                     "device id), but gave %R",
                     Py_TYPE(object)->tp_name, pair);
    }
    Py_DECREF(pair);
    return parsed ? 0 : -1;
}

/* Call the producer's __dlpack__.  If it does not accept max_version, call it
 * again without that argument. */
static PyObject *
ask_capsule(PyObject *object, PyObject *stream)
{
    PyObject *keywords =
        Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR, DLPACK_MINOR);
    PyObject *method = PyObject_GetAttr(object, module_state.str_dlpack);
    PyObject *none = module_state.empty_tuple, *capsule = NULL;
    if (keywords != NULL && method != NULL &&
        (stream == NULL ||
         PyDict_SetItemString(keywords, "stream", stream) == 0)) {
        capsule = PyObject_Call(method, none, keywords);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            if (PyDict_DelItemString(keywords, "max_version") == 0) {
                capsule = PyObject_Call(method, none, keywords);
            }
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(keywords);
    return capsule;
}

static int
producer_hold(PyObject *object, struct ps_device *host_device,
              struct ps_stream *stream, struct span *span)
{
    struct place place;
    struct ps_device *device;
    struct ps_stream *ours = NULL;
    PyObject *number = NULL;
    if (ask_device(object, &place) < 0 ||
        dlpack_place("from_dlpack", place.type, place.id, &device) < 0) {
        return -1;
    }
    if (device != NULL) {
        ours = handshake_stream(device, stream);
        number =
            ours != NULL ? PyLong_FromSize_t(protocol_number(ours)) : NULL;
    }
    PyObject *capsule =
        device == NULL || number != NULL ? ask_capsule(object, number) : NULL;
    int result = -1;
    if (capsule != NULL && !PyCapsule_CheckExact(capsule)) {
        PyErr_Format(PyExc_TypeError,
                     "__dlpack__ must give a capsule, but gave %s",
                     Py_TYPE(capsule)->tp_name);
    }
    else if (capsule != NULL) {
        result = capsule_hold(capsule, &place, host_device, span);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(number);
    stream_release(ours);
    return result;
}

/* Find the type's exchange table.  *table becomes NULL if the type has no
 * table with a supported version.  On failure, returns -1 with an
 * exception. */
static int
find_exchange(PyTypeObject *type, const struct dlpack_exchange **table)
{
    PyObject *capsule;
    int found = optional_attribute((PyObject *)type,
                                   module_state.str_dlpack_exchange, &capsule);
    *table = NULL;
    if (found != 1) {
        return found;
    }
    if (PyCapsule_IsValid(capsule, DLPACK_EXCHANGE_NAME)) {
        *table = PyCapsule_GetPointer(capsule, DLPACK_EXCHANGE_NAME);
    }
    Py_DECREF(capsule);
    while (*table != NULL && (*table)->major != DLPACK_MAJOR) {
        *table = (*table)->older;
    }
    return 0;
}

/* Called when a function in the exchange table has failed.  Raises an
 * exception if the function has not set one.  Always returns -1. */
static int
exchange_failed(PyObject *object, const char *function)
{
    return PyErr_Occurred()
               ? -1
               : refuse(PyExc_BufferError,
                        "%s of the __dlpack_c_exchange_api__ of %s failed and "
                        "raised nothing",
                        function, Py_TYPE(object)->tp_name);
}

/* Make the stream that will use the memory wait for the producer's current
 * stream, because the functions in the exchange table do not make any stream
 * wait. */
static int
follow_producer(const struct dlpack_exchange *table, PyObject *object,
                const struct dlpack_tensor *tensor, struct ps_device *device,
                struct ps_stream *stream)
{
    void *handle = NULL;
    if (table->current_work_stream(tensor->device_type, tensor->device_id,
                                   &handle) != 0) {
        return exchange_failed(object, "current_work_stream");
    }
    struct ps_stream *theirs = stream_from_handle("from_dlpack", device, false,
                                                  (ps_handle)handle, NULL);
    if (theirs == NULL) {
        return -1;
    }
    struct ps_stream *ours = handshake_stream(device, stream);
    int result = ours == theirs ? 0
                 : ours != NULL ? stream_imply_wait(ours, theirs)
                                : -1;
    stream_release(ours);
    stream_release(theirs);
    return result;
}

static int
exchange_hold(const struct dlpack_exchange *table, PyObject *object,
              struct ps_device *host_device, struct ps_stream *stream,
              struct span *span)
{
    struct dlpack_versioned *versioned = NULL;
    if (table->managed_from_object(object, &versioned) != 0 ||
        versioned == NULL) {
        return exchange_failed(object,
                               "managed_tensor_from_py_object_no_sync");
    }
    if (dlpack_versioned_hold(versioned, host_device, span) < 0) {
        struct saved_exception saved = exception_save();
        release_versioned(versioned);
        exception_restore(saved);
        return -1;
    }
    if (!span->block->host &&
        follow_producer(table, object, &versioned->tensor, span->block->device,
                        stream) < 0) {
        span_release(span);
        return -1;
    }
    return 1;
}

int
has_attribute(PyObject *object, PyObject *name)
{
    PyObject *value;
    int found = optional_attribute(object, name, &value);
    Py_XDECREF(value);
    return found;
}

int
dlpack_hold(PyObject *object, struct ps_device *host_device,
            struct ps_stream *stream, struct span *span)
{
    if (PyCapsule_CheckExact(object)) {
        return capsule_hold(object, NULL, host_device, span);
    }
    int found = has_attribute(object, module_state.str_dlpack);
    if (found == 1) {
        found = has_attribute(object, module_state.str_dlpack_device);
    }
    if (found == 1) {
        return producer_hold(object, host_device, stream, span);
    }
    const struct dlpack_exchange *table;
    if (found < 0 || find_exchange(Py_TYPE(object), &table) < 0) {
        return -1;
    }
    if (table == NULL || table->managed_from_object == NULL ||
        table->current_work_stream == NULL) {
        return 0;
    }
    return exchange_hold(table, object, host_device, stream, span);
}

int
dlpack_extent(PyObject *object, const char **begin, Py_ssize_t *nbytes)
{
    const struct dlpack_exchange *table;
    struct dlpack_tensor tensor;
    struct claim claim;
    if (find_exchange(Py_TYPE(object), &table) < 0) {
        return -1;
    }
    if (table == NULL || table->tensor_from_object == NULL) {
        return 0;
    }
    if (table->tensor_from_object(object, &tensor) != 0) {
        return exchange_failed(object, "dltensor_from_py_object_no_sync");
    }
    return make_claim(&tensor, 0, &claim) < 0 ||
                   claim_extent(&claim, begin, nbytes) < 0
               ? -1
               : 1;
}

static PyObject *
from_dlpack(PyObject *Py_UNUSED(module), PyObject *const *args,
            Py_ssize_t nargs, PyObject *kwnames)
{
    struct span span;
    PyObject *object;
    if (parse_required("from_dlpack", "obj", args, nargs, kwnames, &object) <
        0) {
        return NULL;
    }
    int found = dlpack_hold(object, NULL, NULL, &span);
    if (found == 0) {
        raise_expected("from_dlpack",
                       "an object with __dlpack__ and __dlpack_device__, or a "
                       "DLPack capsule",
                       "obj", object);
    }
    return found == 1 ? buffer_wrap(&span) : NULL;
}

PyMethodDef dlpack_functions[] = {
    FUNCTION("from_dlpack", from_dlpack, METH_FASTCALL | METH_KEYWORDS, "obj",
             "Return a Buffer for the memory of another library's tensor, "
             "without a copy.\n\n"
             "obj has __dlpack__ and __dlpack_device__, as arrays of NumPy, "
             "CuPy and torch do,\nor is a DLPack capsule, which is consumed.  "
             "The producer makes the memory ready\nfor the current stream of "
             "its device, and is kept alive until nothing uses the\nBuffer's "
             "memory.  If it has __dlpack_c_exchange_api__ alone, the "
             "current stream waits\nfor the producer's current one.  Does "
             "not block.\n\n"
             "Raises TypeError for another object, ValueError for memory that "
             "is not contiguous or\nthat the producer describes wrongly, or "
             "for a capsule that was consumed, BufferError\nfor a device or a "
             "version of DLPack that is not supported."),
    {NULL},
};
