/* The current stream in Python: `with stream:`, and the functions that return
 * and set it.
 *
 * Current streams belong to a thread or to a context (contextvars).  The
 * context in which a thread starts is its home context.  While the thread runs
 * there, a change of a current stream changes the thread's streams in place.
 * asyncio enters a copied context for each step of a task (PyContext_Enter).
 * In such a context, a change stores a changed copy of the streams in a
 * context variable, so that contexts that were copied earlier keep their
 * streams.
 *
 * A context whose variable has no value uses the thread's streams.  So does a
 * context whose value was set on another thread.  For example, a new thread
 * may run a copy of its creator's context, but every thread starts with the
 * default streams. */
#include "current.h"

#include "../core/emulation.h"
#include "../core/thread.h"
#include "../core/thread_stream.h"

#include "args.h"
#include "backends.h"
#include "device.h"
#include "errors.h"
#include "external_stream.h"
#include "races.h"
#include "stream.h"

/* The current streams of a thread or of a context. */
struct choice {
    struct ps_currents *currents;
    /* The number of the thread for which the streams were set. */
    uint64_t thread;
    /* The thread's home context, or NULL until that is known.  Always NULL in
     * the choice of a context. */
    PyObject *home;
};

#define CHOICE "pystreams.current"

/* The context variable; NULL until a context first gets a value. */
static PyObject *_Atomic variable;

static void
end_thread_streams(void)
{
    if (ps_thread_word(PS_THREAD_STREAMS) == NULL) {
        return;
    }
    WITHOUT_GIL({
        for (int i = 0; i < ps_runtime_count(); i++) {
            ps_memory_sweep(ps_runtime_at(i));
        }
        ps_thread_streams_end(NULL);
    });
}

static void
choice_destroy(struct choice *choice)
{
    if (choice == ps_thread_word(PS_THREAD_CURRENTS)) {
        ps_thread_set_word(PS_THREAD_CURRENTS, NULL);
        end_thread_streams();
    }
    ps_currents_destroy(choice->currents, stream_release);
    Py_XDECREF(choice->home);
    PyMem_Free(choice);
}

static struct choice *
choice_create(struct ps_currents *currents, uint64_t thread)
{
    struct choice *choice = PyMem_Calloc(1, sizeof(*choice));
    struct ps_currents *copy =
        choice != NULL ? ps_currents_create(currents) : NULL;
    if (copy == NULL) {
        PyMem_Free(choice);
        PyErr_NoMemory();
        return NULL;
    }
    choice->currents = copy;
    choice->thread = thread;
    return choice;
}

/* Returns whether the calling thread's Python thread state is being cleared.
 * If so, the thread's choice has been destroyed, and must not be created
 * again. */
static bool
has_ended(void)
{
    return (uintptr_t)ps_thread_word(PS_THREAD_ENDED) ==
           PyThreadState_GetID(PyThreadState_Get());
}

static void
destroy_capsule(PyObject *capsule)
{
    struct choice *choice = PyCapsule_GetPointer(capsule, CHOICE);
    if (is_finalizing()) {
        return;
    }
    if (choice == ps_thread_word(PS_THREAD_CURRENTS) &&
        PyThreadState_Get()->dict == NULL) {
        uintptr_t id = PyThreadState_GetID(PyThreadState_Get());
        ps_thread_set_word(PS_THREAD_ENDED, (void *)id);
    }
    choice_destroy(choice);
}

/* Returns a capsule that owns the choice.  On failure the choice is
 * destroyed. */
static PyObject *
capsule_of(struct choice *choice)
{
    PyObject *capsule = PyCapsule_New(choice, CHOICE, destroy_capsule);
    if (capsule == NULL) {
        choice_destroy(choice);
    }
    return capsule;
}

/* Returns the calling thread's choice, and creates it if there is none.  On
 * failure, returns NULL with an exception. */
static struct choice *
thread_choice(void)
{
    static atomic_ullong threads;
    struct choice *choice = ps_thread_word(PS_THREAD_CURRENTS);
    if (choice != NULL) {
        return choice;
    }
    /* The dictionary of the thread state owns the choice.  It is cleared when
     * the thread state ends, which is the only safe time to drop streams at
     * the end of a thread. */
    PyObject *dictionary = PyThreadState_GetDict();
    choice = dictionary != NULL
                 ? choice_create(NULL, atomic_fetch_add(&threads, 1) + 1)
                 : NULL;
    if (choice == NULL) {
        return (struct choice *)PyErr_NoMemory();
    }
    /* Set the word first: the calls below may run the garbage collector, which
     * may call this function again. */
    if (ps_thread_set_word(PS_THREAD_CURRENTS, choice) != PS_SUCCESS) {
        choice_destroy(choice);
        return (struct choice *)PyErr_NoMemory();
    }
    PyObject *capsule = capsule_of(choice);
    if (capsule != NULL &&
        PyDict_SetItemString(dictionary, CHOICE, capsule) < 0) {
        Py_CLEAR(capsule);
    }
    Py_XDECREF(capsule);
    return capsule != NULL ? choice : NULL;
}

static struct choice *
find_choice(struct choice *thread)
{
    struct choice *choice = NULL;
    PyObject *capsule;
    if (PyThreadState_Get()->context == thread->home) {
        return NULL;
    }
    if (PyContextVar_Get(variable, NULL, &capsule) < 0) {
        PyErr_Clear();
        return NULL;
    }
    /* The variable is visible to any code that iterates over a context, and
     * that code may set it to anything. */
    if (capsule != NULL && PyCapsule_IsValid(capsule, CHOICE)) {
        choice = PyCapsule_GetPointer(capsule, CHOICE);
    }
    Py_XDECREF(capsule);
    return choice != NULL && choice->thread == thread->thread ? choice : NULL;
}

/* Returns the choice of the running context, which owns it; NULL if the
 * context has no choice.  `thread` is the choice of the calling thread. */
static inline struct choice *
context_choice(struct choice *thread)
{
    return variable != NULL ? find_choice(thread) : NULL;
}

struct ps_currents *
currents_in_use(void)
{
    struct choice *thread = ps_thread_word(PS_THREAD_CURRENTS);
    if (thread == NULL) {
        return NULL;
    }
    struct choice *choice = context_choice(thread);
    return choice != NULL ? choice->currents : thread->currents;
}

static void
stream_freed(const struct ps_stream *stream)
{
    struct ps_actor_name name = actor_name(stream);
    ps_races_end_stream(&name);
}

struct ps_stream *
thread_stream(struct ps_device *device)
{
    struct ps_stream *stream = ps_thread_stream(device);
    if (stream != NULL && atomic_load(&stream->of_thread.adrift)) {
        WITHOUT_GIL(ps_thread_stream_recover(stream));
    }
    if (stream == NULL && has_ended()) {
        /* A stream that is created now would never be ended.  So use the
         * device's default stream.  Its work runs after all work of the
         * thread's own stream, which has been ended. */
        return ps_stream_ref(&device->default_stream);
    }
    if (stream != NULL || thread_choice() == NULL) {
        return stream;
    }
    WITHOUT_GIL(ps_emulations_leave_thread());
    /* Since the thread has a choice, its streams are ended when that choice is
     * destroyed. */
    PyObject *name = import_call("pystreams._names", "default_stream_name",
                                 "(k)", PyThread_get_thread_ident());
    const char *text = name != NULL ? PyUnicode_AsUTF8(name) : NULL;
    ps_status status =
        text != NULL
            ? ps_thread_stream_create(device, text, stream_freed, &stream)
            : PS_RAISED;
    Py_XDECREF(name);
    raise_status(device->runtime, "the default stream of a thread", status);
    return stream;
}

/* Returns the device's current stream, borrowed.  It may be the device's
 * callers_stream, which stands for the calling thread's default stream. */
static struct ps_stream *
named_current(struct ps_device *device)
{
    return ps_current_stream(currents_in_use(), device);
}

/* Returns a new reference to the stream.  If it is a callers_stream, returns
 * the calling thread's default stream instead. */
static inline struct ps_stream *
resolve(struct ps_stream *stream)
{
    return stream->kind >= PS_STREAM_DEFAULT ? ps_stream_ref(stream)
                                             : thread_stream(stream->device);
}

struct ps_stream *
current_stream_of(struct ps_device *device)
{
    return resolve(named_current(device));
}

struct ps_stream *
current_stream_at(int type)
{
    struct device_name name = {type, -1};
    struct ps_device *device = device_at("current_stream", name);
    return device != NULL ? resolve(named_current(device)) : NULL;
}

/* Returns 1 if threading.Thread has entered the context for the calling
 * thread, else 0.  On failure, returns -1 with an exception.  From Python 3.14
 * on, each thread runs in such a context. */
static int
is_threads_own(PyObject *context)
{
    int own = 0;
#if PY_VERSION_HEX >= 0x030E0000
    PyObject *thread = import_call("threading", "current_thread", "()");
    PyObject *entered = NULL;
    own = thread != NULL
              ? PyObject_GetOptionalAttrString(thread, "_context", &entered)
              : -1;
    own = own > 0 ? entered == context : own;
    Py_XDECREF(entered);
    Py_XDECREF(thread);
#else
    (void)context;
#endif
    return own;
}

/* Determine whether the running context is the thread's home context.  If so,
 * stores it in thread->home and returns 1.  If not, which means that the
 * program has entered the context, returns 0.  On failure, returns -1 with an
 * exception. */
static int
find_home(struct choice *thread)
{
    PyThreadState *state = PyThreadState_Get();
    if (state->context == NULL) {
        /* The thread has no context, so it has entered none.
         * PyContext_CopyCurrent also creates the thread's context, which is
         * then its home. */
        PyObject *copy = PyContext_CopyCurrent();
        if (copy == NULL) {
            return -1;
        }
        Py_DECREF(copy);
    }
    else if (PyContext_Enter(state->context) == 0) {
        PyContext_Exit(state->context);
    }
    else if (PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        /* The context cannot be entered again, because it was entered before.
         * It is the thread's home only if threading.Thread, not the program,
         * has entered it. */
        PyErr_Clear();
        int own = is_threads_own(state->context);
        if (own <= 0) {
            return own;
        }
    }
    else {
        return -1;
    }
    thread->home = Py_XNewRef(state->context);
    return 1;
}

/* Give the running context its own copy of the current streams.  On failure,
 * returns NULL with an exception. */
static struct choice *
renew_context_choice(struct choice *thread)
{
    PyObject *token = NULL;
    if (variable == NULL &&
        set_once(&variable, PyContextVar_New(CHOICE, NULL)) == NULL) {
        return NULL;
    }
    struct choice *choice = choice_create(currents_in_use(), thread->thread);
    PyObject *capsule = choice != NULL ? capsule_of(choice) : NULL;
    if (capsule != NULL) {
        token = PyContextVar_Set(variable, capsule);
        Py_DECREF(capsule);
    }
    Py_XDECREF(token);
    return token != NULL ? choice : NULL;
}

/* Returns the choice that must be modified when a current stream is changed in
 * the running context; NULL with an exception. */
static struct choice *
choice_to_change(void)
{
    struct choice *thread = thread_choice();
    if (thread == NULL) {
        return NULL;
    }
    if (thread->home == NULL && context_choice(thread) == NULL) {
        int found = find_home(thread);
        if (found != 0) {
            return found > 0 ? thread : NULL;
        }
    }
    return thread->home != NULL && PyThreadState_Get()->context == thread->home
               ? thread
               : renew_context_choice(thread);
}

/* Call ps_current_set or ps_current_enter for a stream that the caller holds.
 * Releases the GIL if the device has to be switched, which may take long. */
static ps_status
make_current(struct ps_stream *stream,
             ps_status (*operation)(struct ps_currents *currents,
                                    struct ps_stream *stream,
                                    struct ps_device *left,
                                    struct ps_stream **replaced))
{
    struct ps_stream *replaced = NULL;
    struct ps_device *left;
    struct choice *choice = choice_to_change();
    if (choice == NULL) {
        return PS_RAISED;
    }
    ps_status status =
        ps_runtime_current_device(stream->device->runtime, &left);
    if (status == PS_SUCCESS && left == stream->device) {
        status = operation(choice->currents, stream, left, &replaced);
    }
    else if (status == PS_SUCCESS) {
        WITHOUT_GIL(status =
                        operation(choice->currents, stream, left, &replaced));
    }
    stream_release(replaced);
    return status;
}

PyObject *
Stream_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_runtime *runtime = ((StreamObject *)self)->device->runtime;
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    ps_status status = make_current(use.stream, ps_current_enter);
    stream_use_end(&use);
    if (status != PS_SUCCESS) {
        return raise_status(runtime, "entering a stream", status);
    }
    return Py_NewRef(self);
}

/* Like choice_to_change, but for the end of `with stream:`, which must not
 * fail.  Returns NULL without an exception if neither this thread nor its
 * context has entered a stream. */
static struct choice *
choice_to_leave(void)
{
    struct choice *thread = ps_thread_word(PS_THREAD_CURRENTS);
    if (thread == NULL) {
        return NULL;
    }
    struct choice *choice = choice_to_change();
    if (choice == NULL) {
        /* The context's streams could not be copied, usually because memory is
         * short.  So change them in place, although contexts that were copied
         * from this one will see the change as well. */
        PyErr_Clear();
        choice = context_choice(thread);
    }
    return choice;
}

void
leave_current_streams(struct ps_runtime *runtime)
{
    struct ps_stream *stream;
    struct choice *choice = choice_to_leave();
    while (choice != NULL && (stream = ps_current_take(
                                  choice->currents, runtime->index)) != NULL) {
        stream_release(stream);
    }
}

/* Returns whether this is a forked child process and a parent process created
 * the Stream.  Returns false if the Stream is closed. */
static bool
is_forked(PyObject *stream)
{
    const StreamObject *self = (StreamObject *)stream;
    struct stream_use use;
    if (self->uses & STREAM_CALLERS) {
        return self->device->callers_stream.generation != ps_generation();
    }
    if (!stream_try_use(stream, &use)) {
        return false;
    }
    bool forked = use.stream->generation != ps_generation();
    stream_use_end(&use);
    return forked;
}

PyObject *
Stream_exit(PyObject *self, PyObject *const *Py_UNUSED(args),
            Py_ssize_t Py_UNUSED(nargs))
{
    if (is_forked(self)) {
        /* The parent entered the stream before the fork, so the child has
         * nothing to restore. */
        Py_RETURN_NONE;
    }
    struct ps_stream *dropped[PS_EXIT_DROPS] = {NULL};
    struct choice *choice = choice_to_leave();
    ps_status status =
        ps_current_exit(choice != NULL ? choice->currents : NULL,
                        ((StreamObject *)self)->device,
                        ((StreamObject *)self)->handle, dropped);
    for (int i = 0; i < PS_EXIT_DROPS; i++) {
        stream_release(dropped[i]);
    }
    if (status == PS_ERROR_INVALID_VALUE) {
        return PyErr_Format(PyExc_RuntimeError,
                            "%R was not entered by this thread or task", self);
    }
    return none_or_raise(((StreamObject *)self)->device->runtime,
                         "leaving a stream", status);
}

/* Returns a new Stream of this class.  It is for the device's current stream
 * if `current` is true, otherwise for the device's first_current.  If `device`
 * is NULL, an exception was raised while the device was looked up, and this
 * function returns NULL, too. */
static PyObject *
stream_at(struct ps_device *device, bool current, PyTypeObject *class)
{
    if (device == NULL) {
        return NULL;
    }
    struct ps_stream *stream =
        current ? named_current(device) : device->first_current;
    return stream_wrap(class, ps_stream_ref(stream));
}

static PyObject *
current_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    return stream_at(parse_device(args, "i|O:current_stream"), true,
                     module_state.stream_type);
}

static PyObject *
default_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    return stream_at(parse_device(args, "i|O:default_stream"), false,
                     module_state.stream_type);
}

static PyObject *
cuda_stream_at(const char *function, bool current, PyObject *const *args,
               Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *argument;
    if (parse_optional(function, "device", args, nargs, kwnames, &argument) <
        0) {
        return NULL;
    }
    return stream_at(device_argument(function, PS_DEVICE_CUDA, argument),
                     current, module_state.cuda_stream_type);
}

/* This function uses METH_FASTCALL, because programs call it before every
 * launch. */
static PyObject *
cuda_current_stream(PyObject *Py_UNUSED(module), PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    return cuda_stream_at("current_stream", true, args, nargs, kwnames);
}

static PyObject *
cuda_default_stream(PyObject *Py_UNUSED(module), PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    return cuda_stream_at("default_stream", false, args, nargs, kwnames);
}

static PyObject *
set_stream(PyObject *Py_UNUSED(module), PyObject *argument)
{
    struct ps_stream *stream = stream_named("set_stream", argument);
    if (stream == NULL) {
        return NULL;
    }
    struct ps_runtime *runtime = stream->device->runtime;
    ps_status status = make_current(stream, ps_current_set);
    stream_release(stream);
    return none_or_raise(runtime, "setting the current stream", status);
}

PyObject *
as_stream_object(const char *function, int type, PyObject *argument)
{
    PyObject *stream = Py_NewRef(argument);
    if (!is_stream(argument)) {
        struct ps_stream *foreign = foreign_stream(function, argument);
        Py_SETREF(stream, foreign != NULL ? stream_wrap(NULL, foreign) : NULL);
    }
    if (stream == NULL || type < 0) {
        return stream;
    }
    struct ps_device *device = ((StreamObject *)stream)->device;
    const struct ps_backend *backend = device->runtime->backend;
    if (backend->device_type != type) {
        PyErr_Format(PyExc_ValueError, "Expected a %s device, but got: %s:%d",
                     device_type_name(type), backend->name, device->index);
        Py_CLEAR(stream);
    }
    return stream;
}

static PyObject *
as_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *function;
    PyObject *argument;
    int type = -1;
    return PyArg_ParseTuple(args, "sO|i:as_stream", &function, &argument,
                            &type)
               ? as_stream_object(function, type, argument)
               : NULL;
}

PyMethodDef cuda_current_stream_function =
    FUNCTION("current_stream", cuda_current_stream,
             METH_FASTCALL | METH_KEYWORDS, "device=None",
             "Return the current stream of a device: the calling thread's, or "
             "its asyncio\ntask's.");

PyMethodDef cuda_default_stream_function =
    FUNCTION("default_stream", cuda_default_stream,
             METH_FASTCALL | METH_KEYWORDS, "device=None",
             "Return the default stream of a device: handle 0 or, "
             "with\nPYSTREAMS_PER_THREAD_DEFAULT_STREAM=1, the calling "
             "thread's, handle 2.");

PyMethodDef current_functions[] = {
    FUNCTION("current_stream", current_stream, METH_VARARGS,
             "type, device=None, /", "Return the device's current stream."),
    FUNCTION("default_stream", default_stream, METH_VARARGS,
             "type, device=None, /",
             "Return the device's default stream, handle 0 or 2."),
    FUNCTION("set_stream", set_stream, METH_O, "stream, /",
             "Make the stream current on its device, for this thread or its "
             "asyncio task,\nand its device current, for the thread."),
    FUNCTION(
        "as_stream", as_stream, METH_VARARGS, "function, stream, type=-1, /",
        "Return a Stream as it is, and any object with __cuda_stream__ as a "
        "Stream.\n\n"
        "A TypeError names the function.  Raises ValueError for a stream of a "
        "device type other\nthan the given one."),
    {NULL},
};
