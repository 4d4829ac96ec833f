/* Borrows memory from other libraries, so that copies accept it like Buffers.
 * Everything that a producer (an object of another library) says about its
 * memory is checked before the memory is used. */
#include "borrow.h"

#include "args.h"
#include "array_interface.h"
#include "buffer.h"
#include "current.h"
#include "dlpack.h"
#include "enqueue.h"
#include "errors.h"
#include "external_stream.h"
#include "stream.h"

/* Compute the size of the claimed memory in bytes.  On failure, returns -1
 * with ValueError. */
static int
claim_nbytes(const struct claim *claim, Py_ssize_t *nbytes)
{
    int64_t count = 1;
    bool overflow = false, empty = false;
    for (int i = 0; i < claim->ndim; i++) {
        if (claim->shape[i] < 0) {
            return refuse(PyExc_ValueError,
                          "%s has a negative extent: shape[%d] is %lld",
                          claim->what, i, (long long)claim->shape[i]);
        }
        empty = empty || claim->shape[i] == 0;
        overflow =
            overflow || __builtin_mul_overflow(count, claim->shape[i], &count);
    }
    int64_t bits = 0;
    if (!empty &&
        (overflow || __builtin_mul_overflow(count, claim->item_bits, &bits) ||
         bits > INT64_MAX - 7)) {
        return refuse(PyExc_ValueError,
                      "%s has extents whose size in bytes overflows",
                      claim->what);
    }
    *nbytes = (Py_ssize_t)((bits + 7) / 8);
    return 0;
}

int
claim_extent(const struct claim *claim, const char **begin, Py_ssize_t *nbytes)
{
    int64_t low = 0, high = 0;
    bool overflow = false;
    *begin = claim->data;
    if (claim_nbytes(claim, nbytes) < 0) {
        return -1;
    }
    if (claim->strides == NULL || *nbytes == 0) {
        return 0;
    }
    for (int i = 0; i < claim->ndim; i++) {
        int64_t step, *side = claim->strides[i] < 0 ? &low : &high;
        overflow = overflow ||
                   __builtin_mul_overflow(claim->shape[i] - 1,
                                          claim->strides[i], &step) ||
                   __builtin_add_overflow(*side, step, side);
    }
    int64_t bits = (int64_t)claim->item_bits / claim->stride_unit;
    int64_t size, first;
    if (overflow || __builtin_sub_overflow(high, low, &size) ||
        __builtin_add_overflow(size, claim->stride_unit, &size) ||
        __builtin_mul_overflow(size, bits, &size) ||
        __builtin_mul_overflow(low, bits, &first)) {
        return refuse(PyExc_ValueError,
                      "%s has strides whose size in bytes overflows",
                      claim->what);
    }
    /* The first item may begin within a byte.  This is the number of bits of
     * that byte that come before the item. */
    int64_t before = first % 8 != 0 ? 8 + first % 8 : 0;
    *begin += first / 8 - (first % 8 != 0);
    *nbytes = (Py_ssize_t)(size / 8 + (size % 8 + before) / 8 +
                           ((size + before) % 8 != 0));
    return 0;
}

static int
check_contiguous(const struct claim *claim, Py_ssize_t nbytes)
{
    int64_t expected = claim->stride_unit;
    if (claim->strides == NULL || nbytes == 0) {
        return 0;
    }
    for (int i = claim->ndim; i-- > 0;) {
        if (claim->shape[i] != 1 && claim->strides[i] != expected) {
            return refuse(PyExc_ValueError,
                          "%s is not C-contiguous: strides[%d] is %lld "
                          "instead of %lld; make a contiguous copy of it",
                          claim->what, i, (long long)claim->strides[i],
                          (long long)expected);
        }
        expected *= claim->shape[i];
    }
    return 0;
}

/* Check that the claimed device has memory at the address, if the backend can
 * tell.  On failure, returns -1 with an exception. */
static int
check_place(const struct claim *claim, const char *address)
{
    struct ps_device *device = claim->device;
    const struct ps_backend *backend = device->runtime->backend;
    int owner = device->index;
    if (backend->memory_device == NULL) {
        return 0;
    }
    ps_status status;
    CALL_BACKEND(device->runtime,
                 status = backend->memory_device(backend, device->index,
                                                 address, &owner));
    struct handle_text text = handle_text((ps_handle)address);
    if (status == PS_ERROR_INVALID_VALUE) {
        return refuse(PyExc_ValueError,
                      "%s claims memory of %s:%d at %s, but there is none",
                      claim->what, backend->name, device->index, text.chars);
    }
    if (status != PS_SUCCESS) {
        return zero_or_raise(device->runtime, "asking for an address's device",
                             status);
    }
    if (owner != device->index) {
        return refuse(PyExc_ValueError,
                      "%s claims memory of %s:%d at %s, which is of %s:%d",
                      claim->what, backend->name, device->index, text.chars,
                      backend->name, owner);
    }
    return 0;
}

static int
check_address(const struct claim *claim, Py_ssize_t nbytes)
{
    char *first = claim->data;
    if (nbytes == 0) {
        return 0;
    }
    if (first == NULL ||
        (uintptr_t)first > UINTPTR_MAX - (uintptr_t)(nbytes - 1)) {
        struct handle_text text = handle_text((ps_handle)first);
        return refuse(
            PyExc_ValueError,
            "%s claims %zd bytes at the address %s, which is impossible",
            claim->what, nbytes, text.chars);
    }
    if (claim->device == NULL) {
        return 0;
    }
    return check_place(claim, first) < 0
               ? -1
               : check_place(claim, first + nbytes - 1);
}

/* The owner of borrowed memory, and the function that gives the memory back to
 * the owner. */
struct debt {
    void (*release)(void *owner);
    void *owner;
};

/* Give the memory back.  Runs on any thread, with or without the GIL.  The
 * owner's function may run Python code, so a pending exception is saved and
 * restored. */
static ps_status
release_debt(void *memory)
{
    struct debt *debt = memory;
    if (is_finalizing()) {
        return PS_SUCCESS;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    struct saved_exception saved = exception_save();
    debt->release(debt->owner);
    PyMem_Free(debt);
    exception_restore(saved);
    PyGILState_Release(gil);
    return PS_SUCCESS;
}

static int
raise_not_held(const struct claim *claim, struct ps_runtime *runtime,
               Py_ssize_t nbytes, ps_status status)
{
    if (status == PS_ERROR_ALREADY_PINNED) {
        struct handle_text text = handle_text((ps_handle)claim->data);
        return refuse(PyExc_ValueError,
                      "pin() expects memory that is not pinned yet, but some "
                      "of the %zd bytes at %s is",
                      nbytes, text.chars);
    }
    return zero_or_raise(
        runtime, claim->pin ? "pinning memory" : "borrowing memory", status);
}

int
claim_hold(const struct claim *claim, struct ps_device *host_device,
           void *owner, void (*release)(void *owner), struct span *span)
{
    Py_ssize_t nbytes;
    if (claim_nbytes(claim, &nbytes) < 0 ||
        check_contiguous(claim, nbytes) < 0 ||
        check_address(claim, nbytes) < 0) {
        return -1;
    }
    struct debt *debt = PyMem_Malloc(sizeof(*debt));
    if (debt == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *debt = (struct debt){release, owner};
    struct ps_loan loan = {
        .data = claim->data,
        .nbytes = (size_t)nbytes,
        .host = claim->device == NULL,
        .pinned = claim->pinned,
        .read_only = claim->read_only,
        .pin = claim->pin,
        .owner = debt,
        .release = release_debt,
    };
    struct ps_device *device =
        claim->device != NULL ? claim->device : host_device;
    ps_status status;
    CALL_WITH(claim->pin,
              status = ps_block_borrow(device, &loan, &span->block));
    if (status != PS_SUCCESS) {
        PyMem_Free(debt);
        return raise_not_held(claim, device->runtime, nbytes, status);
    }
    span->data = claim->data;
    span->nbytes = nbytes;
    span->foreign = true;
    return 0;
}

struct ps_stream *
handshake_stream(struct ps_device *device, struct ps_stream *stream)
{
    return stream != NULL && stream->device == device
               ? ps_stream_ref(stream)
               : current_stream_of(device);
}

struct ps_stream *
protocol_stream(struct ps_device *device, const char *function,
                const char *name, PyObject *number)
{
    ps_handle handle;
    if (PyBool_Check(number)) {
        raise_expected(function, "an int", name, number);
        return NULL;
    }
    if (handle_argument(function, name, number, &handle) < 0) {
        return NULL;
    }
    if (handle == 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s() expects a stream's number other than 0 for %s, as "
                     "0 is ambiguous: 1 is the default stream, 2 the thread's",
                     function, name);
        return NULL;
    }
    if (device->runtime->backend->device_type != PS_DEVICE_CUDA &&
        (handle == 1 || (handle == PS_STREAM_PER_THREAD &&
                         device->runtime->backend->thread_stream == NULL))) {
        handle = 0;
    }
    return stream_from_handle(function, device, false, handle, NULL);
}

static void
release_view(void *owner)
{
    PyBuffer_Release(owner);
    PyMem_Free(owner);
}

/* Returns whether a format in the struct module's syntax includes Python
 * objects ("O").  An O between colons is part of a field's name and does not
 * count. */
static bool
has_objects(const char *format)
{
    bool in_name = false;
    for (; *format != '\0' && (in_name || *format != 'O'); format++) {
        in_name = in_name != (*format == ':');
    }
    return *format != '\0';
}

/* Called when PyObject_GetBuffer has failed for an object.  If DLPack should
 * be tried instead, clears the exception and returns 0.  This is the case for
 * CuPy and JAX arrays in device memory, for example, because they support the
 * buffer protocol only for host memory.  Otherwise returns -1 with the
 * exception. */
static int
try_dlpack_instead(PyObject *object)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_BufferError)) {
        return -1;
    }
    struct saved_exception saved = exception_save();
    int found = has_attribute(object, module_state.str_dlpack);
    if (found == 0) {
        exception_restore(saved);
        return -1;
    }
    Py_XDECREF(saved.type);
    Py_XDECREF(saved.value);
    Py_XDECREF(saved.traceback);
    return found > 0 ? 0 : -1;
}

/* Make a span of an object's memory through the buffer protocol.  Returns 1 on
 * success.  Returns 0 if the object has no buffer protocol, or if DLPack
 * should be tried instead.  Returns -1 with an exception. */
static int
view_hold(PyObject *object, struct ps_device *device, struct span *span)
{
    if (!PyObject_CheckBuffer(object)) {
        return 0;
    }
    Py_buffer *view = PyMem_Malloc(sizeof(*view));
    if (view == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) < 0) {
        PyMem_Free(view);
        return try_dlpack_instead(object);
    }
    int64_t extent = view->len;
    struct claim claim =
        bytes_claim(Py_TYPE(object)->tp_name, view->buf, &extent);
    claim.read_only = view->readonly;
    int result = -1;
    if (view->format != NULL && has_objects(view->format)) {
        PyErr_Format(PyExc_TypeError,
                     "a copy moves bytes, but %s holds Python objects",
                     claim.what);
    }
    else {
        result = claim_hold(&claim, device, view, release_view, span);
    }
    if (result < 0) {
        release_view(view);
        return -1;
    }
    return 1;
}

PyObject *
view_pin(PyObject *object, struct ps_device *device)
{
    struct span span;
    Py_buffer *view = PyMem_Malloc(sizeof(*view));
    if (view == NULL) {
        return PyErr_NoMemory();
    }
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDES) < 0) {
        PyMem_Free(view);
        return NULL;
    }
    if (!PyBuffer_IsContiguous(view, 'C')) {
        release_view(view);
        return PyErr_Format(PyExc_BufferError,
                            "pin() expects C-contiguous memory, but that of "
                            "%s is not; make a contiguous copy of it",
                            Py_TYPE(object)->tp_name);
    }
    if (view->readonly) {
        release_view(view);
        return PyErr_Format(PyExc_ValueError,
                            "pin() expects writable memory, but that of %s is "
                            "read-only",
                            Py_TYPE(object)->tp_name);
    }
    int64_t extent = view->len;
    struct claim claim = bytes_claim("pin()", view->buf, &extent);
    claim.pinned = claim.pin = true;
    if (claim_hold(&claim, device, view, release_view, &span) < 0) {
        release_view(view);
        return NULL;
    }
    return buffer_wrap(&span);
}

/* Like view_hold, but through any protocol.  The object must not be a Buffer.
 * Returns 0 if it supports no protocol. */
static int
object_hold(PyObject *object, struct ps_device *device,
            struct ps_stream *stream, struct span *span)
{
    int found = view_hold(object, device, span);
    if (found == 0) {
        found = dlpack_hold(object, device, stream, span);
    }
    if (found == 0) {
        found = array_interface_hold(object, device, stream, span);
    }
    return found;
}

/* Make `stream`, on which a copy will run, wait until the span's memory is
 * ready.  The producer has made the memory ready for the stream that
 * handshake_stream() returned.  If `stream` and the memory are on different
 * devices, that function returned the current stream of the memory's device.
 * In this case, make `stream` wait for that current stream. */
static int
follow(struct span *span, struct ps_stream *stream)
{
    struct ps_device *device = span->block->device;
    if (span->block->host || stream == NULL || stream->device == device ||
        stream->device->runtime != device->runtime) {
        return 0;
    }
    struct ps_stream *current = current_stream_of(device);
    int result = current != NULL ? stream_imply_wait(stream, current) : -1;
    stream_release(current);
    return result;
}

int
operand_hold(const struct signature *method, PyObject *object,
             struct span *partner, struct ps_stream *stream, bool write,
             struct span *span)
{
    if (PyObject_TypeCheck(object, module_state.buffer_type)) {
        return buffer_hold(object, span);
    }
    int found = object_hold(object, partner->block->device, stream, span);
    if (found == 0) {
        raise_expected(method->function,
                       "a Buffer or an object with the buffer protocol, "
                       "__dlpack__ or __cuda_array_interface__",
                       method->names[0], object);
    }
    if (found <= 0) {
        return -1;
    }
    if (write && span->block->read_only) {
        PyErr_Format(PyExc_ValueError,
                     "the destination of the copy is read-only: %s",
                     Py_TYPE(object)->tp_name);
        span_release(span);
        return -1;
    }
    if (follow(span, stream) < 0) {
        span_release(span);
        return -1;
    }
    return 0;
}
