/* The module's functions for backends and devices.  The package builds `cuda`
 * and `accelerator` on them.  The first argument of most of them is a device
 * type, given as torch's number for it. */
#include "module.h"

#include <string.h>

#include "backends.h"
#include "device.h"
#include "errors.h"
#include "submit.h"
#include "wait.h"

static PyObject *
backends(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < ps_runtime_count(); i++) {
        const struct ps_backend *backend = ps_runtime_at(i)->backend;
        if (!ps_runtime_at(i)->hidden) {
            list = list_with(list, Py_BuildValue("(si)", backend->name,
                                                 backend->device_type));
        }
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *
default_type(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct ps_runtime *runtime = default_runtime();
    return runtime != NULL ? PyLong_FromLong(runtime->backend->device_type)
                           : NULL;
}

static PyObject *
device_count(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, count = 0;
    ps_status status = PS_SUCCESS;
    if (!PyArg_ParseTuple(args, "i:device_count", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(type);
    if (runtime != NULL) {
        status = count_devices(runtime, &count);
    }
    return PyLong_FromLong(status == PS_SUCCESS ? count : 0);
}

static PyObject *
unavailable_reason(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, count;
    ps_status status;
    if (!PyArg_ParseTuple(args, "i:unavailable_reason", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(type);
    if (runtime == NULL) {
        return PyUnicode_FromString(type == PS_DEVICE_CUDA
                                        ? NO_CUDA_BACKEND
                                        : "no backend is registered");
    }
    status = count_devices(runtime, &count);
    if (status == PS_SUCCESS) {
        Py_RETURN_NONE;
    }
    return PyUnicode_FromString(
        runtime->registered->status_text(runtime->registered, status));
}

static PyObject *
is_emulated(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i:is_emulated", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(type);
    return PyBool_FromLong(runtime != NULL &&
                           (runtime->backend->flags & PS_BACKEND_EMULATED));
}

static PyObject *
is_initialized(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i:is_initialized", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(type);
    return PyBool_FromLong(runtime != NULL && ps_runtime_is_used(runtime));
}

static PyObject *
initialize(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i:initialize", &type) ||
        use_runtime(type) == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
current_device(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device *device = parse_device(args, "i:current_device");
    return device != NULL ? PyLong_FromLong(device->index) : NULL;
}

static PyObject *
device_index(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *function = "device_index";
    int type, require_index = 0;
    PyObject *argument = Py_None;
    struct device_name name;
    if (!PyArg_ParseTuple(args, "i|Ops:device_index", &type, &argument,
                          &require_index, &function) ||
        find_runtime(type) == NULL ||
        device_name_argument(function, "device", type, argument, &name) < 0) {
        return NULL;
    }
    if (require_index && name.index < 0) {
        return PyErr_Format(PyExc_ValueError,
                            "Expected a pystreams.device with a specified "
                            "index or an integer, but got:%S",
                            argument);
    }
    struct ps_device *device = device_at(function, name);
    return device != NULL ? PyLong_FromLong(device->index) : NULL;
}

static PyObject *
set_device(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device *device = parse_device(args, "iO:set_device");
    if (device == NULL || device_switch(device) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
synchronize(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    int implied = false;
    PyObject *argument = Py_None, *timeout = Py_None;
    if (!PyArg_ParseTuple(args, "i|OOp:synchronize", &type, &argument,
                          &timeout, &implied) ||
        find_runtime(type) == NULL) {
        return NULL;
    }
    struct work work = {
        .operation = "synchronize",
        .device = device_argument("synchronize", type, argument),
        .implied = implied,
    };
    int64_t timeout_ns;
    return work.device != NULL &&
                   timeout_argument("synchronize", timeout, &timeout_ns) == 0
               ? waited(&work, timeout, timeout_ns)
               : NULL;
}

static PyObject *
device_properties(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device_properties p;
    struct ps_device *device = parse_device(args, "i|Os:device_properties");
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    WITHOUT_GIL(status =
                    backend->device_properties(backend, device->index, &p));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "device_properties", status);
    }
    return Py_BuildValue(
        "{s:s,s:K,s:i,s:i,s:i,s:i,s:K,s:y#}", "name", p.name, "total_memory",
        (unsigned long long)p.total_memory, "major", p.major, "minor", p.minor,
        "multi_processor_count", p.multi_processor_count, "warp_size",
        p.warp_size, "l2_cache_size", (unsigned long long)p.l2_cache_size,
        "uuid", (const char *)p.uuid, (Py_ssize_t)sizeof(p.uuid));
}

/* Parse the arguments (type, device, peer_device), and `access` if the format
 * has a fourth item.  The format names the function.  On failure, returns -1
 * with an exception. */
static int
peer_arguments(PyObject *args, const char *format, struct ps_device **device,
               struct ps_device **peer, int *access)
{
    const char *function = strchr(format, ':') + 1;
    struct device_name name;
    PyObject *first, *second;
    int type;
    if (!PyArg_ParseTuple(args, format, &type, &first, &second, access) ||
        find_runtime(type) == NULL) {
        return -1;
    }
    *device = device_argument(function, type, first);
    if (*device == NULL || device_name_argument(function, "peer_device", type,
                                                second, &name) < 0) {
        return -1;
    }
    *peer = device_at(function, name);
    return *peer != NULL ? 0 : -1;
}

static PyObject *
can_device_access_peer(PyObject *Py_UNUSED(module), PyObject *args)
{
    int accessible;
    struct ps_device *device, *peer;
    ps_status status;
    if (peer_arguments(args, "iOO:can_device_access_peer", &device, &peer,
                       NULL) < 0) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    if (backend->peer_accessible == NULL) {
        return raise_absent(device->runtime, "peer access");
    }
    WITHOUT_GIL(status = backend->peer_accessible(backend, device->index,
                                                  peer->index, &accessible));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "can_device_access_peer", status);
    }
    return PyBool_FromLong(accessible);
}

static PyObject *
set_peer_access(PyObject *Py_UNUSED(module), PyObject *args)
{
    int access;
    struct ps_device *device, *peer;
    ps_status status;
    if (peer_arguments(args, "iOOp:set_peer_access", &device, &peer, &access) <
        0) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    if (backend->peer_access == NULL) {
        return raise_absent(device->runtime, "control of peer access");
    }
    if (device == peer) {
        return PyErr_Format(PyExc_ValueError,
                            "set_peer_access() expects two devices, but got "
                            "%s:%d twice: a device always has access to its "
                            "own memory",
                            backend->name, device->index);
    }
    WITHOUT_GIL(status = backend->peer_access(backend, device->index,
                                              peer->index, access));
    return none_or_raise(device->runtime, "set_peer_access", status);
}

static PyObject *
versions(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type, runtime_version = 0, driver_version = 0;
    if (!PyArg_ParseTuple(args, "i:versions", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(type);
    const struct ps_backend *backend =
        runtime != NULL ? runtime->backend : NULL;
    ps_status status = PS_SUCCESS;
    if (backend != NULL && backend->versions != NULL) {
        WITHOUT_GIL(status = backend->versions(backend, &runtime_version,
                                               &driver_version));
    }
    if (status != PS_SUCCESS) {
        return Py_BuildValue("(ii)", 0, 0);
    }
    return Py_BuildValue("(ii)", runtime_version, driver_version);
}

static PyObject *
status_string(PyObject *args, bool name)
{
    int type, status;
    if (!PyArg_ParseTuple(args, "ii", &type, &status)) {
        return NULL;
    }
    struct ps_runtime *runtime = find_runtime(type);
    if (runtime == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = runtime->backend;
    return PyUnicode_FromString(name ? backend->status_name(backend, status)
                                     : backend->status_text(backend, status));
}

static PyObject *
status_name(PyObject *Py_UNUSED(module), PyObject *args)
{
    return status_string(args, true);
}

static PyObject *
status_text(PyObject *Py_UNUSED(module), PyObject *args)
{
    return status_string(args, false);
}

static PyObject *
shut_down(PyObject *Py_UNUSED(module), PyObject *args)
{
    double timeout;
    bool finished = true;
    if (!PyArg_ParseTuple(args, "d:shutdown", &timeout)) {
        return NULL;
    }
    if (!(timeout >= 0 && timeout < 1e9)) {
        return PyErr_Format(PyExc_ValueError,
                            "shutdown() expects a number of seconds from 0 to "
                            "1e9 for timeout");
    }
    int64_t deadline = monotonic_ns() + (int64_t)(timeout * 1e9);
    finished = stop_jobs((int64_t)(timeout * 1e9));
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        const struct ps_backend *backend = runtime->backend;
        int64_t left = deadline - monotonic_ns();
        if (backend->shutdown != NULL && !ps_runtime_is_foreign(runtime) &&
            backend->shutdown(backend, left > 0 ? left : 0) != PS_SUCCESS) {
            finished = false;
        }
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(finished);
}

PyMethodDef device_functions[] = {
    FUNCTION("backends", backends, METH_NOARGS, "/",
             "Return (name, device type) of every registered backend."),
    FUNCTION("default_type", default_type, METH_NOARGS, "/",
             "Return the device type used if none is given: that of "
             "PYSTREAMS_ACCELERATOR, else cuda\nif there is a usable GPU, "
             "else cpu.  Raises RuntimeError with the reason if the "
             "type\nasked for is unknown or not available."),
    FUNCTION("device_count", device_count, METH_VARARGS, "type, /",
             "Return how many devices there are; 0 if the type is not "
             "available.  Counts again at\neach call until a device is used.  "
             "Initializes nothing."),
    FUNCTION("unavailable_reason", unavailable_reason, METH_VARARGS, "type, /",
             "Return why the device type cannot be used, or None if it can."),
    FUNCTION("is_emulated", is_emulated, METH_VARARGS, "type, /",
             "Return whether the CPU engine stands in for the device type."),
    FUNCTION("is_initialized", is_initialized, METH_VARARGS, "type, /",
             "Return whether this process has used a device of the type."),
    FUNCTION("initialize", initialize, METH_VARARGS, "type, /",
             "Initialize the device type.  Raises RuntimeError if it cannot "
             "be used."),
    FUNCTION("current_device", current_device, METH_VARARGS, "type, /",
             "Return the index of this thread's current device."),
    FUNCTION("device_index", device_index, METH_VARARGS,
             "type, device=None, require_index=False, "
             "function='device_index', /",
             "Return the index that a device argument names, by default the "
             "current device's.\n\n"
             "A TypeError names the function."),
    FUNCTION("set_device", set_device, METH_VARARGS, "type, device, /",
             "Make the device current in this thread.  May block."),
    FUNCTION(
        "synchronize", synchronize, METH_VARARGS,
        "type, device=None, timeout=None, implied=False, /",
        "Wait until all work queued on the device before the call is done, "
        "for timeout seconds\nat most.  Blocks with the GIL released.\n\n"
        "implied is true if the library needs the wait, so that "
        "races.redundant() never lists\nit."),
    FUNCTION("device_properties", device_properties, METH_VARARGS,
             "type, device=None, function='device_properties', /",
             "Return a dict of the device's name, memory in bytes and "
             "layout."),
    FUNCTION("can_device_access_peer", can_device_access_peer, METH_VARARGS,
             "type, device, peer, /",
             "Return whether the device reaches the peer's memory without "
             "staging."),
    FUNCTION("set_peer_access", set_peer_access, METH_VARARGS,
             "type, device, peer, enabled, /",
             "Allow the device's work to access the memory of the peer's "
             "pool, or forbid it.  May\nblock."),
    FUNCTION("versions", versions, METH_VARARGS, "type, /",
             "Return the (runtime, driver) versions as 1000 * major + 10 * "
             "minor; 0 if there is\nnone."),
    FUNCTION("status_name", status_name, METH_VARARGS, "type, status, /",
             "Return the name of a status in the backend's documentation."),
    FUNCTION("status_text", status_text, METH_VARARGS, "type, status, /",
             "Return the description of a status."),
    FUNCTION("shutdown", shut_down, METH_VARARGS, "timeout, /",
             "Start no more callables and no more work on the CPU engines, "
             "and wait up to timeout\nseconds for those that are running; "
             "return whether all have ended."),
    {NULL},
};
