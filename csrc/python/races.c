/* What the race detector needs of Python: places in programs, and what is done
 * about a race.  pystreams/races.py turns what is found into words.
 *
 * Core calls backends with or without the GIL, so each hook takes it. */
#include "races.h"

#include <frameobject.h>

#include <string.h>

#include "../core/notify.h"

#include "array_interface.h"
#include "backends.h"
#include "buffer.h"
#include "dlpack.h"
#include "errors.h"
#include "future.h"
#include "schedules.h"
#include "stream.h"
#include "submit.h"
#include "trace.h"

struct ps_actor_name
actor_name(const struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    return (struct ps_actor_name){device->runtime->index, device->index,
                                  stream->handle};
}

/* ---- Hooks ---- */

/* The function of races.py that reports a race; the GIL guards it. */
static PyObject *report;
/* How the files of this package begin. */
static PyObject *package;

struct description {
    struct ps_description base;
    /* Of the program: NULL if no function of its runs. */
    PyCodeObject *code;
    int line;
    unsigned long thread;
    bool inside;
    char operation[32];
};

static bool
is_of_package(PyCodeObject *code)
{
    return package != NULL && PyUnicode_Tailmatch(code->co_filename, package,
                                                  0, PY_SSIZE_T_MAX, -1) == 1;
}

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif

/* The innermost function that is the program's own, and the line that it is
 * at; NULL if there is none. */
static PyCodeObject *
find_place(int *line)
{
    PyCodeObject *found = NULL;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyFrameObject *back = NULL;
        if (!is_of_package(code)) {
            found = code;
            *line = PyFrame_GetLineNumber(frame);
        }
        else {
            Py_DECREF(code);
            back = PyFrame_GetBack(frame);
        }
        Py_DECREF(frame);
        frame = back;
    }
    return found;
}

static struct ps_description *
describe(const char *operation, bool inside)
{
    struct description *description = calloc(1, sizeof(*description));
    if (description == NULL) {
        return NULL;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    atomic_init(&description->base.refs, 1);
    strncpy(description->operation, operation,
            sizeof(description->operation) - 1);
    description->thread = PyThread_get_thread_ident();
    description->inside = inside;
    struct saved_exception saved = exception_save();
    description->code = find_place(&description->line);
    /* Without memory a place may not be found. */
    PyErr_Clear();
    exception_restore(saved);
    PyGILState_Release(gil);
    return &description->base;
}

static void
forget(struct ps_description *base)
{
    struct description *description = (struct description *)base;
    if (!is_finalizing()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        Py_XDECREF(description->code);
        PyGILState_Release(gil);
    }
    free(description);
}

/* What races.Operation is made of; NULL with an exception. */
static PyObject *
operation_of(const struct ps_operation *operation)
{
    const struct ps_actor_name *stream = operation->stream;
    const struct description *d =
        (const struct description *)operation->description;
    PyCodeObject *code = d->code;
    PyObject *where = code != NULL ? Py_BuildValue("(OiO)", code->co_filename,
                                                   d->line, code->co_name)
                                   : Py_NewRef(Py_None);
    PyObject *named = Py_NewRef(Py_None);
    if (stream != NULL) {
        const struct ps_backend *backend =
            ps_runtime_at(stream->runtime)->registered;
        Py_SETREF(named, Py_BuildValue("(siK)", backend->name, stream->device,
                                       (unsigned long long)stream->stream));
    }
    return Py_BuildValue("(sNkiiN)", d->operation, named, d->thread,
                         operation->writes, d->inside, where);
}

static ps_status
found(const struct ps_race *race)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    struct saved_exception saved = exception_save();
    PyObject *function = Py_XNewRef(report);
    PyObject *first = operation_of(&race->first);
    PyObject *second = operation_of(&race->second);
    PyObject *result = NULL;
    if (first != NULL && second != NULL && function != NULL) {
        result = PyObject_CallFunction(
            function, "OOKKi", first, second, (unsigned long long)race->begin,
            (unsigned long long)race->nbytes, (int)race->freed);
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_XDECREF(function);
    ps_status status = result != NULL ? PS_SUCCESS : PS_RAISED;
    Py_XDECREF(result);
    if (status == PS_SUCCESS) {
        exception_restore(saved);
    }
    PyGILState_Release(gil);
    return status;
}

/* ---- Waits that order nothing new ---- */

/* How often a place of the program made a wait; whether that ever ordered
 * anything new. */
struct tally {
    long long count;
    bool useful;
};

/* A call of the program: a shortcut to its place. */
struct call {
    PyCodeObject *code;
    int offset;
    const char *operation;
    Py_ssize_t place;
};

enum { CALLS = 512 };

/* The GIL guards them: the indices of tallies by (operation, file, line,
 * function), so that code which is made anew takes no more room. */
static PyObject *places;
static struct tally *tallies;
static Py_ssize_t tally_room;
static struct call calls[CALLS];
static atomic_bool counting;

static struct call *
call_slot(PyCodeObject *code, int offset)
{
    return &calls[((uintptr_t)code / 16 + (unsigned)offset) % CALLS];
}

static void
forget_waits(void)
{
    for (int i = 0; i < CALLS; i++) {
        Py_CLEAR(calls[i].code);
    }
    Py_CLEAR(places);
    free(tallies);
    tallies = NULL;
    tally_room = 0;
}

/* The index of the place's tally; -1 with an exception. */
static Py_ssize_t
tally_of(PyObject *place)
{
    PyObject *index = PyDict_GetItemWithError(places, place);
    if (index != NULL || PyErr_Occurred()) {
        return index != NULL ? PyLong_AsSsize_t(index) : -1;
    }
    Py_ssize_t made = PyDict_Size(places);
    if (made == tally_room) {
        Py_ssize_t room = made > 0 ? 2 * made : 64;
        struct tally *grown =
            realloc(tallies, (size_t)room * sizeof(*tallies));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        tallies = grown;
        tally_room = room;
    }
    tallies[made] = (struct tally){0};
    index = PyLong_FromSsize_t(made);
    if (index == NULL || PyDict_SetItem(places, place, index) < 0) {
        made = -1;
    }
    Py_XDECREF(index);
    return made;
}

/* The index of the tally of the line that the frame is at; -1 with an
 * exception. */
static Py_ssize_t
tally_at(const char *operation, PyFrameObject *frame, PyCodeObject *code)
{
    PyObject *place =
        Py_BuildValue("(sOiO)", operation, code->co_filename,
                      PyFrame_GetLineNumber(frame), code->co_name);
    Py_ssize_t index = place != NULL ? tally_of(place) : -1;
    Py_XDECREF(place);
    return index;
}

/* Count a wait of the frame's call; false if the frame is the package's. */
static bool
count_call(const char *operation, bool useful, PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int offset = PyFrame_GetLasti(frame);
    struct call *call = call_slot(code, offset);
    bool known = call->code == code && call->offset == offset &&
                 call->operation == operation;
    bool counted = known || !is_of_package(code);
    if (counted && !known) {
        Py_ssize_t place = tally_at(operation, frame, code);
        if (place >= 0) {
            Py_XSETREF(call->code, (PyCodeObject *)Py_NewRef(code));
            *call = (struct call){code, offset, operation, place};
            known = true;
        }
    }
    /* A collection may have ended the run meanwhile. */
    if (known && call->place < tally_room) {
        tallies[call->place].count++;
        tallies[call->place].useful |= useful;
    }
    Py_DECREF(code);
    return counted;
}

/* Without memory a wait is not counted. */
static void
note_wait(const char *operation, bool useful)
{
    if (!counting || ps_thread_word(PS_THREAD_IMPLIED) != NULL) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    struct saved_exception saved = exception_save();
    PyFrameObject *frame = places != NULL ? PyEval_GetFrame() : NULL;
    Py_XINCREF(frame);
    while (frame != NULL) {
        bool counted = count_call(operation, useful, frame);
        Py_SETREF(frame, counted ? NULL : PyFrame_GetBack(frame));
    }
    PyErr_Clear();
    exception_restore(saved);
    PyGILState_Release(gil);
}

static bool
is_internal(void)
{
    return ps_thread_word(PS_THREAD_OWN) != NULL || is_finalizing();
}

static const struct ps_races_hooks hooks = {
    .describe = describe,
    .forget = forget,
    .found = found,
    .is_internal = is_internal,
    .callable = callable_moment,
    .waited = note_wait,
};

/* ---- What the table does not see ---- */

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
        ps_races_synchronize_stream(&name);
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
    if (!ps_races_are_on()) {
        return NULL;
    }
    if (work->stream != NULL) {
        struct ps_actor_name name = actor_name(work->stream);
        return ps_races_moment(&name);
    }
    return work->event != NULL
               ? ps_races_recorded(work->event->runtime->index,
                                   atomic_load(&work->event->handle))
               : ps_races_device_moment(work->device->runtime->index,
                                        work->device->index);
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

/* The Buffer that an object is a view of, a memoryview or an array of NumPy
 * over one; NULL without an exception if it is none.  A new reference. */
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
        if (PyMemoryView_Check(seen)) {
            next = Py_XNewRef(PyMemoryView_GET_BUFFER(seen)->obj);
        }
        else if (PyObject_CheckBuffer(seen) && !PyBytes_Check(seen)) {
            next = PyObject_GetAttrString(seen, "base");
            PyErr_Clear();
        }
        Py_SETREF(seen, next);
    }
    Py_XDECREF(seen);
    return NULL;
}

/* The bytes of a Buffer, or of a view of one; false if it is neither. */
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

void
note_arguments(PyObject *const *args, Py_ssize_t count)
{
    struct ps_access access;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (viewed_bytes(args[i], &access)) {
            note_memory(PS_NOTE_ARGUMENT, (void *)access.begin, access.nbytes);
        }
    }
}

int
expect_callable(struct ps_stream *stream, PyObject *const *args,
                Py_ssize_t count, PyObject *future)
{
    struct ps_actor_name name = actor_name(stream);
    struct ps_access *accesses =
        PyMem_Calloc((size_t)count + 1, sizeof(*accesses));
    int used = 0;
    if (accesses == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        used += viewed_bytes(args[i], &accesses[used]);
    }
    ps_status status = ps_races_operation(&name, "submit", accesses, used);
    PyMem_Free(accesses);
    if (status == PS_SUCCESS) {
        future_set_moment(future, ps_races_callable(&name));
    }
    return zero_or_raised(status);
}

/* ---- Functions ---- */

static PyObject *
races_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *prefix;
    if (!PyArg_ParseTuple(args, "OU:races_start", &function, &prefix)) {
        return NULL;
    }
    Py_XSETREF(report, Py_NewRef(function));
    Py_XSETREF(package, Py_NewRef(prefix));
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
    forget_waits();
    atomic_store(&counting, false);
    if (on == Py_True) {
        if ((places = PyDict_New()) == NULL) {
            return NULL;
        }
        atomic_store(&counting, true);
    }
    trace_races(ps_races_are_on(), ps_races_are_on() && counting);
    Py_RETURN_NONE;
}

static PyObject *
races_redundant(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0), *place, *index;
    Py_ssize_t at = 0;
    while (list != NULL && places != NULL &&
           PyDict_Next(places, &at, &place, &index)) {
        struct tally *tally = &tallies[PyLong_AsSsize_t(index)];
        if (tally->useful) {
            continue;
        }
        PyObject *pair = Py_BuildValue("(OL)", place, tally->count);
        if (pair == NULL || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

/* The bytes of what declare() was given. */
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
        found = array_interface_extent("declare", memory, &begin, &nbytes);
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

/* Add the extents of what the iterable holds to the accesses, of which there
 * are *count; empty ones are left out. */
static int
add_accesses(PyObject *iterable, bool writes, struct ps_access **accesses,
             int *count)
{
    PyObject *items = PySequence_List(iterable);
    if (items == NULL) {
        return -1;
    }
    size_t length = (size_t)PyList_GET_SIZE(items);
    struct ps_access *grown = PyMem_Realloc(
        *accesses, ((size_t)*count + length + 1) * sizeof(*grown));
    int result = grown != NULL ? 0 : -1;
    if (grown == NULL) {
        PyErr_NoMemory();
    }
    else {
        *accesses = grown;
    }
    for (size_t i = 0; i < length && result == 0; i++) {
        struct ps_access *access = &grown[*count];
        result = extent_of(PyList_GET_ITEM(items, (Py_ssize_t)i), access);
        access->writes = writes;
        access->declared = true;
        *count += result == 0 && access->nbytes > 0;
    }
    Py_DECREF(items);
    return result;
}

static PyObject *
races_declare(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argument, *reads, *writes;
    const char *operation;
    struct ps_access *accesses = NULL;
    int count = 0;
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
        name = actor_name(stream);
    }
    int result = -1;
    if (add_accesses(reads, false, &accesses, &count) == 0 &&
        add_accesses(writes, true, &accesses, &count) == 0) {
        result = zero_or_raised(ps_races_operation(
            stream != NULL ? &name : NULL, operation, accesses, count));
    }
    PyMem_Free(accesses);
    stream_release(stream);
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef races_functions[] = {
    FUNCTION("races_start", races_start, METH_VARARGS, "report, package, /",
             "Look for races, and call report(first, second, address, nbytes, "
             "freed) "
             "for each; files whose names\nbegin with package are no "
             "program's."),
    FUNCTION("races_stop", races_stop, METH_NOARGS, "/",
             "Look for races no more."),
    FUNCTION("races_count_waits", races_count_waits, METH_O, "on, /",
             "Start to count the program's waits by place, or forget the "
             "counts."),
    FUNCTION("races_redundant", races_redundant, METH_NOARGS, "/",
             "Return ((operation, file, line, function), count) for each "
             "place whose waits all ordered\nnothing new."),
    FUNCTION("races_declare", races_declare, METH_VARARGS,
             "stream, operation, reads, writes, /",
             "Take note of accesses by work that was queued on the stream, or "
             "by the host if it is None."),
    {NULL},
};
