/* Core's trace hook.  Core calls the hook on the thread that makes the traced
 * call, with or without the GIL held, and the hook calls one Python function,
 * `dispatch`.  If `dispatch` raises an exception, the traced call does not
 * raise it. */
#include "trace.h"

#include "../core/thread.h"

#include "errors.h"
#include "races.h"
#include "timeline.h"

static PyObject *dispatch;
/* The number of subscribers to each kind of call. */
static atomic_int wanted[PS_TRACE_KINDS];
/* The kinds of calls that the race detector and the timeline need, as bit
 * masks. */
static atomic_uint for_races, for_timeline;

/* Report that `dispatch` could not be called, because memory is short. */
static void
report_no_memory(PyObject *function)
{
    struct saved_exception saved = exception_save();
    PyErr_NoMemory();
    PyErr_WriteUnraisable(function);
    exception_restore(saved);
}

static void
call_dispatch(PyObject *function, enum ps_trace_kind kind,
              struct ps_device *device, uintptr_t first, uintptr_t second)
{
    struct saved_exception saved = exception_save();
    PyObject *result = PyObject_CallFunction(
        function, "iiiKK", (int)kind, device->runtime->backend->device_type,
        device->index, (unsigned long long)first, (unsigned long long)second);
    if (result == NULL) {
        report_unless_interrupt(function);
    }
    Py_XDECREF(result);
    exception_restore(saved);
}

void
trace_hook(enum ps_trace_kind kind, struct ps_device *device, uintptr_t first,
           uintptr_t second)
{
    if (atomic_load(&for_races) >> kind & 1) {
        races_trace(kind, device, first);
    }
    if (atomic_load(&for_timeline) >> kind & 1) {
        timeline_trace(kind, device, first, second);
    }
    /* Do not trace the calls that a callback makes itself. */
    if (atomic_load(&wanted[kind]) == 0 ||
        ps_thread_word(PS_THREAD_TRACING) != NULL || is_finalizing()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *function = reference_get(variables_owner(), &dispatch);
    if (ps_thread_set_word(PS_THREAD_TRACING, &dispatch) == PS_SUCCESS) {
        call_dispatch(function, kind, device, first, second);
        ps_thread_set_word(PS_THREAD_TRACING, NULL);
    }
    else {
        report_no_memory(function);
    }
    Py_DECREF(function);
    PyGILState_Release(gil);
}

/* Add `change` to the number of subscribers of each kind in the bit mask, and
 * update the kinds that core traces. */
static void
set_kinds(unsigned kinds, int change)
{
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    unsigned all = atomic_load(&for_races) | atomic_load(&for_timeline);
    for (unsigned kind = 0; kind < PS_TRACE_KINDS; kind++) {
        atomic_fetch_add(&wanted[kind], kinds >> kind & 1 ? change : 0);
        all |= atomic_load(&wanted[kind]) > 0 ? 1u << kind : 0;
    }
    atomic_store(&ps_trace_kinds, all);
    Py_END_CRITICAL_SECTION();
}

void
trace_races(bool streams, bool waits)
{
    atomic_store(&for_races,
                 (unsigned)streams << PS_TRACE_STREAM_CREATION |
                     (unsigned)waits << PS_TRACE_EVENT_WAIT |
                     (unsigned)waits << PS_TRACE_EVENT_SYNCHRONIZATION |
                     (unsigned)waits << PS_TRACE_STREAM_SYNCHRONIZATION |
                     (unsigned)waits << PS_TRACE_DEVICE_SYNCHRONIZATION);
    set_kinds(0, 0);
}

void
trace_timeline(bool on)
{
    atomic_store(&for_timeline,
                 (unsigned)on << PS_TRACE_EVENT_RECORD |
                     (unsigned)on << PS_TRACE_EVENT_WAIT |
                     (unsigned)on << PS_TRACE_STREAM_CREATION |
                     (unsigned)on << PS_TRACE_MEMORY_ALLOCATION |
                     (unsigned)on << PS_TRACE_MEMORY_DEALLOCATION);
    set_kinds(0, 0);
}

static PyObject *
set_trace(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function;
    unsigned kinds;
    int change;
    if (!PyArg_ParseTuple(args, "OIi:set_trace", &function, &kinds, &change)) {
        return NULL;
    }
    reference_set(variables_owner(), &dispatch, Py_NewRef(function));
    set_kinds(kinds, change);
    Py_RETURN_NONE;
}

static PyObject *
activate_gpu_trace(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return import_call("pystreams.cuda._gpu_trace", "_activate", "()");
}

static PyObject *
deactivate_gpu_trace(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return import_call("pystreams.cuda._gpu_trace", "_deactivate", "()");
}

PyMethodDef trace_functions[] = {
    FUNCTION("set_trace", set_trace, METH_VARARGS,
             "dispatch, kinds, change, /",
             "Add change to the number of subscribers of each kind in the bit "
             "mask kinds, and call\ndispatch(kind, device type, device index, "
             "first, second) for events of kinds that have\nsubscribers."),
    FUNCTION("_activate_gpu_trace", activate_gpu_trace, METH_NOARGS, "/",
             "Start calling the callbacks registered with "
             "pystreams.cuda._gpu_trace."),
    FUNCTION("_deactivate_gpu_trace", deactivate_gpu_trace, METH_NOARGS, "/",
             "Stop calling the callbacks registered with "
             "pystreams.cuda._gpu_trace."),
    {NULL},
};
