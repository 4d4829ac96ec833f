/* The CUDA array interface, version 3, both ways.  Its `stream` says whose
 * work must come before: None asks for no wait, 0 is not allowed. */
#include "array_interface.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "borrow.h"
#include "buffer.h"
#include "current.h"
#include "device.h"
#include "enqueue.h"
#include "stream.h"
#include "transfer.h"

static const char what[] = "the CUDA array interface";

/* A tuple of integers; how many, or -1 with an exception. */
static int
parse_extents(const char *name, PyObject *tuple, int64_t *extents)
{
    if (tuple == NULL || !PyTuple_Check(tuple) ||
        PyTuple_GET_SIZE(tuple) > MOST_DIMENSIONS) {
        PyErr_Format(PyExc_TypeError,
                     "%s must have '%s' as a tuple of at most %d ints, got %R",
                     what, name, MOST_DIMENSIONS,
                     tuple != NULL ? tuple : Py_None);
        return -1;
    }
    int count = (int)PyTuple_GET_SIZE(tuple);
    for (int i = 0; i < count; i++) {
        extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (extents[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return count;
}

/* The bytes of an item by a typestr such as "<f4" or "|V16"; -1 with an
 * exception. */
static int64_t
parse_typestr(PyObject *typestr)
{
    const char *text = typestr != NULL && PyUnicode_Check(typestr)
                           ? PyUnicode_AsUTF8(typestr)
                           : NULL;
    if (text != NULL && strchr("<>|=", text[0]) != NULL && text[0] != '\0' &&
        strchr("biufcmMVS", text[1]) != NULL && text[1] != '\0' &&
        isdigit((unsigned char)text[2])) {
        char *end;
        long size = strtol(text + 2, &end, 10);
        if (size > 0 && size < INT32_MAX && (*end == '\0' || *end == '[')) {
            return size;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "%s must have a 'typestr' of byte order, kind and size such "
                 "as '<f4', got %R",
                 what, typestr != NULL ? typestr : Py_None);
    return -1;
}

/* data: (address, read-only). */
static int
parse_data(PyObject *data, struct claim *claim)
{
    ps_handle address;
    if (data == NULL || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        PyErr_Format(PyExc_TypeError,
                     "%s must have 'data' as a tuple (address, read-only), "
                     "got %R",
                     what, data != NULL ? data : Py_None);
        return -1;
    }
    int read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (read_only < 0 ||
        handle_argument("copy_", "the address in __cuda_array_interface__",
                        PyTuple_GET_ITEM(data, 0), &address) < 0) {
        return -1;
    }
    claim->data = (void *)address;
    claim->read_only = read_only;
    return 0;
}

static int
check_version(PyObject *version)
{
    long number =
        version != NULL && PyLong_Check(version) ? PyLong_AsLong(version) : -1;
    if (number < 0 || number > 3) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "%s has version %R; versions 0 to 3 are supported", what,
                     version != NULL ? version : Py_None);
        return -1;
    }
    return 0;
}

static bool
is_given(PyObject *value)
{
    return value != NULL && value != Py_None;
}

/* The device whose memory the address is in, as far as the backend can tell;
 * a wrong address is left for claim_hold to refuse. */
static struct ps_device *
device_of_address(struct ps_device *device, const void *address)
{
    const struct ps_backend *backend = device->runtime->backend;
    ps_status status;
    int owner;
    if (address == NULL || backend->memory_device == NULL) {
        return device;
    }
    CALL_BACKEND(device->runtime,
                 status = backend->memory_device(backend, device->index,
                                                 address, &owner));
    if (status == PS_SUCCESS) {
        ps_runtime_device(device->runtime, owner, &device);
    }
    return device;
}

/* Make our stream wait for the producer's. */
static int
wait_for_producer(struct module_state *state, struct ps_device *device,
                  struct ps_stream *stream, PyObject *number)
{
    struct ps_stream *theirs =
        protocol_stream(state, device, "copy_",
                        "'stream' of __cuda_array_interface__", number);
    if (theirs == NULL) {
        return -1;
    }
    struct ps_stream *ours = handshake_stream(device, stream);
    int result = stream_wait_stream(state, ours, theirs);
    stream_release(state, ours);
    stream_release(state, theirs);
    return result;
}

/* What is read of an interface. */
enum { VERSION, DATA, SHAPE, TYPESTR, STRIDES, STREAM, MASK, ENTRIES };

/* Borrowed, NULL for those that it lacks; -1 with an exception. */
static int
read_entries(PyObject *interface, PyObject *entries[ENTRIES])
{
    static const char *const names[ENTRIES] = {
        "version", "data", "shape", "typestr", "strides", "stream", "mask"};
    for (int i = 0; i < ENTRIES; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (name == NULL) {
            return -1;
        }
        entries[i] = PyDict_GetItemWithError(interface, name);
        Py_DECREF(name);
        if (entries[i] == NULL && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static int
interface_hold(struct module_state *state, PyObject *object,
               PyObject *interface, struct ps_device *device,
               struct ps_stream *stream, struct span *span)
{
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    struct claim claim = {.what = what, .shape = shape};
    PyObject *entries[ENTRIES];

    if (read_entries(interface, entries) < 0 ||
        check_version(entries[VERSION]) < 0 ||
        parse_data(entries[DATA], &claim) < 0) {
        return -1;
    }
    claim.ndim = parse_extents("shape", entries[SHAPE], shape);
    if (claim.ndim < 0) {
        return -1;
    }
    claim.stride_unit = parse_typestr(entries[TYPESTR]);
    if (claim.stride_unit < 0) {
        return -1;
    }
    claim.item_bits = (uint64_t)claim.stride_unit * 8;
    if (is_given(entries[STRIDES])) {
        int count = parse_extents("strides", entries[STRIDES], strides);
        if (count >= 0 && count != claim.ndim) {
            PyErr_Format(PyExc_ValueError, "%s has %d extents and %d strides",
                         what, claim.ndim, count);
        }
        if (count != claim.ndim) {
            return -1;
        }
        claim.strides = strides;
    }
    if (is_given(entries[MASK])) {
        PyErr_Format(PyExc_ValueError,
                     "%s has a mask, which a copy would "
                     "lose",
                     what);
        return -1;
    }
    claim.device = device_of_address(device, claim.data);
    if (claim_hold(state, &claim, NULL, object, (void (*)(void *))Py_DecRef,
                   span) < 0) {
        return -1;
    }
    Py_INCREF(object);
    if (is_given(entries[STREAM]) &&
        wait_for_producer(state, claim.device, stream, entries[STREAM]) < 0) {
        span_release(state, span);
        return -1;
    }
    return 0;
}

int
array_interface_hold(struct module_state *state, PyObject *object,
                     struct ps_device *device, struct ps_stream *stream,
                     struct span *span)
{
    PyObject *interface;
    int found =
        optional_attribute(object, state->str_array_interface, &interface);
    if (found != 1) {
        return found;
    }
    int result = -1;
    if (device->runtime->backend->device_type != PS_DEVICE_CUDA) {
        device = device_argument(state, "copy_", PS_DEVICE_CUDA, NULL);
    }
    if (!PyDict_Check(interface)) {
        PyErr_Format(PyExc_TypeError, "%s must be a dict, got %s", what,
                     Py_TYPE(interface)->tp_name);
    }
    else if (device != NULL) {
        /* Reading it runs the producer's code, which may change it. */
        Py_SETREF(interface, PyDict_Copy(interface));
        if (interface != NULL) {
            result =
                interface_hold(state, object, interface, device, stream, span);
        }
    }
    Py_XDECREF(interface);
    return result < 0 ? -1 : 1;
}

PyObject *
Buffer_get_array_interface(PyObject *self, void *Py_UNUSED(closure))
{
    struct module_state *state = state_of(self);
    struct span span;
    if (buffer_hold(self, &span) < 0) {
        return NULL;
    }
    struct ps_device *device = span.block->device;
    struct ps_stream *stream = ps_stream_ref(current_stream_of(device));
    PyObject *interface = NULL;
    if (span.block->host ||
        device->runtime->backend->device_type != PS_DEVICE_CUDA) {
        PyErr_SetString(PyExc_AttributeError,
                        "__cuda_array_interface__ is of CUDA device memory "
                        "alone");
    }
    else if (span_settle(state, &span, stream) == 0) {
        interface = Py_BuildValue("{s:(n),s:s,s:(KO),s:i,s:O,s:K}", "shape",
                                  span.nbytes, "typestr", "|u1", "data",
                                  (unsigned long long)(uintptr_t)span.data,
                                  span.block->read_only ? Py_True : Py_False,
                                  "version", 3, "strides", Py_None, "stream",
                                  (unsigned long long)protocol_number(stream));
    }
    stream_release(state, stream);
    span_release(state, &span);
    return interface;
}
