/* The module's functions that queue work, or that create native streams which
 * the caller must destroy. */
#include "module.h"

#include "../core/work.h"

#include "args.h"
#include "backends.h"
#include "device.h"
#include "enqueue.h"
#include "errors.h"
#include "stream.h"

/* End the use of the stream.  status: the result of queueing an operation on
 * it.  Returns None if that is PS_SUCCESS; otherwise NULL with an exception.
 */
static PyObject *
queued(struct stream_use *use, const char *operation, ps_status status)
{
    int result = zero_or_raise_on(use->stream, operation, status);
    stream_use_end(use);
    return none_unless_raised(result);
}

static PyObject *
sleep_cycles(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    PyObject *cycles, *argument = NULL;
    ps_status status;
    if (!PyArg_ParseTuple(args, "iO|O:sleep", &type, &cycles, &argument)) {
        return NULL;
    }
    uintptr_t count;
    if (handle_argument("_sleep", "cycles", cycles, &count) < 0 ||
        find_runtime(type) == NULL) {
        return NULL;
    }
    struct stream_use use;
    if (stream_use_parsed("_sleep", type, &argument, argument != NULL, NULL,
                          &use) < 0) {
        return NULL;
    }
    ENQUEUE_WITHOUT_GIL(status, use.stream,
                        ps_stream_sleep(use.stream, count));
    return queued(&use, "sleep", status);
}

static PyObject *
launch_host_function(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argument, *function, *data = NULL;
    ps_handle address, data_address = 0;
    ps_status status;
    if (!PyArg_ParseTuple(args, "OO|O:launch_host_function", &argument,
                          &function, &data) ||
        handle_argument("launch_host_function", "function", function,
                        &address) < 0 ||
        (data != NULL && handle_argument("launch_host_function", "argument",
                                         data, &data_address) < 0)) {
        return NULL;
    }
    if (address == 0) {
        return PyErr_Format(PyExc_ValueError,
                            "launch_host_function() expects the address of a "
                            "C function for function, but got 0");
    }
    struct stream_use use;
    if (stream_use_named("launch_host_function", argument, &use) < 0) {
        return NULL;
    }
    ENQUEUE(status, use.stream,
            ps_stream_host_function(use.stream, (ps_host_function)address,
                                    (void *)data_address));
    return queued(&use, "host functions", status);
}

static PyObject *
fail(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argument;
    int failure;
    ps_status status;
    if (!PyArg_ParseTuple(args, "Oi:fail", &argument, &failure)) {
        return NULL;
    }
    struct stream_use use;
    if (stream_use_named("fail", argument, &use) < 0) {
        return NULL;
    }
    ENQUEUE(status, use.stream, ps_stream_fail(use.stream, failure));
    return queued(&use, "fault injection", status);
}

static PyObject *
raw_stream_create(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, blocking = 0;
    PyObject *argument = Py_None;
    ps_handle handle = 0;
    ps_status status;
    if (!PyArg_ParseTuple(args, "i|Op:raw_stream_create", &type, &argument,
                          &blocking) ||
        find_runtime(type) == NULL) {
        return NULL;
    }
    struct ps_device *device =
        device_argument("raw_stream_create", type, argument);
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    ps_status (*create)(const struct ps_backend *, int, int, ps_handle *) =
        blocking ? backend->blocking_create : backend->stream_create;
    if (create == NULL) {
        return raise_absent(device->runtime, "blocking streams");
    }
    WITHOUT_GIL(status = create(backend, device->index, 0, &handle));
    PyObject *result =
        Py_BuildValue("(iK)", status, (unsigned long long)handle);
    if (result == NULL && status == PS_SUCCESS) {
        WITHOUT_GIL(
            status = backend->stream_destroy(backend, device->index, handle));
        report_cleanup(device->runtime, device, "destroying a stream", status);
    }
    return result;
}

static PyObject *
raw_stream_destroy(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, index;
    PyObject *argument;
    ps_handle handle;
    ps_status status = PS_SUCCESS;
    if (!PyArg_ParseTuple(args, "iO:raw_stream_destroy", &type, &argument) ||
        handle_argument("raw_stream_destroy", "handle", argument, &handle) <
            0 ||
        find_runtime(type) == NULL) {
        return NULL;
    }
    if (handle == 0) {
        return PyLong_FromLong(PS_ERROR_INVALID_HANDLE);
    }
    struct ps_device *device =
        device_argument("raw_stream_destroy", type, NULL);
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    index = device->index;
    if (backend->stream_device != NULL) {
        CALL_BACKEND(device->runtime,
                     status = backend->stream_device(backend, handle, &index));
    }
    if (status == PS_SUCCESS) {
        WITHOUT_GIL(status = backend->stream_destroy(backend, index, handle));
    }
    return PyLong_FromLong(status);
}

PyMethodDef work_functions[] = {
    FUNCTION("sleep", sleep_cycles, METH_VARARGS,
             "type, cycles, stream=None, /",
             "Queue a sleep of a number of device clock cycles; a cycle of "
             "the CPU engine is a\nnanosecond."),
    FUNCTION("launch_host_function", launch_host_function, METH_VARARGS,
             "stream, function, argument=0, /",
             "Queue a call to the C function at an address, with one pointer, "
             "on a thread of the\nbackend (cudaLaunchHostFunc).  It must be "
             "short and must not call Python or CUDA."),
    FUNCTION("fail", fail, METH_VARARGS, "stream, status, /",
             "Queue an operation that fails with the status, for tests."),
    FUNCTION("raw_stream_create", raw_stream_create, METH_VARARGS,
             "type, device=None, blocking=False, /",
             "Return (status, handle) of a native stream that the caller "
             "owns.\n\n"
             "Raises NotImplementedError if the backend has no blocking "
             "streams."),
    FUNCTION(
        "raw_stream_destroy", raw_stream_destroy, METH_VARARGS,
        "type, handle, /",
        "Destroy a native stream that the caller owns and return the status."),
    {NULL},
};
