/* Interprocess events: exporting a handle, opening one, and pickling, which
 * passes the handle on. */
#include "event_ipc.h"

#include "../core/event.h"

#include "args.h"
#include "device.h"
#include "errors.h"
#include "event.h"

static const unsigned char *
export_handle(PyObject *self)
{
    struct ps_event *event = ((EventObject *)self)->event;
    const unsigned char *handle;
    if (event->runtime->backend->event_export == NULL) {
        raise_absent(event->runtime, "interprocess events");
        return NULL;
    }
    struct ps_device *device = atomic_load(&event->device);
    if (device == NULL) {
        device = event->home;
    }
    if (device == NULL) {
        struct device_name name = {event->runtime->backend->device_type, -1};
        device = device_at(name);
    }
    if (device == NULL) {
        return NULL;
    }
    ps_status status;
    WITHOUT_GIL(status = ps_event_export(event, device, &handle));
    if (status != PS_SUCCESS) {
        raise_status(event->runtime, "Event.ipc_handle", status);
        return NULL;
    }
    return handle;
}

PyObject *
Event_ipc_handle(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!(((EventObject *)self)->event->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "ipc_handle() needs an interprocess event: expected one made with "
            "interprocess=True and enable_timing=False");
    }
    const unsigned char *handle = export_handle(self);
    return handle != NULL ? PyBytes_FromStringAndSize((const char *)handle,
                                                      PS_IPC_HANDLE_BYTES)
                          : NULL;
}

static PyObject *
raise_not_opened(struct ps_device *device, ps_status status)
{
    const char *name = device->runtime->backend->name;
    switch (status) {
    case PS_ERROR_OWN_HANDLE:
        return PyErr_Format(PyExc_RuntimeError,
                            "from_ipc_handle: the event of this handle was "
                            "made in this process, and only another one can "
                            "open it; use the Event itself here");
    case PS_ERROR_INVALID_VALUE:
        return PyErr_Format(
            PyExc_ValueError,
            "from_ipc_handle: expected the handle of a %s event that lives, "
            "whole and as ipc_handle() gave it; got %d bytes that name none",
            name, PS_IPC_HANDLE_BYTES);
    case PS_ERROR_INVALID_DEVICE:
        return PyErr_Format(PyExc_ValueError,
                            "from_ipc_handle: expected the handle of an event "
                            "of %s:%d, got one of another device; name the "
                            "device of the event that was exported",
                            name, device->index);
    case PS_ERROR_INVALID_HANDLE:
        return PyErr_Format(
            PyExc_RuntimeError,
            "from_ipc_handle: the event of this handle is gone or out of "
            "reach; expected its process to live, to be the same user's, and "
            "to keep the Event until others have opened it");
    case PS_ERROR_NOT_SUPPORTED:
        return raise_absent(device->runtime, "interprocess events");
    default:
        return raise_status(device->runtime, "Event.from_ipc_handle", status);
    }
}

static PyObject *
open_handle(PyTypeObject *type, struct ps_device *device,
            const Py_buffer *handle)
{
    struct ps_event *event;
    ps_status status;
    if (handle->len != PS_IPC_HANDLE_BYTES) {
        return PyErr_Format(PyExc_ValueError,
                            "from_ipc_handle() expects the %d bytes that "
                            "ipc_handle() returns for handle, but got %zd",
                            PS_IPC_HANDLE_BYTES, handle->len);
    }
    WITHOUT_GIL(status = ps_event_open(device, handle->buf, &event));
    if (status != PS_SUCCESS) {
        return raise_not_opened(device, status);
    }
    return event_wrap(type, event);
}

PyObject *
Event_from_ipc_handle(PyObject *cls, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames)
{
    static const struct signature signature = {
        "from_ipc_handle", 2, 2, {"device", "handle"}};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *values[2], *result = NULL;
    Py_buffer handle;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    if (!PyObject_CheckBuffer(values[1])) {
        return raise_expected("from_ipc_handle", "a bytes-like object",
                              "handle", values[1]);
    }
    if (PyObject_GetBuffer(values[1], &handle, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int only = PyType_IsSubtype(type, module_state.cuda_event_type)
                   ? PS_DEVICE_CUDA
                   : -1;
    struct ps_device *device =
        device_argument("from_ipc_handle", only, values[0]);
    if (device != NULL) {
        result = open_handle(type, device, &handle);
    }
    PyBuffer_Release(&handle);
    return result;
}

PyObject *
Event_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_event *event = ((EventObject *)self)->event;
    if (!(event->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(PyExc_TypeError,
                            "cannot pickle '%s' object: expected one made "
                            "with interprocess=True and enable_timing=False, "
                            "which other processes can open",
                            Py_TYPE(self)->tp_name);
    }
    const unsigned char *handle = export_handle(self);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *open =
        PyObject_GetAttrString((PyObject *)Py_TYPE(self), "from_ipc_handle");
    PyObject *device = device_new(event->runtime->backend->device_type,
                                  atomic_load(&event->device)->index);
    if (open == NULL || device == NULL) {
        Py_XDECREF(open);
        Py_XDECREF(device);
        return NULL;
    }
    if (event->flags & PS_EVENT_BLOCKING) {
        return Py_BuildValue("N(Ny#)O", open, device, handle,
                             (Py_ssize_t)PS_IPC_HANDLE_BYTES, Py_True);
    }
    return Py_BuildValue("N(Ny#)", open, device, handle,
                         (Py_ssize_t)PS_IPC_HANDLE_BYTES);
}

PyObject *
Event_setstate(PyObject *self, PyObject *blocking)
{
    struct ps_event *event = ((EventObject *)self)->event;
    /* The flags of any other event decide which pool it returns to. */
    if (!PyBool_Check(blocking) || !(event->flags & PS_EVENT_INTERPROCESS)) {
        return PyErr_Format(PyExc_TypeError,
                            "__setstate__() is for an interprocess event that "
                            "is being unpickled");
    }
    if (blocking == Py_True) {
        event->flags |= PS_EVENT_BLOCKING;
    }
    Py_RETURN_NONE;
}
