/* The CUDA array interface, version 3.  _interchange.py checks and reads the
 * dictionaries that other libraries' objects return.  The entry `stream` in a
 * dictionary is a stream for which the consumer must wait.  None means that
 * the consumer need not wait, and 0 is not allowed. */
#include "array_interface.h"

#include "args.h"
#include "borrow.h"
#include "buffer.h"
#include "current.h"
#include "device.h"
#include "enqueue.h"
#include "stream.h"
#include "transfer.h"

/* Returns the device that has the memory at the address.  Returns `device` if
 * the backend cannot tell, or if no device has memory there.  In the latter
 * case, claim_hold() refuses the memory later. */
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

/* Make `stream`, on which a copy will run, wait for the producer's stream,
 * which has this number in the interface. */
static int
wait_for_producer(struct ps_device *device, struct ps_stream *stream,
                  PyObject *number)
{
    struct ps_stream *theirs = protocol_stream(
        device, "copy_", "'stream' of __cuda_array_interface__", number);
    if (theirs == NULL) {
        return -1;
    }
    struct ps_stream *ours = handshake_stream(device, stream);
    int result = ours != NULL ? stream_imply_wait(ours, theirs) : -1;
    stream_release(ours);
    stream_release(theirs);
    return result;
}

static int
read_extents(const char *name, PyObject *tuple,
             int64_t extents[MOST_DIMENSIONS])
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (extents[i] == -1 && PyErr_Occurred()) {
            return refuse(PyErr_ExceptionMatches(PyExc_OverflowError)
                              ? PyExc_ValueError
                              : PyExc_TypeError,
                          "the CUDA array interface must have '%s' as a "
                          "tuple of ints of at most 64 bits, got %R",
                          name, tuple);
        }
    }
    return 0;
}

/* What an array interface says about the memory.  `claim` points to the arrays
 * `shape` and `strides`. */
struct interface {
    struct claim claim;
    int64_t shape[MOST_DIMENSIONS];
    int64_t strides[MOST_DIMENSIONS];
    /* A borrowed reference; the tuple of entries holds the object. */
    PyObject *stream;
};

/* Fill in *interface from the entries that _interchange.read_array_interface
 * returned. */
static int
parse_entries(const char *function, PyObject *entries,
              struct interface *interface)
{
    PyObject *address, *sizes, *steps;
    long long item_size;
    int read_only;
    ps_handle data;
    if (!PyArg_ParseTuple(entries, "OpLO!O!O", &address, &read_only,
                          &item_size, &PyTuple_Type, &sizes, &PyTuple_Type,
                          &steps, &interface->stream) ||
        handle_argument(function, "the address in __cuda_array_interface__",
                        address, &data) < 0 ||
        read_extents("shape", sizes, interface->shape) < 0 ||
        read_extents("strides", steps, interface->strides) < 0) {
        return -1;
    }
    interface->claim = (struct claim){
        .what = "the CUDA array interface",
        .read_only = read_only,
        .data = (void *)data,
        .item_bits = (uint64_t)item_size * 8,
        .ndim = (int)PyTuple_GET_SIZE(sizes),
        .shape = interface->shape,
        .strides = PyTuple_GET_SIZE(steps) > 0 ? interface->strides : NULL,
        .stride_unit = item_size,
    };
    return 0;
}

static int
entries_hold(PyObject *object, PyObject *entries, struct ps_device *device,
             struct ps_stream *stream, struct span *span)
{
    struct interface interface;
    struct claim *claim = &interface.claim;
    if (parse_entries("copy_", entries, &interface) < 0) {
        return -1;
    }
    claim->device = device_of_address(device, claim->data);
    if (claim_hold(claim, NULL, object, (void (*)(void *))Py_DecRef, span) <
        0) {
        return -1;
    }
    Py_INCREF(object);
    if (interface.stream != Py_None &&
        wait_for_producer(claim->device, stream, interface.stream) < 0) {
        span_release(span);
        return -1;
    }
    return 0;
}

/* Check an array interface, and return a new tuple of its entries; NULL with
 * an exception. */
static PyObject *
read_interface(const char *name, PyObject *interface)
{
    PyObject *function =
        import_once(&module_state.read_array_interface,
                    "pystreams._interchange", "read_array_interface");
    return function != NULL
               ? PyObject_CallFunction(function, "sO", name, interface)
               : NULL;
}

int
array_interface_hold(PyObject *object, struct ps_device *device,
                     struct ps_stream *stream, struct span *span)
{
    PyObject *interface;
    int found = optional_attribute(object, module_state.str_array_interface,
                                   &interface);
    if (found != 1) {
        return found;
    }
    PyObject *entries = read_interface("copy_", interface);
    Py_DECREF(interface);
    if (entries != NULL &&
        device->runtime->backend->device_type != PS_DEVICE_CUDA) {
        device = device_argument("copy_", PS_DEVICE_CUDA, NULL);
    }
    int result = -1;
    if (entries != NULL && device != NULL) {
        result = entries_hold(object, entries, device, stream, span);
    }
    Py_XDECREF(entries);
    return result < 0 ? -1 : 1;
}

int
array_interface_extent(const char *function, PyObject *object,
                       const char **begin, Py_ssize_t *nbytes)
{
    PyObject *names[] = {module_state.str_array_interface,
                         module_state.str_host_array_interface};
    PyObject *found = NULL;
    for (size_t i = 0; found == NULL && i < 2; i++) {
        if (optional_attribute(object, names[i], &found) < 0) {
            return -1;
        }
    }
    if (found == NULL) {
        return 0;
    }
    struct interface interface;
    PyObject *entries = read_interface(function, found);
    Py_DECREF(found);
    bool known = entries != NULL &&
                 parse_entries(function, entries, &interface) == 0 &&
                 claim_extent(&interface.claim, begin, nbytes) == 0;
    Py_XDECREF(entries);
    return known ? 1 : -1;
}

PyObject *
Buffer_get_array_interface(PyObject *self, void *Py_UNUSED(closure))
{
    struct span span;
    if (buffer_hold(self, &span) < 0) {
        return NULL;
    }
    struct ps_device *device = span.block->device;
    struct ps_stream *stream = NULL;
    PyObject *interface = NULL;
    if (span.block->host ||
        device->runtime->backend->device_type != PS_DEVICE_CUDA) {
        PyErr_SetString(PyExc_AttributeError,
                        "__cuda_array_interface__ is of CUDA device memory "
                        "alone");
    }
    else if ((stream = current_stream_of(device)) != NULL &&
             span_settle(&span, stream) == 0) {
        interface = Py_BuildValue("{s:(n),s:s,s:(KO),s:i,s:O,s:K}", "shape",
                                  span.nbytes, "typestr", "|u1", "data",
                                  (unsigned long long)(uintptr_t)span.data,
                                  span.block->read_only ? Py_True : Py_False,
                                  "version", 3, "strides", Py_None, "stream",
                                  (unsigned long long)protocol_number(stream));
    }
    stream_release(stream);
    span_release(&span);
    return interface;
}
