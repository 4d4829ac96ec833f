/* The module's functions that begin and end a schedule on the CPU engines, and
 * the hooks that the engines call while it is explored. */
#include "schedules.h"

#include <pthread.h>

#include "../core/thread.h"

#include "backends.h"
#include "buffer.h"
#include "errors.h"
#include "explain.h"
#include "late.h"
#include "races.h"
#include "stream.h"
#include "submit.h"

/* ---- Hooks ---- */

/* The function in schedules.py that is called after operations were queued.
 * Its arguments include the numbers of the operations and their stream.
 * variables_owner() guards this variable. */
static PyObject *queued_function;

static bool
is_internal(void)
{
    return ps_thread_word(PS_THREAD_OWN) != NULL || callable_has_ended();
}

/* Returns the name of a stream as stream_name_at does; None if there is no
 * such device. */
static PyObject *
name_of(int device_type, int index, ps_handle stream)
{
    struct ps_runtime *runtime = find_runtime(device_type);
    struct ps_device *device = NULL;
    if (runtime != NULL) {
        ps_runtime_device(runtime, index, &device);
    }
    PyErr_Clear();
    return device != NULL ? stream_name_at(device, stream)
                          : Py_NewRef(Py_None);
}

void
schedules_note(PyObject *arguments)
{
    PyObject *function = reference_get(variables_owner(), &queued_function);
    if (function != NULL &&
        (arguments == NULL ||
         drop_result(PyObject_CallObject(function, arguments)) < 0)) {
        report_unless_interrupt(function);
    }
    Py_XDECREF(function);
}

static void
queued(uint64_t first, uint64_t last, int device_type, int device,
       ps_handle stream)
{
    if (is_finalizing()) {
        return;
    }
    struct hook hook = hook_begin();
    struct saved_exception saved = exception_save();
    PyObject *arguments = Py_BuildValue(
        "(KKiKN)", (unsigned long long)first, (unsigned long long)last, device,
        (unsigned long long)stream, name_of(device_type, device, stream));
    if (hook.late == NULL) {
        schedules_note(arguments);
    }
    else {
        if (hook.late->notes == NULL) {
            hook.late->notes = PyList_New(0);
        }
        if (arguments == NULL || hook.late->notes == NULL ||
            PyList_Append(hook.late->notes, arguments) < 0) {
            /* If memory runs out, a report does not say where the operation
             * was queued. */
            PyErr_Clear();
        }
    }
    Py_XDECREF(arguments);
    exception_restore(saved);
    hook_end(hook);
}

/* ---- Waits ---- */

PyObject *
raise_deadlock(const char *operation, const struct work *work,
               PyObject *object)
{
    PyObject *text = explanation_of("explain_deadlock", work, object);
    PyObject *error = NULL;
    if (text != NULL) {
        error = PyObject_CallFunction(
            PyExc_RuntimeError, "N",
            PyUnicode_FromFormat("%s: the wait can never end\n%U", operation,
                                 text));
    }
    if (error != NULL &&
        PyObject_SetAttrString(error, "_is_deadlock", Py_True) == 0) {
        PyErr_SetObject(PyExc_RuntimeError, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(text);
    return NULL;
}

ps_status
advance_schedule(bool (*is_done)(void *object), void *object, int64_t *left_ns)
{
    enum ps_progress progress = PS_RAN;
    while (ps_cpu_schedules.is_on() && !is_done(object) &&
           progress == PS_RAN) {
        WITHOUT_GIL(progress = ps_cpu_schedules.advance(left_ns));
    }
    return progress == PS_EXPIRED ? PS_ERROR_TIMED_OUT
           : progress == PS_STUCK ? PS_ERROR_DEADLOCK
                                  : PS_SUCCESS;
}

/* ---- Functions ---- */

/* Held while a thread begins or ends a schedule.  The GIL does not suffice,
 * because that thread releases it meanwhile. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static int
check_off(void)
{
    return ps_cpu_schedules.is_on()
               ? refuse(PyExc_RuntimeError,
                        "a schedule is explored already: the blocks of "
                        "explore() and replay() cannot be nested")
               : 0;
}

/* Returns the name of a backend that the program has used and that is not a
 * CPU engine; NULL if there is none. */
static const char *
foreign_backend(void)
{
    const char *name = NULL;
    for (int i = 0; i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        if (ps_runtime_is_used(runtime) &&
            ps_cpu_schedules.table(runtime->registered, false) == NULL) {
            name = runtime->registered->name;
        }
    }
    return name;
}

static int
parse_numbers(PyObject *list, struct ps_schedule *schedule)
{
    PyObject *items = PySequence_Fast(list, "expected a sequence");
    if (items == NULL) {
        return -1;
    }
    size_t count = (size_t)PySequence_Fast_GET_SIZE(items);
    uint64_t *numbers = PyMem_Calloc(count + 1, sizeof(*numbers));
    if (numbers == NULL) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; numbers != NULL && i < count && !PyErr_Occurred();
         i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(
            PySequence_Fast_GET_ITEM(items, (Py_ssize_t)i));
    }
    Py_DECREF(items);
    schedule->numbers = numbers;
    schedule->count = count;
    return PyErr_Occurred() ? -1 : 0;
}

static int
begin(const struct ps_schedule *schedule, PyObject *function)
{
    char pending[256];
    ps_status status;
    const char *name = foreign_backend();
    if (name != NULL) {
        return refuse(PyExc_RuntimeError,
                      "schedules are explored on the CPU engine, as the cpu "
                      "device and as emulated CUDA, but this process uses the "
                      "%s backend; set PYSTREAMS_EMULATE_CUDA to run CUDA "
                      "programs on the CPU engine",
                      name);
    }
    if (check_off() < 0) {
        return -1;
    }
    /* Finish earlier frees now, so that their work does not become part of the
     * schedule. */
    for (int i = 0; i < ps_runtime_count(); i++) {
        memory_settle(ps_runtime_at(i));
    }
    WITHOUT_GIL(status = ps_cpu_schedules.begin(schedule, pending));
    if (status == PS_ERROR_NOT_READY) {
        return refuse(PyExc_RuntimeError,
                      "a schedule begins when all devices are idle, but %s",
                      pending);
    }
    if (status != PS_SUCCESS) {
        PyErr_NoMemory();
        return -1;
    }
    reference_set(variables_owner(), &queued_function, Py_NewRef(function));
    install_tables();
    atomic_store(&ps_memory_poison, PS_SCHEDULE_POISON);
    return 0;
}

static PyObject *
schedule_begin(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *numbers, *function;
    int strategy, continues;
    unsigned long long seed, steps;
    struct ps_schedule schedule = {
        .is_internal = is_internal,
        .is_callable = has_turn,
    };
    if (!PyArg_ParseTuple(args, "iKIKOOp:schedule_begin", &strategy, &seed,
                          &schedule.changes, &steps, &numbers, &function,
                          &continues)) {
        return NULL;
    }
    schedule.continues = continues != 0;
    schedule.strategy = (enum ps_strategy)strategy;
    schedule.noted = schedule.strategy == PS_GIVEN;
    schedule.seed = seed;
    schedule.steps = steps > 0 ? steps : 1;
    schedule.logged = function != Py_None;
    schedule.queued = schedule.logged ? queued : NULL;
    /* Check this before `changing` is locked.  A thread that is ending a
     * schedule holds this mutex while it waits for callables, and the calling
     * thread may be running one of them. */
    int result = check_off();
    if (result == 0) {
        result = parse_numbers(numbers, &schedule);
    }
    if (result == 0) {
        WITHOUT_GIL(pthread_mutex_lock(&changing));
        result = begin(&schedule, function);
        pthread_mutex_unlock(&changing);
    }
    PyMem_Free((void *)schedule.numbers);
    return none_unless_raised(result);
}

static PyObject *
list_of(const struct ps_schedule_result *result)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < result->logged; i++) {
        const struct ps_schedule_entry *entry = &result->log[i];
        list = list_with(
            list, Py_BuildValue(
                      "(KssiKIKLO)", (unsigned long long)entry->number,
                      entry->operation, entry->device_type, entry->device,
                      (unsigned long long)entry->handle, entry->stream,
                      (unsigned long long)entry->step, (long long)entry->time,
                      entry->overtaken ? Py_True : Py_False));
    }
    return list;
}

/* Undo what begin() has done.  Call this when the engines have ended the
 * schedule. */
static void
forget_schedule(void)
{
    install_tables();
    atomic_store(&ps_memory_poison, -1);
    reference_set(variables_owner(), &queued_function, NULL);
}

/* End the schedule.  Returns -1 with RuntimeError if it has not ended after
 * PATIENCE_S seconds. */
static int
end(bool drop, struct ps_schedule_result *result)
{
    enum { PATIENCE_S = 10 };
    ps_status status;
    WITHOUT_GIL(status = ps_cpu_schedules.end(
                    drop, PATIENCE_S * INT64_C(1000000000), result));
    if (status != PS_SUCCESS) {
        return refuse(PyExc_RuntimeError,
                      "the schedule cannot end: a callable still ran after "
                      "%d s; have it return, which the next schedule waits "
                      "for",
                      PATIENCE_S);
    }
    forget_schedule();
    return 0;
}

static PyObject *
notes_of(const struct ps_schedule_result *result)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < result->noted; i++) {
        const struct ps_note *note = &result->notes[i];
        list = list_with(list,
                         Py_BuildValue("(iKKK)", (int)note->kind,
                                       (unsigned long long)note->values[0],
                                       (unsigned long long)note->values[1],
                                       (unsigned long long)note->values[2]));
    }
    return result->mixed && list != NULL
               ? list_with(list,
                           Py_BuildValue("(iiii)", PS_NOTE_LOOSE, 0, 0, 0))
               : list;
}

static PyObject *
schedule_end(PyObject *Py_UNUSED(module), PyObject *args)
{
    int drop;
    struct ps_schedule_result result;
    if (!PyArg_ParseTuple(args, "p:schedule_end", &drop)) {
        return NULL;
    }
    WITHOUT_GIL(pthread_mutex_lock(&changing));
    int ended = end(drop, &result);
    pthread_mutex_unlock(&changing);
    if (ended < 0) {
        return NULL;
    }
    PyObject *list = list_of(&result), *notes = notes_of(&result);
    free(result.log);
    free(result.notes);
    if (list == NULL || notes == NULL) {
        Py_XDECREF(list);
        Py_XDECREF(notes);
        return NULL;
    }
    return Py_BuildValue("(KKKnNN)", (unsigned long long)result.operations,
                         (unsigned long long)result.steps,
                         (unsigned long long)result.order,
                         (Py_ssize_t)result.followed, list, notes);
}

static PyObject *
schedule_forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    /* A thread of the parent may have held the mutex at the fork. */
    changing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    forget_schedule();
    Py_RETURN_NONE;
}

static PyObject *
schedule_is_on(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(ps_cpu_schedules.is_on());
}

static PyObject *
schedule_poll(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    poll_schedule();
    Py_RETURN_NONE;
}

static PyObject *
schedule_hold(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    WITHOUT_GIL(ps_cpu_schedules.hold());
    Py_RETURN_NONE;
}

static PyObject *
schedule_released(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    WITHOUT_GIL(ps_cpu_schedules.released());
    Py_RETURN_NONE;
}

PyMethodDef schedules_functions[] = {
    FUNCTION("schedule_begin", schedule_begin, METH_VARARGS,
             "strategy, seed, changes, steps, numbers, queued, continues, /",
             "Have the CPU engines run work as a schedule says.\n\n"
             "queued is None or, to keep a log, is called with the first and "
             "the last number of\noperations that were queued, and the "
             "device_index, handle and name of their stream; the\nname may be "
             "None.  continues: virtual time goes on where the last schedule "
             "ended.\nRaises RuntimeError if a device is busy or belongs to "
             "no CPU engine."),
    FUNCTION("schedule_end", schedule_end, METH_VARARGS, "drop, /",
             "Run or drop the remaining work, and end the schedule.\n\n"
             "Returns the numbers of operations and of steps, a hash of the "
             "order, the number of given\nchoices that were followed, the "
             "log: a tuple (number, operation, device_type, device,\nhandle, "
             "stream, step, time, overtaken) for each, with step 0 if it was "
             "dropped; and the\nnotes."),
    FUNCTION(
        "schedule_forked", schedule_forked, METH_NOARGS, "/",
        "Forget the schedule of the parent process, in a forked child.\n\n"
        "The engines of a child begin without one."),
    FUNCTION("schedule_is_on", schedule_is_on, METH_NOARGS, "/",
             "Return whether a schedule is explored."),
    FUNCTION(
        "schedule_poll", schedule_poll, METH_NOARGS, "/",
        "Let the schedule run work, as a query that finds work pending does."),
    FUNCTION("schedule_hold", schedule_hold, METH_NOARGS, "/",
             "Sleep in a callable that holds its stream, until "
             "schedule_released() or for a while.\n\n"
             "The schedule does not wait for the callable meanwhile.  Does "
             "nothing if no schedule is explored."),
    FUNCTION("schedule_released", schedule_released, METH_NOARGS, "/",
             "Wake the callables that hold a stream, and let them go first."),
    {NULL},
};
