/* The race detector's Python side: places in programs, and reports of races.
 * pystreams/races.py turns the reports into words.
 *
 * Core calls backends with or without the GIL, so the hooks that need the GIL
 * acquire it. */
#include "races.h"

#include <string.h>

#include "../core/notify.h"

#include "array_interface.h"
#include "backends.h"
#include "buffer.h"
#include "captured.h"
#include "dlpack.h"
#include "errors.h"
#include "event.h"
#include "future.h"
#include "late.h"
#include "places.h"
#include "schedules.h"
#include "stream.h"
#include "submit.h"
#include "trace.h"
#include "waiter.h"

struct ps_actor_name
actor_name(const struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    const struct ps_stream *owned =
        stream->shared != NULL ? stream->shared : stream;
    return (struct ps_actor_name){device->runtime->index, device->index,
                                  stream->identity, owned->blocking};
}

ps_handle
actor_stream(struct ps_device *device, ps_handle handle)
{
    const struct ps_backend *backend = device->runtime->backend;
    if (handle == PS_STREAM_PER_THREAD && backend->thread_stream != NULL) {
        backend->thread_stream(backend, device->index, &handle);
    }
    return handle;
}

/* ---- Hooks ---- */

/* The function in races.py that reports a race.  variables_owner() guards this
 * variable. */
static PyObject *report;

struct description {
    struct ps_description base;
    /* The code object of the innermost function of the program; NULL if no
     * such function is running. */
    PyCodeObject *code;
    int instruction;
    unsigned long thread;
    /* Whether the access was made by a callable that was passed to
     * Stream.submit. */
    bool inside;
    /* The place at which that callable was submitted.  NULL if `inside` is
     * false, or if out of memory. */
    PyObject *submitted;
    char operation[32];
};

static struct ps_description *
describe(const char *operation, bool inside)
{
    struct description *description = calloc(1, sizeof(*description));
    if (description == NULL) {
        return NULL;
    }
    struct hook hook = hook_begin();
    atomic_init(&description->base.refs, 1);
    strncpy(description->operation, operation,
            sizeof(description->operation) - 1);
    description->thread = PyThread_get_thread_ident();
    description->inside = inside;
    struct saved_exception saved = exception_save();
    description->code = find_place(&description->instruction);
    description->submitted = inside ? callable_place() : NULL;
    /* If memory runs out, a place is missing from the description. */
    PyErr_Clear();
    exception_restore(saved);
    hook_end(hook);
    return &description->base;
}

void
races_forget(struct ps_description *base)
{
    struct description *description = (struct description *)base;
    if (!is_finalizing()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        Py_XDECREF(description->code);
        Py_XDECREF(description->submitted);
        PyGILState_Release(gil);
    }
    free(description);
}

static void
forget(struct ps_description *description)
{
    struct late *late = ps_thread_word(PS_THREAD_LATE);
    if (late == NULL) {
        races_forget(description);
    }
    else {
        /* Code objects may have weak references with callbacks. */
        description->next = late->forgotten;
        late->forgotten = description;
    }
}

PyObject *
name_of_actor(const struct ps_actor_name *actor)
{
    struct ps_device *device;
    return ps_runtime_device(ps_runtime_at(actor->runtime), actor->device,
                             &device) == PS_SUCCESS
               ? stream_name_at(device, actor->stream)
               : Py_NewRef(Py_None);
}

/* Returns a tuple from which _operation() in races.py makes a races.Operation;
 * NULL with an exception. */
static PyObject *
operation_of(const struct ps_operation *operation)
{
    const struct ps_actor_name *stream = operation->stream;
    const struct description *d =
        (const struct description *)operation->description;
    PyObject *where = place_of(d->code, d->instruction);
    PyObject *named = Py_NewRef(Py_None), *name = Py_NewRef(Py_None);
    if (stream != NULL) {
        const struct ps_backend *backend =
            ps_runtime_at(stream->runtime)->registered;
        Py_SETREF(named, Py_BuildValue("(siK)", backend->name, stream->device,
                                       (unsigned long long)stream->stream));
        Py_SETREF(name, name_of_actor(stream));
    }
    return Py_BuildValue("(sNkiiNNO)", d->operation, named, d->thread,
                         operation->writes, d->inside, where, name,
                         d->submitted != NULL ? d->submitted : Py_None);
}

ps_status
races_report(PyObject *arguments)
{
    PyObject *function = reference_get(variables_owner(), &report);
    PyObject *result = NULL;
    if (arguments != NULL && function != NULL) {
        result = PyObject_CallObject(function, arguments);
    }
    Py_XDECREF(function);
    Py_XDECREF(arguments);
    return drop_result(result) == 0 ? PS_SUCCESS : PS_RAISED;
}

/* Returns the arguments of _report() in races.py; NULL with an exception. */
static PyObject *
report_arguments(const struct ps_race *race)
{
    PyObject *first = operation_of(&race->first);
    PyObject *second = operation_of(&race->second);
    PyObject *point = race->number != 0
                          ? Py_BuildValue("(iK)", race->actor,
                                          (unsigned long long)race->number)
                          : Py_NewRef(Py_None);
    PyObject *arguments = NULL;
    if (first != NULL && second != NULL && point != NULL) {
        arguments = Py_BuildValue(
            "(OOKKiO)", first, second, (unsigned long long)race->begin,
            (unsigned long long)race->nbytes, (int)race->freed, point);
    }
    Py_XDECREF(point);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return arguments;
}

static ps_status
found(const struct ps_race *race)
{
    struct hook hook = hook_begin();
    ps_status status = PS_SUCCESS;
    if (hook.late == NULL || !late_knows(hook.late, race)) {
        struct saved_exception saved = exception_save();
        PyObject *arguments = report_arguments(race);
        status = hook.late != NULL ? late_report(hook.late, race, arguments)
                                   : races_report(arguments);
        if (!PyErr_Occurred()) {
            exception_restore(saved);
        }
    }
    hook_end(hook);
    return status;
}

/* ---- Redundant waits ---- */

/* The number of waits at one place of the program, and whether any of them has
 * ordered operations that were not ordered before. */
struct tally {
    long long count;
    bool useful;
};

/* The kinds of waits that are counted. */
static const char *const waits[] = {"wait", "synchronize"};
enum { WAITS = 2 };

/* Indexed by the number of the place, and then like `waits`.
 * variables_owner() guards the array. */
static struct tally (*tallies)[WAITS];
static Py_ssize_t tally_room;
static atomic_bool counting;

static void
forget_waits(void)
{
    void *forgotten;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    forgotten = tallies;
    tallies = NULL;
    tally_room = 0;
    Py_END_CRITICAL_SECTION();
    free(forgotten);
}

/* Returns the tallies of a place; NULL if out of memory. */
static struct tally *
tally_of_locked(Py_ssize_t place)
{
    if (place >= tally_room) {
        Py_ssize_t room = place < 32 ? 64 : 2 * place;
        void *grown = realloc(tallies, (size_t)room * sizeof(*tallies));
        if (grown == NULL) {
            return NULL;
        }
        tallies = grown;
        memset(&tallies[tally_room], 0,
               (size_t)(room - tally_room) * sizeof(*tallies));
        tally_room = room;
    }
    return tallies[place];
}

/* Count a wait.  If memory runs out, the wait is not counted. */
static void
note_wait(const char *operation, bool useful)
{
    if (!counting || ps_thread_word(PS_THREAD_IMPLIED) != NULL) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_ssize_t place = place_number();
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    struct tally *tally =
        counting && place >= 0 ? tally_of_locked(place) : NULL;
    if (tally != NULL) {
        int i = strcmp(operation, waits[0]) != 0;
        tally[i].count++;
        tally[i].useful |= useful;
    }
    Py_END_CRITICAL_SECTION();
    PyGILState_Release(gil);
}

void
wait_raised(void)
{
    note_wait(waits[1], true);
}

static bool
is_internal(void)
{
    return ps_thread_word(PS_THREAD_OWN) != NULL ||
           ps_thread_word(PS_THREAD_UNAWARE) != NULL || is_finalizing();
}

static bool
is_awaited(void)
{
    return ps_thread_word(PS_THREAD_IMPLIED) != NULL;
}

static const struct ps_races_hooks hooks = {
    .describe = describe,
    .forget = forget,
    .found = found,
    .is_internal = is_internal,
    .callable = callable_moment,
    .is_awaited = is_awaited,
    .launching = captured_launching,
    .waited = note_wait,
};

/* ---- Facts that calls to the backend do not show ---- */

void
races_trace(enum ps_trace_kind kind, struct ps_device *device,
            ps_handle handle)
{
    struct ps_actor_name name = {device->runtime->index, device->index,
                                 handle};
    if (kind == PS_TRACE_STREAM_CREATION) {
        ps_races_forget_stream(&name);
        return;
    }
    if (kind == PS_TRACE_STREAM_SYNCHRONIZATION) {
        name.stream = actor_stream(device, handle);
        /* Stream.synchronize first queries the stream, unless a schedule keeps
         * notes. */
        ps_races_synchronize_stream(&name, !ps_cpu_schedules.is_noted());
        return;
    }
    struct ps_moment *moment =
        kind == PS_TRACE_DEVICE_SYNCHRONIZATION
            ? ps_races_device_moment(name.runtime, name.device)
            : ps_races_recorded(name.runtime, handle);
    if (kind == PS_TRACE_EVENT_WAIT) {
        ps_races_waited(moment);
    }
    else {
        ps_races_synchronize(moment);
    }
    ps_moment_unref(moment);
}

struct ps_moment *
moment_of_work(const struct work *work)
{
    const struct ps_event *event = work->event;
    /* An event that was never recorded reports nothing. */
    if (!ps_races_are_on() ||
        (event != NULL && atomic_load(&event->recorded) == 0 &&
         !event->external && !(event->flags & PS_EVENT_INTERPROCESS))) {
        return NULL;
    }
    if (work->stream != NULL) {
        struct ps_actor_name name = actor_name(work->stream);
        return ps_races_moment(&name, false);
    }
    return work->event != NULL
               ? ps_races_recorded(work->event->runtime->index,
                                   atomic_load(&work->event->handle))
               : ps_races_device_moment(work->device->runtime->index,
                                        work->device->index);
}

void
event_reached(struct ps_event *event)
{
    if (ps_races_are_on() && ps_event_known_done(event)) {
        ps_races_known_done(event->runtime->index,
                            atomic_load(&event->handle));
    }
}

static int
zero_or_raised(ps_status status)
{
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        PyErr_NoMemory();
    }
    return status == PS_SUCCESS ? 0 : -1;
}

int
host_access(const char *operation, const void *data, Py_ssize_t nbytes,
            bool writes)
{
    struct ps_access access = {(uintptr_t)data, (size_t)nbytes, writes};
    return nbytes == 0 ? 0
                       : zero_or_raised(
                             ps_races_operation(NULL, operation, &access, 1));
}

void
block_ends(struct ps_block *block)
{
    struct ps_stream **streams;
    size_t count;
    if (block->release != NULL || block->data == NULL ||
        atomic_load(&block->refs) > 1 ||
        block->generation != ps_generation() ||
        ps_block_streams(block, true, &streams, &count) != PS_SUCCESS) {
        return;
    }
    struct ps_actor_name *names = calloc(count + 1, sizeof(*names));
    for (size_t i = 0; i < count; i++) {
        if (names != NULL) {
            names[i] = actor_name(streams[i]);
        }
        stream_release(streams[i]);
    }
    if (names != NULL) {
        ps_races_free(names, count, (uintptr_t)block->data, block->nbytes);
    }
    free(names);
    free(streams);
}

/* If the object is a Buffer, returns a new reference to it.  If it is a view
 * of a Buffer's memory, such as a memoryview or a NumPy array, returns a new
 * reference to that Buffer.  Otherwise returns NULL without an exception. */
static PyObject *
viewed_buffer(PyObject *object)
{
    enum { DEEPEST = 8 };
    PyObject *seen = Py_NewRef(object);
    for (int i = 0; i < DEEPEST && seen != NULL && seen != Py_None; i++) {
        PyObject *next = NULL;
        if (PyObject_TypeCheck(seen, module_state.buffer_type)) {
            return seen;
        }
        if (PyObject_CheckBuffer(seen) && !PyBytes_Check(seen)) {
            next = PyObject_GetAttrString(
                seen, PyMemoryView_Check(seen) ? "obj" : "base");
            PyErr_Clear();
        }
        Py_SETREF(seen, next);
    }
    Py_XDECREF(seen);
    return NULL;
}

/* Get the range of bytes that a Buffer or a view of a Buffer covers.  Returns
 * false if the object is neither, or if the range is empty. */
static bool
viewed_bytes(PyObject *object, struct ps_access *access)
{
    PyObject *buffer = viewed_buffer(object);
    if (buffer == NULL) {
        return false;
    }
    access->begin = (uintptr_t)buffer_data(buffer);
    access->nbytes = (size_t)((BufferObject *)buffer)->nbytes;
    Py_buffer view;
    if (object != buffer &&
        PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS) == 0) {
        access->begin = (uintptr_t)view.buf;
        access->nbytes = (size_t)view.len;
        PyBuffer_Release(&view);
    }
    PyErr_Clear();
    Py_DECREF(buffer);
    return access->nbytes > 0;
}

struct access_list {
    struct ps_access *accesses;
    int count, room;
};

/* Append an access to the list.  On failure, returns -1 with MemoryError. */
static int
add_access(struct access_list *list, const struct ps_access *access)
{
    if (list->count == list->room) {
        int room = list->room != 0 ? 2 * list->room : 8;
        struct ps_access *grown =
            PyMem_Realloc(list->accesses, (size_t)room * sizeof(*grown));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        list->accesses = grown;
        list->room = room;
    }
    list->accesses[list->count++] = *access;
    return 0;
}

/* If the object is a Buffer or a view of a Buffer, add its bytes to the list.
 * If it is a list, tuple or dict, do the same for each of its items.  On
 * failure, returns -1 with MemoryError. */
static int
add_viewed(struct access_list *list, PyObject *object, int depth)
{
    enum { DEEPEST = 8 };
    PyObject *items = NULL;
    if (PyList_Check(object) || PyTuple_Check(object)) {
        /* Copy the items, because looking at one may run code that changes the
         * list. */
        items = PySequence_Tuple(object);
    }
    else if (PyDict_Check(object)) {
        items = PyDict_Values(object);
        Py_XSETREF(items, items != NULL ? PyList_AsTuple(items) : NULL);
    }
    else {
        struct ps_access access = {0};
        if (!viewed_bytes(object, &access)) {
            return 0;
        }
        return add_access(list, &access);
    }
    int result = items != NULL ? 0 : -1;
    for (Py_ssize_t i = 0;
         result == 0 && depth < DEEPEST && i < PyTuple_GET_SIZE(items); i++) {
        result = add_viewed(list, PyTuple_GET_ITEM(items, i), depth + 1);
    }
    Py_XDECREF(items);
    return result;
}

/* Fill the list with the bytes of all Buffers and views of Buffers among the
 * arguments.  On failure, returns -1 with MemoryError.  The caller must free
 * list->accesses, even after a failure. */
static int
viewed_by(PyObject *const *args, Py_ssize_t count, struct access_list *list)
{
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < count; i++) {
        result = add_viewed(list, args[i], 0);
    }
    return result;
}

int
note_arguments(PyObject *const *args, Py_ssize_t count)
{
    struct access_list list = {NULL};
    int result = viewed_by(args, count, &list);
    for (int i = 0; result == 0 && i < list.count; i++) {
        note_memory(PS_NOTE_ARGUMENT, (void *)list.accesses[i].begin,
                    list.accesses[i].nbytes);
    }
    PyMem_Free(list.accesses);
    return result;
}

/* Like actor_name, but for another library's stream also determines whether it
 * serializes with the default stream. */
static struct ps_actor_name
full_name(struct ps_stream *stream)
{
    struct ps_actor_name name = actor_name(stream);
    int blocking = 0;
    ps_status status = PS_SUCCESS;
    if (stream->identity != 0) {
        CALL_BACKEND(stream->device->runtime,
                     status = ps_stream_blocking(stream, &blocking));
    }
    name.blocking = status == PS_SUCCESS && blocking;
    return name;
}

int
expect_callable(struct ps_stream *stream, PyObject *const *args,
                Py_ssize_t count, PyObject *future)
{
    struct ps_actor_name name = full_name(stream);
    struct access_list list = {NULL};
    if (viewed_by(args, count, &list) < 0) {
        PyMem_Free(list.accesses);
        return -1;
    }
    ps_status status =
        ps_races_operation(&name, "submit", list.accesses, list.count);
    PyMem_Free(list.accesses);
    if (status == PS_SUCCESS) {
        future_set_moment(future, ps_races_callable(&name));
    }
    return zero_or_raised(status);
}

/* ---- Functions ---- */

static PyObject *
races_start(PyObject *Py_UNUSED(module), PyObject *function)
{
    reference_set(variables_owner(), &report, Py_NewRef(function));
    if (!ps_races_are_on()) {
        ps_races_start(&hooks);
        install_tables();
        trace_races(true, counting);
    }
    Py_RETURN_NONE;
}

static PyObject *
races_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (ps_races_are_on()) {
        trace_races(false, false);
        ps_races_stop();
        install_tables();
    }
    Py_RETURN_NONE;
}

static PyObject *
races_count_waits(PyObject *Py_UNUSED(module), PyObject *on)
{
    /* The tallies are indexed by the numbers of places.  So keep these numbers
     * from before the first wait is counted until no thread can count a wait
     * any more. */
    if (places_hold() < 0) {
        return NULL;
    }
    bool counted = atomic_exchange(&counting, on == Py_True);
    forget_waits();
    if (on != Py_True) {
        places_release();
    }
    if (counted) {
        places_release();
    }
    trace_races(ps_races_are_on(), ps_races_are_on() && counting);
    Py_RETURN_NONE;
}

/* Get the tally with this number.  Returns false if there is no such tally. */
static bool
read_tally(Py_ssize_t number, struct tally *tally)
{
    bool found;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    found = number < WAITS * tally_room;
    if (found) {
        *tally = tallies[number / WAITS][number % WAITS];
    }
    Py_END_CRITICAL_SECTION();
    return found;
}

static PyObject *
races_redundant(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    struct tally tally;
    for (Py_ssize_t i = 0; list != NULL && read_tally(i, &tally); i++) {
        PyObject *place = place_at(i / WAITS);
        if (place != NULL && tally.count > 0 && !tally.useful) {
            list = list_with(list, Py_BuildValue("((sOOO)L)", waits[i % WAITS],
                                                 PyTuple_GET_ITEM(place, 0),
                                                 PyTuple_GET_ITEM(place, 1),
                                                 PyTuple_GET_ITEM(place, 2),
                                                 tally.count));
        }
        Py_XDECREF(place);
    }
    return list;
}

static PyObject *
races_orders(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argument;
    int actor;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!iK:races_orders", module_state.event_type,
                          &argument, &actor, &number)) {
        return NULL;
    }
    struct ps_event *event = ((EventObject *)argument)->event;
    struct ps_moment *moment =
        ps_races_recorded(event->runtime->index, atomic_load(&event->handle));
    bool orders = ps_moment_is_after(moment, actor, number);
    ps_moment_unref(moment);
    return PyBool_FromLong(orders);
}

static const char MOMENT[] = "pystreams.moment";

static void
destroy_moment(PyObject *capsule)
{
    ps_moment_unref(PyCapsule_GetPointer(capsule, MOMENT));
}

static PyObject *
races_moment(PyObject *Py_UNUSED(module), PyObject *object)
{
    struct work work;
    if (!ps_races_are_on()) {
        Py_RETURN_NONE;
    }
    if (work_of(object, &work) < 0) {
        return NULL;
    }
    struct ps_moment *moment = moment_of_work(&work);
    stream_release(work.stream);
    if (moment == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *capsule = PyCapsule_New(moment, MOMENT, destroy_moment);
    if (capsule == NULL) {
        ps_moment_unref(moment);
    }
    return capsule;
}

static PyObject *
races_reached(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    const struct ps_moment *moment = PyCapsule_GetPointer(capsule, MOMENT);
    if (moment == NULL) {
        return NULL;
    }
    ps_races_reached(moment);
    Py_RETURN_NONE;
}

static PyObject *
races_ignore(PyObject *Py_UNUSED(module), PyObject *on)
{
    static const char unaware;
    const void *word = on == Py_True && ps_races_are_on() ? &unaware : NULL;
    if (word != ps_thread_word(PS_THREAD_UNAWARE) &&
        ps_thread_set_word(PS_THREAD_UNAWARE, word) != PS_SUCCESS) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

/* The status with which the process must exit because the program continued
 * after a race; 0 if there is no such status. */
static atomic_int exit_status;

static void
end_program(void)
{
    if (exit_status != 0) {
        exit(exit_status);
    }
}

static PyObject *
set_exit_status(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long status = PyLong_AsLong(argument);
    if (status == -1 && PyErr_Occurred()) {
        return NULL;
    }
    static atomic_bool registered;
    if (!atomic_exchange(&registered, true) && Py_AtExit(end_program) < 0) {
        atomic_store(&registered, false);
        return PyErr_NoMemory();
    }
    exit_status = (int)status;
    Py_RETURN_NONE;
}

/* Get the range of bytes to which an item of declare()'s `reads` or `writes`
 * refers.  On failure, returns -1 with an exception. */
static int
extent_of(PyObject *memory, struct ps_access *access)
{
    const char *begin;
    Py_ssize_t nbytes;
    struct span span;
    if (PyTuple_Check(memory)) {
        unsigned long long address;
        if (!PyArg_ParseTuple(memory, "Kn:declare", &address, &nbytes)) {
            return -1;
        }
        if (nbytes < 0) {
            return refuse(PyExc_ValueError,
                          "declare() expects a size of at least 0, but got "
                          "%zd",
                          nbytes);
        }
        access->begin = (uintptr_t)address;
        access->nbytes = (size_t)nbytes;
        return 0;
    }
    int found = PyObject_TypeCheck(memory, module_state.buffer_type);
    if (found) {
        found = buffer_hold(memory, &span) < 0 ? -1 : 2;
    }
    else {
        found = dlpack_extent(memory, &begin, &nbytes);
        if (found == 0) {
            found = array_interface_extent("declare", memory, &begin, &nbytes);
        }
        if (found == 0) {
            found = dlpack_hold(memory, NULL, NULL, &span);
            found = found == 1 ? 2 : found;
        }
    }
    if (found == 0) {
        return refuse(PyExc_TypeError,
                      "declare() expects Buffers, arrays and (address, "
                      "nbytes) pairs for reads and writes, but got %s",
                      Py_TYPE(memory)->tp_name);
    }
    if (found == 2) {
        begin = span.data;
        nbytes = span.nbytes;
        span_release(&span);
    }
    access->begin = (uintptr_t)begin;
    access->nbytes = (size_t)nbytes;
    return found < 0 ? -1 : 0;
}

/* Add the bytes of each item of the iterable to the list.  An item without
 * bytes is left out.  On failure, returns -1 with an exception. */
static int
add_declared(struct access_list *list, PyObject *iterable, bool writes)
{
    PyObject *items = PySequence_Tuple(iterable);
    int result = items != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < PyTuple_GET_SIZE(items); i++) {
        struct ps_access access = {.writes = writes, .declared = true};
        result = extent_of(PyTuple_GET_ITEM(items, i), &access);
        if (result == 0 && access.nbytes > 0) {
            result = add_access(list, &access);
        }
    }
    Py_XDECREF(items);
    return result;
}

static PyObject *
races_declare(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argument, *reads, *writes;
    const char *operation;
    struct access_list list = {NULL};
    if (!PyArg_ParseTuple(args, "OsOO:races_declare", &argument, &operation,
                          &reads, &writes)) {
        return NULL;
    }
    struct ps_stream *stream = NULL;
    struct ps_actor_name name;
    if (argument != Py_None) {
        stream = stream_named("declare", argument);
        if (stream == NULL) {
            return NULL;
        }
        name = full_name(stream);
    }
    int result = -1;
    if (add_declared(&list, reads, false) == 0 &&
        add_declared(&list, writes, true) == 0) {
        result = zero_or_raised(
            ps_races_operation(stream != NULL ? &name : NULL, operation,
                               list.accesses, list.count));
    }
    PyMem_Free(list.accesses);
    stream_release(stream);
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef races_functions[] = {
    FUNCTION("races_start", races_start, METH_O, "report, /",
             "Look for races, and call report(first, second, address, nbytes, "
             "freed, point) for each;\npoint is what races_orders() takes, "
             "or None."),
    FUNCTION("races_stop", races_stop, METH_NOARGS, "/",
             "Stop looking for races."),
    FUNCTION("races_count_waits", races_count_waits, METH_O, "on, /",
             "Start to count the program's waits by place, or forget the "
             "counts."),
    FUNCTION("races_redundant", races_redundant, METH_NOARGS, "/",
             "Return ((operation, file, line, function), count) for each "
             "place whose waits all ordered\nnothing new."),
    FUNCTION("races_orders", races_orders, METH_VARARGS,
             "event, actor, number, /",
             "Return whether the event's latest record is known to come after "
             "the first operation of a race."),
    FUNCTION("races_moment", races_moment, METH_O, "obj, /",
             "Return the moment after the current work of a Stream, or an "
             "Event's latest record; None if\nraces_reached() is not needed "
             "for it, or memory is short."),
    FUNCTION("races_reached", races_reached, METH_O, "moment, /",
             "Take note that the program knows the moment to have been "
             "reached."),
    FUNCTION("races_ignore", races_ignore, METH_O, "on, /",
             "Treat the calling thread's calls from now on as internal, so "
             "that they create no order;\nor stop doing so."),
    FUNCTION("set_exit_status", set_exit_status, METH_O, "status, /",
             "Have the process end with this status when the interpreter has "
             "ended."),
    FUNCTION("races_declare", races_declare, METH_VARARGS,
             "stream, operation, reads, writes, /",
             "Take note of accesses by work that was queued on the stream, or "
             "by the host if stream is\nNone."),
    {NULL},
};
