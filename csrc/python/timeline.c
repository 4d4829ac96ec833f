/* The timeline's Python side.  It finds the names of threads, streams and
 * functions, and the places in the program at which calls are made.  A slice
 * refers to the names in the log's lists by index, and to a place by its
 * number.
 *
 * Core calls backends with or without the GIL, so the hooks that need the GIL
 * acquire it. */
#include "timeline.h"

#include <dlfcn.h>

#include "../backends/backends.h"
#include "../core/memory.h"
#include "../core/runtime.h"
#include "../core/thread.h"
#include "../observe/names.h"
#include "../observe/reports.h"
#include "../observe/stamps.h"

#include "args.h"
#include "backends.h"
#include "errors.h"
#include "future.h"
#include "late.h"
#include "places.h"
#include "races.h"
#include "stream.h"
#include "trace.h"
#include "waiter.h"

/* A recording.  It has the slices, and lists of the names to which the slices
 * refer by index. */
struct log {
    struct ps_timeline *timeline;
    uintptr_t number; /* the logs are numbered from 1 */
    PyObject *threads;
    PyObject *taken;   /* the set of the names in `threads` */
    PyObject *streams; /* pairs (device, label) */
    PyObject *names;
    PyObject *name_indices;
    PyObject *foreign; /* a dict from numbers of names.h to names */
    PyObject *active;  /* threading's dict from identifiers to threads */
};

/* The log that is recording, or NULL.  A hook must read this variable, and add
 * to the log's lists, only within a critical section of variables_owner(),
 * because otherwise another thread could stop the log meanwhile. */
static struct log *_Atomic current;
static uintptr_t logs;
/* The number of the latest log, which can be read without the GIL; 0 before
 * the first log.  It keeps its value when the log stops. */
static atomic_uintptr_t current_number;

/* The names of the kinds of rows.  The kind of a row is the kind of the slice
 * that it shows, or NODE if it shows a node of a graph. */
enum { NODE = PS_SLICE_MARK + 1 };
static const char *const kinds[] = {
    [PS_SLICE_NONE] = "",
    [PS_SLICE_COPY] = "copy",
    [PS_SLICE_FILL] = "fill",
    [PS_SLICE_SLEEP] = "sleep",
    [PS_SLICE_FUNCTION] = "function",
    [PS_SLICE_GRAPH] = "graph",
    [PS_SLICE_CALLABLE] = "callable",
    [PS_SLICE_SPAN] = "span",
    [PS_SLICE_SPAN_END] = "",
    [PS_SLICE_RECORD] = "record",
    [PS_SLICE_WAIT] = "wait",
    [PS_SLICE_SYNCHRONIZE] = "synchronize",
    [PS_SLICE_MEMORY] = "memory",
    [PS_SLICE_KERNEL] = "kernel",
    [PS_SLICE_MARK] = "mark",
    [NODE] = "node",
};
static PyObject *kind_names[Py_ARRAY_LENGTH(kinds)];

/* ---- Hooks ---- */

static bool
is_internal(void)
{
    return ps_thread_word(PS_THREAD_OWN) != NULL || is_finalizing();
}

/* The thread-local word PS_THREAD_TIMELINE holds two numbers: the number of a
 * log and, in the lowest BITS bits, 1 + the thread's index in that log. */
enum { BITS = 24 };

/* Returns a new reference to the name that `threading` knows for the thread.
 * If it does not know the thread, the name contains the identifier.  On
 * failure, returns NULL with an exception.  This must run no Python code:
 * otherwise, another thread could take the GIL, and then wait for a lock that
 * the calling thread holds. */
static PyObject *
thread_name(PyObject *active, unsigned long identifier)
{
    PyObject *key = PyLong_FromUnsignedLong(identifier);
    PyObject *attribute = PyUnicode_InternFromString("_name");
    PyObject *thread = NULL, *name = NULL;
    if (key != NULL && attribute != NULL) {
        Py_BEGIN_CRITICAL_SECTION(active);
        thread = Py_XNewRef(PyDict_GetItemWithError(active, key));
        Py_END_CRITICAL_SECTION();
        name = thread != NULL ? PyObject_GenericGetAttr(thread, attribute)
               : !PyErr_Occurred()
                   ? PyUnicode_FromFormat("thread %lu", identifier)
                   : NULL;
    }
    Py_XDECREF(key);
    Py_XDECREF(attribute);
    Py_XDECREF(thread);
    return name;
}

/* Returns a new reference to the name of one more thread, and adds it to the
 * names that are taken.  If an earlier thread has the same name, the name is
 * "name (2)".  On failure, returns NULL with an exception. */
static PyObject *
own_name(PyObject *taken, PyObject *name)
{
    PyObject *base = PyUnicode_FromObject(name), *own = Py_XNewRef(base);
    int known = 0;
    for (int i = 2; own != NULL && (known = PySet_Contains(taken, own)) > 0;
         i++) {
        Py_SETREF(own, PyUnicode_FromFormat("%U (%d)", base, i));
    }
    if (own != NULL && (known < 0 || PySet_Add(taken, own) < 0)) {
        Py_CLEAR(own);
    }
    Py_XDECREF(base);
    return own;
}

/* Returns 1 + the calling thread's index in the latest log, and adds the
 * thread to the log if necessary.  Returns 0 if the thread cannot be added,
 * because the log has stopped or memory is short. */
static uint32_t
thread_index(void)
{
    uintptr_t word = (uintptr_t)ps_thread_word(PS_THREAD_TIMELINE);
    uintptr_t number = atomic_load(&current_number);
    if (number == 0 || word >> BITS == number) {
        return word & ((1 << BITS) - 1);
    }
    struct saved_exception saved = exception_save();
    uint32_t index = 0;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    PyObject *name =
        current != NULL && current->number == number
            ? thread_name(current->active, PyThread_get_thread_ident())
            : NULL;
    /* Check `current` again, because thread_name may have suspended the
     * critical section, and another thread may have stopped the log
     * meanwhile. */
    if (name != NULL && current != NULL && current->number == number) {
        Py_SETREF(name, own_name(current->taken, name));
    }
    if (name != NULL && current != NULL && current->number == number &&
        PyList_Append(current->threads, name) == 0) {
        index = (uint32_t)PyList_GET_SIZE(current->threads);
        word = number << BITS | index;
        ps_thread_set_word(PS_THREAD_TIMELINE, (void *)word);
    }
    Py_XDECREF(name);
    Py_END_CRITICAL_SECTION();
    PyErr_Clear();
    exception_restore(saved);
    return index;
}

/* Returns whether the calling thread holds the GIL.  PyGILState_Check() is not
 * used, because it always returns true once there has been a
 * subinterpreter. */
static bool
has_gil(void)
{
    PyThreadState *own = PyGILState_GetThisThreadState();
#if PY_VERSION_HEX >= 0x030D0000
    return own != NULL && own == PyThreadState_GetUnchecked();
#else
    return own != NULL && own == _PyThreadState_UncheckedGet();
#endif
}

static uint32_t
known_thread(void)
{
    uintptr_t word = (uintptr_t)ps_thread_word(PS_THREAD_TIMELINE);
    return word >> BITS == atomic_load(&current_number)
               ? word & ((1 << BITS) - 1)
           : has_gil() ? thread_index()
                       : 0;
}

static void
origin(struct ps_slice *slice)
{
    struct hook hook = hook_begin();
    slice->thread = thread_index();
    slice->place = (uint32_t)(place_number() + 1);
    hook_end(hook);
    const char *name =
        slice->kind == PS_SLICE_COPY ? ps_thread_word(PS_THREAD_COPY) : NULL;
    uint32_t number = name != NULL ? ps_name_number(name) : 0;
    slice->name = number != 0 ? number | PS_TIMELINE_NAME : 0;
}

/* Returns the text that names a stream; NULL with an exception.  It includes
 * the handle, because the names of streams need not be unique. */
static PyObject *
stream_label(const struct ps_actor_name *stream)
{
    if (stream->stream == PS_TIMELINE_MEMORY || stream->stream == 0) {
        return PyUnicode_FromString(stream->stream == 0 ? "default stream"
                                                        : "memory");
    }
    if (stream->stream & PS_TIMELINE_NUMBER) {
        uint64_t number = stream->stream & ~PS_TIMELINE_NUMBER;
        unsigned context = (unsigned)(number >> 32), index = (unsigned)number;
        return context != 0 ? PyUnicode_FromFormat("stream #%u of context %u",
                                                   index, context)
                            : PyUnicode_FromFormat("stream #%u", index);
    }
    struct handle_text text = handle_text(
        ps_is_thread_stream_name(stream->stream) ? PS_STREAM_PER_THREAD
                                                 : stream->stream);
    PyObject *name = name_of_actor(stream);
    PyObject *label = name == NULL ? NULL
                      : name == Py_None
                          ? PyUnicode_FromFormat("stream %s", text.chars)
                          : PyUnicode_FromFormat("%U (%s)", name, text.chars);
    Py_XDECREF(name);
    return label;
}

/* Returns the pair (device, label) of a stream; NULL with an exception. */
static PyObject *
stream_pair(const struct ps_actor_name *stream)
{
    const char *backend = ps_runtime_at(stream->runtime)->registered->name;
    return Py_BuildValue(
        "(NN)", PyUnicode_FromFormat("%s:%d", backend, stream->device),
        stream_label(stream));
}

static void
stream_seen(const struct ps_actor_name *stream, uint32_t index)
{
    struct hook hook = hook_begin();
    struct saved_exception saved = exception_save();
    PyObject *pair = stream_pair(stream);
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    PyObject *list = current != NULL ? current->streams : NULL;
    while (list != NULL && PyList_GET_SIZE(list) <= (Py_ssize_t)index &&
           PyList_Append(list, Py_None) == 0) {
    }
    if (pair != NULL && list != NULL &&
        PyList_GET_SIZE(list) > (Py_ssize_t)index) {
        PyList_SetItem(list, (Py_ssize_t)index, Py_NewRef(pair));
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(pair);
    PyErr_Clear();
    exception_restore(saved);
    hook_end(hook);
}

static bool
is_virtual(void)
{
    return ps_cpu_schedules.is_on();
}

static const struct ps_timeline_hooks *
get_hooks(void)
{
    static const struct ps_timeline_hooks hooks = {
        .is_internal = is_internal,
        .origin = origin,
        .known_thread = known_thread,
        .stream = stream_seen,
        .is_virtual = is_virtual,
    };
    return &hooks;
}

/* ---- Facts that calls to the backend do not show ---- */

static struct ps_actor_name
memory_name(const struct ps_device *device)
{
    return (struct ps_actor_name){device->runtime->index, device->index,
                                  PS_TIMELINE_MEMORY};
}

/* Add a slice that shows how many bytes of device memory are in use.  nbytes:
 * the size of a block to leave out, because it is about to be freed; otherwise
 * 0. */
static void
note_memory(struct ps_device *device, uint64_t nbytes)
{
    struct ps_memory_stats stats;
    struct ps_actor_name name = memory_name(device);
    ps_memory_counts_read(device, &stats);
    struct ps_slice *slice = ps_timeline_add(&name, PS_SLICE_MEMORY, NULL);
    if (slice != NULL) {
        slice->nbytes = stats.bytes.current - nbytes;
        ps_slice_begin(slice);
        slice->times.end = slice->times.begin;
        ps_slice_publish(slice, slice->times.begin);
    }
}

void
timeline_trace(enum ps_trace_kind kind, struct ps_device *device,
               ps_handle first, ps_handle second)
{
    struct ps_actor_name name = {device->runtime->index, device->index,
                                 second};
    bool is_queued =
        kind == PS_TRACE_EVENT_RECORD || kind == PS_TRACE_EVENT_WAIT;
    if (is_queued) {
        name.stream = actor_stream(device, second);
    }
    switch (kind) {
    case PS_TRACE_EVENT_RECORD:
        ps_timeline_record(&name, first);
        break;
    case PS_TRACE_EVENT_WAIT:
        ps_timeline_wait(&name, first);
        break;
    case PS_TRACE_STREAM_CREATION:
        name.stream = first;
        ps_timeline_forget_stream(&name);
        break;
    case PS_TRACE_MEMORY_ALLOCATION:
        note_memory(device, 0);
        break;
    case PS_TRACE_MEMORY_DEALLOCATION:
        note_memory(device, second);
        break;
    default:
        break;
    }
}

/* Give the slice a name.  If `name` is NULL or is not a str, the slice gets no
 * name.  If memory runs out, the slice gets no name either, and an exception
 * may be set. */
static void
name_slice(struct ps_slice *slice, PyObject *name)
{
    if (name == NULL || !PyUnicode_Check(name)) {
        return;
    }
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    if (current != NULL) {
        slice->name =
            (uint32_t)(number_in(current->names, current->name_indices, name) +
                       1);
    }
    Py_END_CRITICAL_SECTION();
}

static void
name_wait(struct ps_slice *slice, const char *operation)
{
    struct saved_exception saved = exception_save();
    PyObject *text = PyUnicode_FromString(operation);
    name_slice(slice, text);
    Py_XDECREF(text);
    PyErr_Clear();
    exception_restore(saved);
}

/* Like timeline_add_wait, but does not name or publish the slice.  *index
 * becomes the slice's index. */
static struct ps_slice *
make_wait(const struct work *work, uint64_t source, uint64_t *index)
{
    struct ps_actor_name name;
    bool whole = work != NULL && work->stream == NULL && work->event == NULL;
    if (whole) {
        name = memory_name(work->device);
    }
    else if (work != NULL && work->stream != NULL) {
        name = actor_name(work->stream);
        source = ps_timeline_latest(&name);
    }
    else if (work != NULL) {
        source = ps_timeline_recorded(work->event->runtime->index,
                                      atomic_load(&work->event->handle));
    }
    bool on_stream = whole || (work != NULL && work->stream != NULL);
    struct ps_slice *slice =
        ps_timeline_add(on_stream ? &name : NULL, PS_SLICE_SYNCHRONIZE, index);
    if (slice != NULL) {
        slice->source = source;
        ps_slice_begin(slice);
    }
    return slice;
}

struct ps_slice *
timeline_add_wait(const char *operation, const struct work *work,
                  uint64_t source)
{
    struct ps_slice *slice = make_wait(work, source, NULL);
    if (slice != NULL) {
        name_wait(slice, operation);
        ps_slice_publish(slice, slice->times.begin);
    }
    return slice;
}

struct ps_slice *
timeline_callable(struct ps_stream *stream, PyObject *function,
                  uint64_t *source)
{
    struct ps_actor_name name = actor_name(stream);
    uint64_t index;
    struct ps_slice *slice = ps_timeline_add(&name, PS_SLICE_CALLABLE, &index);
    *source = slice != NULL ? index + 1 : 0;
    if (slice != NULL) {
        PyObject *text = PyObject_GetAttrString(function, "__qualname__");
        if (text == NULL) {
            PyErr_Clear();
            text = PyUnicode_FromString(Py_TYPE(function)->tp_name);
        }
        name_slice(slice, text);
        Py_XDECREF(text);
        PyErr_Clear();
        ps_slice_publish(slice, ps_timeline_now());
    }
    return slice;
}

static const char *
name_of_copy(const struct ps_block *to, const struct ps_block *from)
{
    return from->host ? to->host ? "copy host to host" : "copy host to device"
           : to->host ? "copy device to host"
           : to->device == from->device ? "copy device to device"
                                        : "copy peer to peer";
}

bool
timeline_copy_begin(const struct ps_block *to, const struct ps_block *from)
{
    /* If memory runs out, the copy's slice has no name. */
    return ps_timeline_is_on() &&
           ps_thread_set_word(PS_THREAD_COPY, name_of_copy(to, from)) ==
               PS_SUCCESS;
}

void
timeline_copy_end(void)
{
    ps_thread_set_word(PS_THREAD_COPY, NULL);
}

/* ---- Functions ---- */

static const char *const log_name = "pystreams.timeline.log";
static const char *const span_name = "pystreams.timeline.span";

static void
log_free(struct log *log)
{
    if (log->timeline != NULL) {
        ps_timeline_free(log->timeline);
        places_release();
    }
    Py_XDECREF(log->threads);
    Py_XDECREF(log->taken);
    Py_XDECREF(log->streams);
    Py_XDECREF(log->names);
    Py_XDECREF(log->name_indices);
    Py_XDECREF(log->foreign);
    Py_XDECREF(log->active);
    PyMem_Free(log);
}

/* Add the device's streams to the log, so that it can name them in activity
 * reports.  A stream that only other libraries use is not known here, and is
 * named by its number. */
static void
know_streams(struct ps_device *device)
{
    size_t room = ps_device_identities(device, NULL, 0);
    ps_handle *handles = PyMem_Calloc(room, sizeof(*handles));
    size_t count =
        handles != NULL ? ps_device_identities(device, handles, room) : 0;
    /* Skip the first identity, which is that of the default stream.  A stream
     * that was destroyed after the identities were read is no longer found. */
    for (size_t i = 1; i < count && i < room; i++) {
        struct ps_stream *stream = ps_stream_find(device, handles[i]);
        if (stream != NULL) {
            struct ps_actor_name name = actor_name(stream);
            ps_timeline_know(&name);
            stream_release(stream);
        }
    }
    PyMem_Free(handles);
}

static void
know_all_streams(void)
{
    for (int i = 0; i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        int count = ps_reports_are_on(i) && ps_runtime_is_used(runtime)
                        ? atomic_load(&runtime->device_count)
                        : 0;
        for (int d = 0; d < count; d++) {
            know_streams(&runtime->devices[d]);
        }
    }
}

/* Stop the current log.  While the interpreter is finalizing, no device may be
 * called. */
static void
stop_recording(void)
{
    trace_timeline(false);
    if (!is_finalizing()) {
        know_all_streams();
        WITHOUT_GIL(ps_reports_end());
    }
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    current = NULL;
    Py_END_CRITICAL_SECTION();
    ps_timeline_stop();
    install_tables();
}

static void
log_destroy(PyObject *capsule)
{
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    if (log == current) {
        stop_recording();
    }
    log_free(log);
}

static int
make_kind_names(void)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(kinds); i++) {
        if (kind_names[i] == NULL &&
            (kind_names[i] = PyUnicode_InternFromString(kinds[i])) == NULL) {
            return -1;
        }
    }
    return 0;
}

static struct log *
log_create(PyObject *active, bool by_events)
{
    struct log *log = PyMem_Calloc(1, sizeof(*log));
    if (log == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    log->number = ++logs;
    log->active = Py_NewRef(active);
    log->threads = PyList_New(0);
    log->taken = PySet_New(NULL);
    log->streams = PyList_New(0);
    log->names = PyList_New(0);
    log->name_indices = PyDict_New();
    log->foreign = PyDict_New();
    if (make_kind_names() < 0 || log->threads == NULL || log->taken == NULL ||
        log->streams == NULL || log->names == NULL ||
        log->name_indices == NULL || log->foreign == NULL ||
        places_hold() < 0) {
        log_free(log);
        return NULL;
    }
    log->timeline = ps_timeline_start(get_hooks(), by_events);
    if (log->timeline == NULL) {
        places_release();
        log_free(log);
        PyErr_NoMemory();
        return NULL;
    }
    return log;
}

enum { LONGEST_REFUSAL = 160 };

/* Make the devices of all backends report their activities, if they can.  If a
 * backend refuses and gives a reason, `refusal` becomes the reason. */
static void
begin_activities(char refusal[LONGEST_REFUSAL])
{
    for (int i = 0; i < ps_runtime_count(); i++) {
        const struct ps_backend *backend = ps_runtime_at(i)->registered;
        char reason[LONGEST_REFUSAL] = "";
        if (backend->operation_times != NULL) {
            continue;
        }
        ps_status status;
        WITHOUT_GIL(status = ps_timeline_activities(i, backend, reason,
                                                    sizeof(reason)));
        if (status != PS_SUCCESS && reason[0] != '\0') {
            memcpy(refusal, reason, sizeof(reason));
        }
    }
}

static PyObject *
timeline_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *active;
    int by_events;
    if (!PyArg_ParseTuple(args, "O!p:timeline_start", &PyDict_Type, &active,
                          &by_events)) {
        return NULL;
    }
    if (current != NULL) {
        return PyErr_Format(PyExc_RuntimeError,
                            "a timeline is being recorded already");
    }
    struct log *log = log_create(active, by_events);
    if (log == NULL) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(log, log_name, log_destroy);
    if (capsule == NULL) {
        ps_timeline_stop();
        log_free(log);
        return NULL;
    }
    current = log;
    atomic_store(&current_number, log->number);
    char refusal[LONGEST_REFUSAL] = "";
    if (!by_events) {
        begin_activities(refusal);
    }
    install_tables();
    trace_timeline(true);
    return Py_BuildValue("(Ns)", capsule, refusal);
}

static PyObject *
timeline_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (current != NULL) {
        stop_recording();
        WITHOUT_GIL(ps_stamps_release());
    }
    Py_RETURN_NONE;
}

static PyObject *
timeline_now(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    get_hooks();
    return PyLong_FromLongLong(ps_timeline_now());
}

static PyObject *
timeline_end(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    return log == NULL
               ? NULL
               : PyLong_FromUnsignedLongLong(ps_timeline_end(log->timeline));
}

static PyObject *
timeline_resolve(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    if (log == NULL) {
        return NULL;
    }
    bool resolved;
    if (log == current) {
        know_all_streams();
    }
    WITHOUT_GIL(resolved = ps_timeline_resolve(log->timeline));
    return resolved ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

/* Returns a new reference to list[index - 1], or to None if the list has no
 * such item. */
static PyObject *
item(PyObject *list, uint32_t index)
{
    PyObject *found = Py_None;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    if (index > 0 && (Py_ssize_t)index <= PyList_GET_SIZE(list)) {
        found = PyList_GET_ITEM(list, (Py_ssize_t)index - 1);
    }
    Py_INCREF(found);
    Py_END_CRITICAL_SECTION();
    return found;
}

static PyObject *
timeline_thread(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    uint32_t index = log != NULL ? thread_index() : 0;
    return index > 0     ? item(log->threads, index)
           : log != NULL ? PyErr_NoMemory()
                         : NULL;
}

/* Returns the name of a kernel, demangled by libstdc++ if the process has
 * loaded that library.  A process with C++ kernels has loaded it. */
static PyObject *
demangled(const char *name)
{
    char *(*demangle)(const char *, char *, size_t *, int *) = NULL;
    char *text = NULL;
    int status;
    void *library = strncmp(name, "_Z", 2) == 0
                        ? dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD)
                        : NULL;
    if (library != NULL) {
        *(void **)&demangle = dlsym(library, "__cxa_demangle");
    }
    if (demangle != NULL) {
        text = demangle(name, NULL, NULL, &status);
    }
    PyObject *result = PyUnicode_DecodeUTF8(
        text != NULL ? text : name,
        (Py_ssize_t)strlen(text != NULL ? text : name), "replace");
    free(text);
    if (library != NULL) {
        dlclose(library);
    }
    return result;
}

/* Returns a new reference to the name that has this number in names.h, such as
 * the name of a kernel or an NVTX range; NULL with an exception. */
static PyObject *
foreign_name(const struct log *log, uint32_t number)
{
    PyObject *key = PyLong_FromUnsignedLong(number), *name = NULL;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    name = key != NULL ? PyDict_GetItemWithError(log->foreign, key) : NULL;
    Py_XINCREF(name);
    if (key != NULL && name == NULL && !PyErr_Occurred()) {
        name = demangled(ps_name_text(number));
        if (name != NULL && PyDict_SetItem(log->foreign, key, name) < 0) {
            Py_CLEAR(name);
        }
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(key);
    return name;
}

/* Returns a new reference to the slice's name; NULL with an exception. */
static PyObject *
slice_name(const struct log *log, const struct ps_slice *slice)
{
    if (slice->name & PS_TIMELINE_NAME) {
        return foreign_name(log, slice->name & ~PS_TIMELINE_NAME);
    }
    PyObject *name = item(log->names, slice->name);
    if (name == Py_None) {
        Py_SETREF(name, Py_NewRef(kind_names[slice->kind]));
    }
    return name;
}

/* Returns a new reference to the name of the slice's thread; NULL with an
 * exception.  If the slice is foreign and its thread has no index,
 * slice->source identifies the thread. */
static PyObject *
slice_thread(const struct log *log, const struct ps_slice *slice)
{
    if (slice->foreign && slice->thread == 0) {
        return thread_name(log->active, (unsigned long)slice->source);
    }
    return item(log->threads, slice->thread);
}

/* Returns a new reference to the pair (device, label) of the slice's stream,
 * or to None.  If the stream is known only from activity reports, the pair is
 * made here. */
static PyObject *
slice_stream(const struct log *log, const struct ps_slice *slice)
{
    struct ps_actor_name name;
    PyObject *known = item(log->streams, slice->stream);
    if (known == Py_None && slice->stream > 0 &&
        ps_timeline_stream(log->timeline, slice->stream - 1, &name)) {
        Py_SETREF(known, stream_pair(&name));
    }
    return known;
}

/* Returns whether the slice is an NVTX range or mark. */
static bool
has_domain(const struct ps_slice *slice)
{
    return slice->foreign &&
           (slice->kind == PS_SLICE_SPAN || slice->kind == PS_SLICE_MARK);
}

/* Returns a new reference to the NVTX domain of a slice, or to None. */
static PyObject *
slice_domain(const struct log *log, const struct ps_slice *slice)
{
    return has_domain(slice) ? foreign_name(log, (uint32_t)slice->nbytes)
                             : Py_NewRef(Py_None);
}

static PyObject *
time_object(int64_t time, int64_t origin)
{
    return time > 0 ? PyLong_FromLongLong(time - origin) : Py_NewRef(Py_None);
}

static uint32_t
row_number(const struct ps_slice *slice)
{
    return __atomic_load_n(&slice->row, __ATOMIC_RELAXED);
}

static PyObject *
row_of(const struct log *log, const struct ps_slice *slice, int kind,
       int64_t origin, uint32_t first)
{
    PyObject *stream = slice_stream(log, slice);
    if (stream == NULL) {
        return NULL;
    }
    PyObject *place = place_at((Py_ssize_t)slice->place - 1);
    PyObject *device = Py_None, *label = Py_None;
    PyObject *file = Py_None, *line = Py_None, *function = Py_None;
    bool is_hosts = slice->kind == PS_SLICE_SYNCHRONIZE;
    if (stream != Py_None && !is_hosts) {
        device = PyTuple_GET_ITEM(stream, 0);
        label = slice->kind == PS_SLICE_MEMORY ? Py_None
                                               : PyTuple_GET_ITEM(stream, 1);
    }
    if (place != NULL) {
        file = PyTuple_GET_ITEM(place, 0);
        line = PyTuple_GET_ITEM(place, 1);
        function = PyTuple_GET_ITEM(place, 2);
    }
    const struct ps_slice *source = ps_timeline_source(log->timeline, slice);
    uint32_t source_row = source != NULL ? row_number(source) : PS_NO_ROW;
    uint64_t nbytes = __atomic_load_n(&slice->nbytes, __ATOMIC_RELAXED);
    int64_t end = __atomic_load_n(&slice->times.end, __ATOMIC_ACQUIRE);
    int64_t begin = __atomic_load_n(&slice->times.begin, __ATOMIC_ACQUIRE);
    /* The queuing thread may read the clock only after the work has begun.  In
     * that case, show the work as queued at the moment it began. */
    int64_t queued = slice->queued > 0 && (begin <= 0 || slice->queued < begin)
                         ? slice->queued
                         : begin;
    PyObject *row = Py_BuildValue(
        "(ONOONNNNKOOONN)", kind_names[kind], slice_name(log, slice), device,
        label, slice_thread(log, slice), time_object(queued, origin),
        time_object(begin, origin), time_object(end, origin),
        has_domain(slice) ? 0 : (unsigned long long)nbytes, file, line,
        function,
        source_row != PS_NO_ROW && source_row >= first
            ? PyLong_FromUnsignedLong(source_row - first)
            : Py_NewRef(Py_None),
        slice_domain(log, slice));
    Py_DECREF(stream);
    Py_XDECREF(place);
    return row;
}

static PyObject *
timeline_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    unsigned long long base, first, last;
    long long origin;
    if (!PyArg_ParseTuple(args, "OKKKL:timeline_rows", &capsule, &base, &first,
                          &last, &origin)) {
        return NULL;
    }
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    PyObject *rows = log != NULL ? PyList_New(0) : NULL;
    if (rows == NULL) {
        return NULL;
    }
    unsigned long long end = ps_timeline_end(log->timeline);
    last = last < end ? last : end;
    uint32_t least = PS_NO_ROW;
    for (; least == PS_NO_ROW && base < last; base++) {
        least = row_number(ps_timeline_slice(log->timeline, base));
    }
    for (unsigned long long i = first; i < last && rows != NULL; i++) {
        const struct ps_slice *slice = ps_timeline_slice(log->timeline, i);
        if (row_number(slice) == PS_NO_ROW) {
            continue;
        }
        rows = list_with(rows,
                         row_of(log, slice, (int)slice->kind, origin, least));
    }
    return rows;
}

static PyObject *
timeline_nodes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    unsigned long long first, last;
    long long origin;
    struct ps_node node;
    if (!PyArg_ParseTuple(args, "OKKL:timeline_nodes", &capsule, &first, &last,
                          &origin)) {
        return NULL;
    }
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    PyObject *rows = log != NULL ? PyList_New(0) : NULL;
    for (uint64_t i = 0;
         rows != NULL && ps_timeline_node(log->timeline, i, &node); i++) {
        if (node.launch < first || node.launch >= last) {
            continue;
        }
        rows =
            list_with(rows, row_of(log, &node.slice, NODE, origin, PS_NO_ROW));
    }
    return rows;
}

/* A span that has begun but not ended. */
struct span {
    struct ps_stream *stream; /* NULL for a span of the host */
    struct ps_open_span open;
};

static void
span_destroy(PyObject *capsule)
{
    struct span *span = PyCapsule_GetPointer(capsule, span_name);
    if (span->stream == NULL || span->open.stamps != NULL) {
        ps_timeline_span_drop(&span->open);
    }
    stream_release(span->stream);
    PyMem_Free(span);
}

static PyObject *
timeline_span_begin(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *argument;
    if (!PyArg_ParseTuple(args, "UO:timeline_span_begin", &name, &argument)) {
        return NULL;
    }
    struct span *span = PyMem_Calloc(1, sizeof(*span));
    if (span == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(span, span_name, span_destroy);
    if (capsule == NULL) {
        PyMem_Free(span);
        return NULL;
    }
    if (argument != Py_None) {
        span->stream = stream_named("span", argument);
        if (span->stream == NULL) {
            Py_DECREF(capsule);
            return NULL;
        }
        struct ps_actor_name actor = actor_name(span->stream);
        CALL_BACKEND(span->stream->device->runtime,
                     span->open = ps_timeline_span_begin(&actor));
    }
    else {
        span->open.slice = ps_timeline_add(NULL, PS_SLICE_SPAN, NULL);
    }
    if (span->open.slice != NULL) {
        name_slice(span->open.slice, name);
        PyErr_Clear();
    }
    if (span->open.slice != NULL && span->stream == NULL) {
        ps_slice_begin(span->open.slice);
        ps_slice_publish(span->open.slice, span->open.slice->times.begin);
    }
    return capsule;
}

static PyObject *
timeline_span_end(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct span *span = PyCapsule_GetPointer(capsule, span_name);
    if (span == NULL) {
        return NULL;
    }
    if (span->open.slice != NULL && span->stream != NULL) {
        struct ps_actor_name actor = actor_name(span->stream);
        CALL_BACKEND(span->stream->device->runtime,
                     ps_timeline_span_end(&actor, &span->open));
    }
    else if (span->open.slice != NULL) {
        ps_slice_end(span->open.slice);
    }
    span->open = (struct ps_open_span){0};
    Py_RETURN_NONE;
}

/* ---- Awaits: waits during which the thread runs other code ---- */

/* Returns the number of the current log; 0 if no log is active. */
static uintptr_t
number_of_log(void)
{
    uintptr_t number;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    number = current != NULL ? current->number : 0;
    Py_END_CRITICAL_SECTION();
    return number;
}

/* Called at the beginning of an await.  Adds a slice whose source is the work
 * for which the await waits.  This slice is not shown as a row;
 * timeline_await_end adds another slice, which is shown. */
static PyObject *
timeline_await_begin(PyObject *Py_UNUSED(module), PyObject *object)
{
    struct work work = {0};
    uint64_t index;
    if (!ps_timeline_is_on()) {
        Py_RETURN_NONE;
    }
    bool is_future = PyObject_TypeCheck(object, module_state.future_base_type);
    bool has_work = object != Py_None && !is_future;
    if (has_work && work_of(object, &work) < 0) {
        return NULL;
    }
    uint64_t source = is_future ? future_source(object) : 0;
    struct ps_slice *slice =
        make_wait(has_work ? &work : NULL, source, &index);
    stream_release(work.stream);
    if (slice == NULL) {
        Py_RETURN_NONE;
    }
    int64_t begin = slice->times.begin;
    unsigned place = slice->place;
    ps_slice_publish(slice, begin);
    ps_slice_drop(slice);
    return Py_BuildValue("(KKIL)", (unsigned long long)number_of_log(),
                         (unsigned long long)index + 1, place,
                         (long long)begin);
}

static PyObject *
timeline_await_end(PyObject *Py_UNUSED(module), PyObject *begun)
{
    unsigned long long number, source;
    unsigned place;
    long long begin;
    uint64_t index;
    if (begun == Py_None) {
        Py_RETURN_NONE;
    }
    if (!PyArg_Parse(begun, "(KKIL)", &number, &source, &place, &begin)) {
        return NULL;
    }
    struct ps_slice *slice =
        number == number_of_log()
            ? ps_timeline_add(NULL, PS_SLICE_SYNCHRONIZE, &index)
            : NULL;
    if (slice != NULL) {
        name_wait(slice, "await");
        slice->place = place;
        slice->source = source;
        slice->times.begin = ps_timeline_idle_since(index, source, begin);
        ps_slice_end(slice);
        ps_slice_publish(slice, begin);
    }
    Py_RETURN_NONE;
}

static PyObject *
timeline_error(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct log *log = PyCapsule_GetPointer(capsule, log_name);
    return log == NULL ? NULL
                       : PyLong_FromLongLong(ps_timeline_error(log->timeline));
}

PyMethodDef timeline_functions[] = {
    FUNCTION("timeline_start", timeline_start, METH_VARARGS,
             "threads, by_events, /",
             "Begin to record, and return the log and the reason why devices "
             "do not report the work of\nother libraries.  The reason is "
             "empty if they do, or if no reason is known, as "
             "without\nCUPTI.\n\n"
             "threads has each thread by its identifier.  by_events: time all "
             "operations by events,\neven if their backend reports their "
             "times."),
    FUNCTION("timeline_stop", timeline_stop, METH_NOARGS, "/",
             "Stop recording."),
    FUNCTION("timeline_now", timeline_now, METH_NOARGS, "/",
             "Return the time in nanoseconds by which slices are timed."),
    FUNCTION("timeline_end", timeline_end, METH_O, "log, /",
             "Return the number of the next slice of the log."),
    FUNCTION("timeline_thread", timeline_thread, METH_O, "log, /",
             "Return the name of the calling thread in the log, which must "
             "be recording."),
    FUNCTION("timeline_resolve", timeline_resolve, METH_O, "log, /",
             "Compute the times that follow from others, as known now."),
    FUNCTION("timeline_rows", timeline_rows, METH_VARARGS,
             "log, base, first, last, origin, /",
             "Return the rows of the slices from first to before last, with "
             "times from the origin on and\nsources counted from the slice "
             "base on."),
    FUNCTION("timeline_nodes", timeline_nodes, METH_VARARGS,
             "log, first, last, origin, /",
             "Return the rows of what the graphs did that the slices from "
             "first to before last\nlaunched."),
    FUNCTION("timeline_error", timeline_error, METH_O, "log, /",
             "Return the error, in nanoseconds, of times measured with events "
             "or reported by devices."),
    FUNCTION("timeline_await_begin", timeline_await_begin, METH_O, "obj, /",
             "Begin an await of a stream, an event, a Future of "
             "Stream.submit, or, for None, of\nseveral objects, and return "
             "it; None if nothing records."),
    FUNCTION("timeline_await_end", timeline_await_end, METH_O, "begun, /",
             "End the await now, unless it is None.  Its thread has waited "
             "since its latest call."),
    FUNCTION("timeline_span_begin", timeline_span_begin, METH_VARARGS,
             "name, stream, /",
             "Begin a span on a stream, or on the calling thread for None, "
             "and return it."),
    FUNCTION("timeline_span_end", timeline_span_end, METH_O, "span, /",
             "End the span after the work that its stream has now or, without "
             "a stream, now."),
    {NULL},
};
