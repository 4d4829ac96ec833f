/* The registered backends, and the choice of the default one.  This library's
 * own backends are registered when the package is first imported; extension
 * modules register others.  Backends stay registered when the Python module is
 * deleted, so that a second import finds them. */
#include "backends.h"

#include "../backends/backends.h"
#include "../observe/races.h"
#include "../observe/table.h"
#include "../observe/timeline.h"

#include "args.h"
#include "device.h"
#include "errors.h"

/* Register a table.  On failure, returns -1 with an exception, which is
 * ValueError if the table is refused. */
static int
register_table(const struct ps_backend *table, const struct ps_faults *faults)
{
    struct ps_refusal refusal;
    ps_status status = table != NULL
                           ? ps_runtime_register(table, faults, &refusal)
                           : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        PyErr_NoMemory();
    }
    else if (status != PS_SUCCESS) {
        PyErr_Format(PyExc_ValueError, "register_backend: %s", refusal.text);
    }
    return status == PS_SUCCESS ? 0 : -1;
}

struct ps_runtime *
find_runtime(long type)
{
    struct ps_runtime *runtime =
        type >= 0 && type <= INT_MAX ? ps_runtime_find((int)type) : NULL;
    if (runtime == NULL && type == PS_DEVICE_CUDA) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "No CUDA GPUs are available: " NO_CUDA_BACKEND EMULATE_CUDA);
    }
    else if (runtime == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "no backend is registered for the device type %ld (%s)",
                     type, device_type_name((int)type));
    }
    return runtime;
}

ps_status
count_devices(struct ps_runtime *runtime, int *count)
{
    ps_status status;
    if (atomic_load(&runtime->device_count) != 0) {
        return ps_runtime_devices(runtime, count);
    }
    WITHOUT_GIL(status = ps_runtime_devices(runtime, count));
    return status;
}

struct ps_runtime *
begin_runtime(int type)
{
    struct ps_runtime *runtime = find_runtime(type);
    ps_status status;
    if (runtime == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_runtime_use(runtime));
    switch (status) {
    case PS_SUCCESS:
        return runtime;
    case PS_ERROR_FOREIGN:
    case PS_ERROR_OUT_OF_MEMORY:
        raise_status(runtime, "initialization", status);
        return NULL;
    default:
        raise_unavailable(runtime, status);
        return NULL;
    }
}

/* Convert the int that a Python function returned to a device type, and drop
 * the reference to the int.  `result` is NULL if the function has raised an
 * exception.  On failure, returns -1 with an exception. */
static int
type_of_result(PyObject *result)
{
    long type = result != NULL ? PyLong_AsLong(result) : -1;
    Py_XDECREF(result);
    return (int)type;
}

int
load_backend(const char *name, size_t length, int *type)
{
    *type = type_of_result(import_call("pystreams._backends", "load", "(s#)",
                                       name, (Py_ssize_t)length));
    return PyErr_Occurred() ? -1 : 0;
}

struct ps_runtime *
default_runtime(void)
{
    int known = atomic_load(&module_state.default_type);
    int type = known;
    if (known < 0) {
        type = type_of_result(
            import_call("pystreams._settings", "default_type", "()"));
        if (type < 0) {
            return NULL;
        }
        atomic_compare_exchange_strong(&module_state.default_type, &known,
                                       type);
    }
    return find_runtime(type);
}

int
replace_default_type(int type)
{
    static atomic_int unknown = -1;
    return atomic_exchange(&module_state.default_type,
                           type >= 0 ? type
                                     : atomic_fetch_sub(&unknown, 1) - 1);
}

/* Get the pointer of a capsule, which must have this name.  On failure,
 * returns NULL with an exception. */
static void *
capsule_pointer(const char *argument, PyObject *capsule, const char *name)
{
    if (!PyCapsule_IsValid(capsule, name)) {
        return PyErr_Format(PyExc_TypeError,
                            "register_backend() expects a capsule named "
                            "\"%s\" for %s, but got %R",
                            name, argument, capsule);
    }
    return PyCapsule_GetPointer(capsule, name);
}

void
install_tables(void)
{
    /* The functions that return observing tables create each table at its
     * first use, so only one thread at a time may call them. */
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    for (int i = 0; i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        const struct ps_backend *table = runtime->registered;
        if (ps_cpu_schedules.is_on() &&
            ps_cpu_schedules.table(table, true) != NULL) {
            table = ps_cpu_schedules.table(table, true);
        }
        if (ps_timeline_is_on()) {
            table = ps_timeline_table(i, table);
        }
        if (ps_races_are_on()) {
            table = ps_observed_table(i, table);
        }
        runtime->backend = table;
    }
    Py_END_CRITICAL_SECTION();
}

static PyObject *
register_backend(PyObject *Py_UNUSED(module), PyObject *const *args,
                 Py_ssize_t nargs, PyObject *kwnames)
{
    static const struct signature signature = {
        "register_backend", 1, 2, {"capsule", "faults"}};
    PyObject *values[2];
    const struct ps_faults *faults = NULL;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    const struct ps_backend *table =
        capsule_pointer("capsule", values[0], PS_CAPSULE_NAME);
    if (table == NULL ||
        (values[1] != NULL && values[1] != Py_None &&
         (faults = capsule_pointer("faults", values[1],
                                   PS_FAULTS_CAPSULE_NAME)) == NULL) ||
        register_table(table, faults) < 0) {
        return NULL;
    }
    install_tables();
    /* A capsule's destructor may free the table, so the capsules are never
     * released. */
    Py_INCREF(values[0]);
    Py_XINCREF(values[1]);
    Py_RETURN_NONE;
}

/* Register the backends of this library. */
static PyObject *
register_backends(PyObject *Py_UNUSED(module), PyObject *args)
{
    int cpus, emulated, per_thread;
    unsigned long long memory;
    if (!PyArg_ParseTuple(args, "iiKp:register_backends", &cpus, &emulated,
                          &memory, &per_thread)) {
        return NULL;
    }
    if (ps_runtime_count() > 0) {
        Py_RETURN_NONE;
    }
    if (ps_core_init() != PS_SUCCESS) {
        return PyErr_NoMemory();
    }
    ps_default_per_thread = per_thread != 0;
    int result = register_table(ps_cpu_backend("cpu", PS_DEVICE_CPU, cpus, 0),
                                &ps_cpu_faults);
    if (result == 0 && emulated > 0) {
        result = register_table(
            ps_cpu_backend("cuda", PS_DEVICE_CUDA, emulated, memory),
            &ps_cpu_faults);
    }
#ifdef PS_WITH_CUDA
    else if (result == 0) {
        result = register_table(&ps_cuda_backend, NULL);
    }
#endif
    return none_unless_raised(result);
}

static PyObject *
backend_members(PyObject *Py_UNUSED(module), PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i:backend_members", &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = find_runtime(type);
    PyObject *members = runtime != NULL ? PyDict_New() : NULL;
    for (int i = 0; members != NULL && i < ps_table_member_count; i++) {
        bool present;
        const char *name = ps_table_member(runtime->backend, i, &present);
        if (PyDict_SetItemString(members, name, present ? Py_True : Py_False) <
            0) {
            Py_CLEAR(members);
        }
    }
    if (members != NULL &&
        PyDict_SetItemString(members, "stream_fail",
                             runtime->faults != NULL ? Py_True : Py_False) <
            0) {
        Py_CLEAR(members);
    }
    return members;
}

/* Determine which of the backend's waiting functions support a limit.  Each is
 * called with a limit of 0, so that it returns at once. */
static PyObject *
takes_limits(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device *device = parse_device(args, "i|O:takes_limits");
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    const struct ps_limit limit = {0};
    ps_handle stream, event;
    int i = device->index;
    ps_status of_device, of_stream, of_event;
    Py_BEGIN_ALLOW_THREADS
    of_device = backend->device_synchronize(backend, i, &limit);
    of_stream = backend->stream_create(backend, i, 0, &stream);
    if (of_stream == PS_SUCCESS) {
        of_stream = backend->stream_synchronize(backend, i, stream, &limit);
        backend->stream_destroy(backend, i, stream);
    }
    of_event = backend->event_create(backend, i, 0, &event);
    if (of_event == PS_SUCCESS) {
        of_event = backend->event_synchronize(backend, i, event, &limit);
        backend->event_destroy(backend, i, event);
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("{sNsNsN}", "device_synchronize",
                         PyBool_FromLong(of_device != PS_ERROR_NOT_SUPPORTED),
                         "stream_synchronize",
                         PyBool_FromLong(of_stream != PS_ERROR_NOT_SUPPORTED),
                         "event_synchronize",
                         PyBool_FromLong(of_event != PS_ERROR_NOT_SUPPORTED));
}

PyMethodDef backend_functions[] = {
    FUNCTION(
        "register_backends", register_backends, METH_VARARGS,
        "cpus, emulated, memory, per_thread, /",
        "Register the backends of this library, once in a process.\n\n"
        "cpus: the number of devices that the CPU engine shows; emulated: "
        "the number of CUDA\ndevices that it stands in for, 0 for real "
        "ones; memory: the bytes of each of these, 0\nfor its share of "
        "the machine's memory; per_thread: whether each thread's default "
        "stream is\none of its own."),
    FUNCTION(
        "register_backend", register_backend, METH_FASTCALL | METH_KEYWORDS,
        "capsule, faults=None",
        "Register a backend: the table that a capsule named \"" PS_CAPSULE_NAME
        "\" points to (see <pystreams/backend.h>).\n\n"
        "faults is None or a capsule named \"" PS_FAULTS_CAPSULE_NAME
        "\", with which\nthe device's tests make its work fail (see "
        "<pystreams/faults.h>).  The tables and\nthe capsules stay until "
        "the process ends.  Raises TypeError for anything "
        "else,\nValueError with the reason if the table is incomplete, or "
        "its name or device type\nis taken."),
    FUNCTION("backend_members", backend_members, METH_VARARGS, "type, /",
             "Return a dict of the contract's functions, and stream_fail: "
             "name -> whether the\nbackend has it."),
    FUNCTION("takes_limits", takes_limits, METH_VARARGS,
             "type, device=None, /",
             "Return a dict of the contract's functions that wait: name -> "
             "whether the backend\ncan end the wait at a limit."),
    {NULL},
};
