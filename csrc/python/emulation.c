/* The module's functions for emulations of CUDA devices within a process.
 * pystreams.testing builds emulated_cuda() on them. */
#include "module.h"

#include "../core/emulation.h"

#include "../backends/backends.h"
#include "backends.h"
#include "errors.h"
#include "schedules.h"

static struct ps_runtime *
make_emulation(uint64_t memory)
{
    /* An engine that an earlier call has created, but for which no runtime
     * could be allocated.  Engines are never freed, so it is used now. */
    static const struct ps_backend *_Atomic spare;
    struct ps_runtime *runtime;
    const struct ps_backend *backend = atomic_exchange(&spare, NULL);
    if (backend == NULL || !ps_cpu_renew(backend, memory)) {
        backend = ps_cpu_backend("cuda", PS_DEVICE_CUDA, PS_EMULATED_DEVICES,
                                 memory);
    }
    if (backend == NULL) {
        return NULL;
    }
    if (ps_emulation_create(backend, &ps_cpu_faults, &runtime) != PS_SUCCESS) {
        atomic_store(&spare, backend);
        return NULL;
    }
    return runtime;
}

/* Returns an emulation with `memory` bytes on each device: one that can be
 * reused, or a new one.  Returns NULL if that fails.  Called with the GIL
 * released. */
static struct ps_runtime *
find_emulation(uint64_t memory)
{
    struct ps_runtime *runtime;
    for (int i = 0; i < ps_runtime_count(); i++) {
        runtime = ps_runtime_at(i);
        if (!ps_emulation_reuse(runtime)) {
            continue;
        }
        if (ps_cpu_renew(runtime->registered, memory)) {
            return runtime;
        }
        atomic_store(&runtime->entered, false);
    }
    return ps_runtime_count() < PS_MAX_RUNTIMES ? make_emulation(memory)
                                                : NULL;
}

static PyObject *
emulation_enter(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *number;
    unsigned long long memory;
    struct ps_runtime *runtime;
    int overflow;
    if (!PyArg_ParseTuple(args, "O!K:emulation_enter", &PyLong_Type, &number,
                          &memory)) {
        return NULL;
    }
    long devices = PyLong_AsLongAndOverflow(number, &overflow);
    if (devices < 1 || devices > PS_EMULATED_DEVICES) {
        return PyErr_Format(PyExc_ValueError,
                            "emulated_cuda() expects an int from 1 to %d for "
                            "devices, but got %R",
                            PS_EMULATED_DEVICES, number);
    }
    if (ps_cpu_schedules.is_on()) {
        return PyErr_Format(PyExc_RuntimeError,
                            "emulated_cuda() was called while a schedule is "
                            "explored; enter it first, and explore within");
    }
    WITHOUT_GIL(runtime = find_emulation(memory));
    if (runtime == NULL && ps_runtime_count() == PS_MAX_RUNTIMES) {
        /* The last objects of an earlier emulation may be in reference cycles,
         * so free those and try again. */
        PyGC_Collect();
        WITHOUT_GIL(runtime = find_emulation(memory));
    }
    if (runtime == NULL && ps_runtime_count() < PS_MAX_RUNTIMES) {
        return PyErr_NoMemory();
    }
    if (runtime == NULL) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "emulated_cuda() has no place left: streams, events, graphs or "
            "Buffers of earlier emulations are still alive; drop them");
    }
    struct ps_runtime *previous = ps_runtime_find(PS_DEVICE_CUDA);
    PyObject *entered = Py_BuildValue("(iii)", runtime->index,
                                      previous != NULL ? previous->index : -1,
                                      atomic_load(&module_state.default_type));
    if (entered == NULL) {
        atomic_store(&runtime->entered, false);
        return NULL;
    }
    atomic_store(&module_state.default_type, -1);
    ps_emulation_show(runtime, (int)devices, previous);
    install_tables();
    return entered;
}

static PyObject *
emulation_current(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct ps_runtime *runtime = ps_runtime_find(PS_DEVICE_CUDA);
    return PyLong_FromLong(
        runtime != NULL && runtime->emulation ? runtime->index : -1);
}

static PyObject *
emulation_leave(PyObject *Py_UNUSED(module), PyObject *args)
{
    int index, previous, type;
    if (!PyArg_ParseTuple(args, "iii:emulation_leave", &index, &previous,
                          &type)) {
        return NULL;
    }
    struct ps_runtime *runtime = ps_runtime_find(PS_DEVICE_CUDA);
    if (runtime == NULL || runtime->index != index) {
        return PyErr_Format(PyExc_RuntimeError,
                            "emulations of emulated_cuda() must be left in "
                            "the reverse of the order of entering them");
    }
    atomic_store(&module_state.default_type, type);
    WITHOUT_GIL(ps_emulation_leave(
        runtime, previous >= 0 ? ps_runtime_at(previous) : NULL));
    report_cleanup(runtime, NULL, "ending an emulation",
                   ps_runtime_take_failure(runtime));
    Py_RETURN_NONE;
}

PyMethodDef emulation_functions[] = {
    FUNCTION("emulation_enter", emulation_enter, METH_VARARGS,
             "devices, memory, /",
             "Have the CPU engine stand in for so many CUDA devices, each "
             "with so many bytes.\n\n"
             "Return the arguments of emulation_leave."),
    FUNCTION("emulation_current", emulation_current, METH_NOARGS, "/",
             "Return the number of the latest emulation that was entered and "
             "not left; -1 if there\nis none."),
    FUNCTION("emulation_leave", emulation_leave, METH_VARARGS,
             "emulation, previous, type, /",
             "Put back what emulation_enter replaced."),
    {NULL},
};
