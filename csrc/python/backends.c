/* Which backends there are: those of this library, registered when the module
 * is first imported, and those that extension modules bring along.  Backends
 * outlive the module, so that importing it again finds them. */
#include "module.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../backends/backends.h"

/* A number of devices, at least so many, from the environment: 0 where the
 * variable is not set, -1 with ValueError where it is no such number. */
static int
devices_from_environment(const char *variable, int least)
{
    enum { MOST = 1024 };
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') {
        return 0;
    }
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < least || value > MOST) {
        PyErr_Format(PyExc_ValueError,
                     "%s must be a number of devices from %d to %d, got '%s'",
                     variable, least, MOST, text);
        return -1;
    }
    return (int)value;
}

/* A size of memory from the environment, at least a byte: 0 where the variable
 * is not set; -1 with ValueError where it is no such size. */
static int
memory_from_environment(const char *variable, uint64_t *nbytes)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    enum { UNITS = sizeof(units) / sizeof(units[0]) };
    const char *text = getenv(variable);
    *nbytes = 0;
    if (text == NULL || *text == '\0') {
        return 0;
    }
    char *end;
    errno = 0;
    unsigned long long count = strtoull(text, &end, 10);
    int unit = 0;
    while (unit < UNITS && strcmp(end, units[unit]) != 0) {
        unit++;
    }
    if (errno != 0 || !isdigit((unsigned char)*text) || unit == UNITS ||
        count == 0 || count > (uint64_t)PTRDIFF_MAX >> 10 * unit) {
        PyErr_Format(PyExc_ValueError,
                     "%s must be a number of bytes, KiB, MiB, GiB or TiB "
                     "above 0, such as '4GiB' or '65536', got '%s'",
                     variable, text);
        return -1;
    }
    *nbytes = (uint64_t)count << 10 * unit;
    return 0;
}

/* -1 with an exception, ValueError where the table is refused. */
static int
register_table(const struct ps_backend *table)
{
    struct ps_refusal refusal;
    ps_status status = table != NULL ? ps_runtime_register(table, &refusal)
                                     : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        PyErr_NoMemory();
    }
    else if (status != PS_SUCCESS) {
        PyErr_Format(PyExc_ValueError, "register_backend: %s", refusal.text);
    }
    return status == PS_SUCCESS ? 0 : -1;
}

int
register_backends(void)
{
    if (ps_runtime_count() > 0) {
        return 0;
    }
    if (ps_core_init() != PS_SUCCESS) {
        PyErr_NoMemory();
        return -1;
    }
    int cpus = devices_from_environment("PYSTREAMS_CPU_DEVICES", 1);
    int emulated = devices_from_environment("PYSTREAMS_EMULATE_CUDA", 0);
    uint64_t memory;
    if (cpus < 0 || emulated < 0 ||
        memory_from_environment("PYSTREAMS_EMULATE_MEMORY", &memory) < 0 ||
        register_table(ps_cpu_backend("cpu", PS_DEVICE_CPU,
                                      cpus > 0 ? cpus : 1, 0)) < 0) {
        return -1;
    }
    if (emulated > 0) {
        return register_table(
            ps_cpu_backend("cuda", PS_DEVICE_CUDA, emulated, memory));
    }
#ifdef PS_WITH_CUDA
    return register_table(&ps_cuda_backend);
#else
    return 0;
#endif
}

static PyObject *
register_backend(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, PS_CAPSULE_NAME)) {
        return PyErr_Format(PyExc_TypeError,
                            "register_backend() expects a capsule named "
                            "\"" PS_CAPSULE_NAME "\", but got %R",
                            capsule);
    }
    if (register_table(PyCapsule_GetPointer(capsule, PS_CAPSULE_NAME)) < 0) {
        return NULL;
    }
    /* The table may go with its capsule, so the capsule never goes. */
    Py_INCREF(capsule);
    Py_RETURN_NONE;
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
    return members;
}

PyMethodDef backend_functions[] = {
    FUNCTION("register_backend", register_backend, METH_O, "capsule, /",
             "Add a device type: that of the table that a capsule named\n"
             "\"" PS_CAPSULE_NAME
             "\" points to (see <pystreams/backend.h>).\n\n"
             "The table and the capsule stay until the process ends.  Raises "
             "TypeError for\nanything else, ValueError with the reason where "
             "the table is not whole, or its\nname or device type is taken."),
    FUNCTION("backend_members", backend_members, METH_VARARGS, "type, /",
             "Return a dict of the contract's functions: name -> whether the "
             "backend has it."),
    {NULL},
};
