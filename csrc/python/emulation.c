/* The module's functions for emulations of CUDA devices within a process.
 * pystreams.testing builds emulated_cuda() on them. */
#include "module.h"

#include <string.h>

#include "../core/emulation.h"

#include "../backends/backends.h"
#include "backends.h"
#include "current.h"
#include "errors.h"
#include "schedules.h"

/* The emulations that have been entered and not left, in the order of entry.
 * The end of an emulation restores two things: it unhides `previous`, the
 * runtime that the emulation hides, and it makes `type` the default device
 * type again. */
static struct entry {
    struct ps_runtime *runtime;
    struct ps_runtime *previous;
    int type;
} entries[PS_MAX_RUNTIMES];
static int entry_count;

static struct ps_runtime *
make_emulation(uint64_t memory)
{
    /* An engine that an earlier call created but could not use, because there
     * was no memory for the runtime.  Engines are never freed, so a later call
     * uses this one. */
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

/* Returns an emulation with `memory` bytes on each device.  Reuses an
 * emulation that has been left, or creates a new one.  Returns NULL on
 * failure.  Called with the GIL released. */
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
            ps_emulation_reset(runtime);
            return runtime;
        }
        atomic_store(&runtime->entered, false);
    }
    return ps_runtime_count() < PS_MAX_RUNTIMES ? make_emulation(memory)
                                                : NULL;
}

/* Make "cuda" mean the emulation, and hide the runtime that "cuda" meant
 * before. */
static void
enter(struct ps_runtime *runtime, int devices)
{
    /* Do this in one critical section, so that each emulation hides the
     * runtime that was shown just before. */
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    struct ps_runtime *previous = ps_runtime_find(PS_DEVICE_CUDA);
    ps_emulation_show(runtime, devices, previous);
    entries[entry_count++] =
        (struct entry){runtime, previous, replace_default_type(-1)};
    Py_END_CRITICAL_SECTION();
}

/* End the emulation with this index, and return its runtime.  If it is the
 * latest, "cuda" again means what it meant before the emulation.  Otherwise,
 * the emulation that was entered next will restore that meaning when it ends.
 * *latest tells whether the emulation was the latest.  Returns NULL if no
 * emulation with this index is entered. */
static struct ps_runtime *
leave(int index, bool *latest)
{
    struct ps_runtime *runtime = NULL;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    int i = entry_count;
    while (--i >= 0 && entries[i].runtime->index != index) {
    }
    *latest = i == entry_count - 1;
    if (i >= 0) {
        struct entry left = entries[i];
        runtime = left.runtime;
        entry_count--;
        if (*latest) {
            ps_emulation_hide(runtime, left.previous);
            replace_default_type(left.type);
        }
        else {
            memmove(&entries[i], &entries[i + 1],
                    (size_t)(entry_count - i) * sizeof(*entries));
            entries[i].previous = left.previous;
            entries[i].type = left.type;
        }
    }
    Py_END_CRITICAL_SECTION();
    return runtime;
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
        /* The last objects of an earlier emulation may be in reference cycles.
         * So free such cycles, and try again. */
        PyGC_Collect();
        WITHOUT_GIL(runtime = find_emulation(memory));
    }
    if (runtime == NULL && ps_runtime_count() < PS_MAX_RUNTIMES) {
        return PyErr_NoMemory();
    }
    if (runtime == NULL) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "emulated_cuda() has no place left: each earlier emulation is "
            "still entered, or streams, events, graphs or Buffers of it are "
            "still alive; leave it, or drop them");
    }
    enter(runtime, (int)devices);
    install_tables();
    /* This cannot fail, because CPython allocates no object for an int this
     * small. */
    return PyLong_FromLong(runtime->index);
}

static PyObject *
emulation_leave(PyObject *Py_UNUSED(module), PyObject *number)
{
    bool latest;
    int index = (int)PyLong_AsLong(number);
    if (index == -1 && PyErr_Occurred()) {
        return NULL;
    }
    struct ps_runtime *runtime = leave(index, &latest);
    if (runtime == NULL) {
        return PyErr_Format(PyExc_ValueError,
                            "emulation_leave() expects an emulation that is "
                            "entered, but got %d",
                            index);
    }
    leave_current_streams(runtime);
    WITHOUT_GIL(ps_emulation_leave(runtime));
    report_cleanup(runtime, NULL, "ending an emulation",
                   ps_runtime_take_failure(runtime));
    if (!latest) {
        return PyErr_Format(
            PyExc_RuntimeError,
            "emulated_cuda() was left before an emulation that was entered "
            "later; it has ended, and the later one goes on; leave emulations "
            "in the reverse of the order of entering them, and use them in "
            "only one thread or task at a time");
    }
    Py_RETURN_NONE;
}

PyMethodDef emulation_functions[] = {
    FUNCTION("emulation_enter", emulation_enter, METH_VARARGS,
             "devices, memory, /",
             "Have the CPU engine stand in for so many CUDA devices, each "
             "with so many bytes.\n\n"
             "Return the argument of emulation_leave."),
    /* This is METH_O, so that a call allocates no tuple for the argument.  If
     * such an allocation failed, the emulation would not be ended. */
    FUNCTION("emulation_leave", emulation_leave, METH_O, "emulation, /",
             "Put back what emulation_enter replaced.\n\n"
             "Then raise RuntimeError if a later emulation is still entered."),
    {NULL},
};
