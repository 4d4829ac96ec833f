/* from_ipc_handle() and __reduce__() of events and Buffers. */
#include "ipc.h"

#include "../core/runtime.h"

#include "args.h"
#include "device.h"
#include "errors.h"

int
ipc_arguments(const struct shared_kind *kind, int only, PyObject *const *args,
              Py_ssize_t nargs, PyObject *kwnames, struct ps_device **device,
              bool *indexed, Py_buffer *handle)
{
    static const struct signature signature = {
        "from_ipc_handle", 2, 2, {"device", "handle"}};
    PyObject *values[2];
    struct device_name name;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return -1;
    }
    if (!PyObject_CheckBuffer(values[1])) {
        raise_expected("from_ipc_handle", "a bytes-like object", "handle",
                       values[1]);
        return -1;
    }
    if (PyObject_GetBuffer(values[1], handle, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    *device = device_name_argument("from_ipc_handle", "device", only,
                                   values[0], &name) == 0
                  ? device_at("from_ipc_handle", name)
                  : NULL;
    *indexed = name.index >= 0;
    if (*device != NULL && handle->len != kind->bytes) {
        *device = NULL;
        PyErr_Format(PyExc_ValueError,
                     "from_ipc_handle() expects the %zd bytes that "
                     "ipc_handle() returns for handle, but got %zd",
                     kind->bytes, handle->len);
    }
    if (*device == NULL) {
        PyBuffer_Release(handle);
        return -1;
    }
    return 0;
}

PyObject *
raise_not_opened(const struct shared_kind *kind, struct ps_device *device,
                 ps_status status)
{
    const char *name = device->runtime->backend->name;
    char operation[48];
    switch (status) {
    case PS_ERROR_OWN_HANDLE:
        return PyErr_Format(
            PyExc_RuntimeError,
            "from_ipc_handle: the %s of this handle was made in "
            "this process, and only another one can open it; "
            "use the %s itself here",
            kind->noun, kind->type);
    case PS_ERROR_INVALID_VALUE:
        return PyErr_Format(PyExc_ValueError,
                            "from_ipc_handle() expects the handle of a live "
                            "%s %s for handle, as its ipc_handle() returned "
                            "it; these %zd bytes are not one",
                            name, kind->noun, kind->bytes);
    case PS_ERROR_INVALID_DEVICE:
        return PyErr_Format(PyExc_ValueError,
                            "from_ipc_handle: expected a handle of %s:%d, got "
                            "one of another device; name the device of the %s "
                            "that was exported",
                            name, device->index, kind->noun);
    case PS_ERROR_INVALID_HANDLE:
        return PyErr_Format(
            PyExc_RuntimeError,
            "from_ipc_handle: the %s of this handle is gone or out of reach; "
            "expected its process to live, to be the same user's, and to "
            "keep the %s until others have opened it",
            kind->noun, kind->type);
    case PS_ERROR_NOT_SUPPORTED:
        return raise_absent(device->runtime, kind->feature);
    default:
        snprintf(operation, sizeof(operation), "%s.from_ipc_handle",
                 kind->type);
        return raise_status(device->runtime, operation, status);
    }
}

PyObject *
ipc_reduce(PyObject *self, struct device_name device,
           const unsigned char *handle, Py_ssize_t nbytes, PyObject *state)
{
    PyObject *open =
        PyObject_GetAttrString((PyObject *)Py_TYPE(self), "from_ipc_handle");
    PyObject *where = device_new(device.type, device.index);
    if (open == NULL || where == NULL) {
        Py_XDECREF(open);
        Py_XDECREF(where);
        return NULL;
    }
    return state != NULL
               ? Py_BuildValue("N(Ny#)O", open, where, handle, nbytes, state)
               : Py_BuildValue("N(Ny#)", open, where, handle, nbytes);
}
