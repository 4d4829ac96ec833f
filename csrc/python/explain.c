/* Collects what threads, streams and callables wait for; pystreams/_explain.py
 * turns this into words.  The functions that collect this do not block, queue
 * work or change any state, so explain() can be called no matter what else is
 * waiting.  The lists of waits and of callables are copied without releasing
 * the GIL, so that each copy is consistent. */
#include "explain.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>

#include "../backends/backends.h"

#include "args.h"
#include "backends.h"
#include "errors.h"
#include "event.h"
#include "future.h"
#include "stream.h"
#include "submit.h"
#include "threads.h"

/* ---- Waits of threads ---- */

/* The list of waits.  The GIL guards it; on a free-threaded interpreter,
 * `holder` is its lock.  If `generation` is not the fork generation of this
 * process, the list belongs to the parent process. */
static struct {
    struct blocked *first;
    unsigned generation;
#ifdef Py_GIL_DISABLED
    /* A spin lock.  The value is 0 while the lock is free, otherwise 1 + the
     * fork generation of the process that holds it.  If the parent held the
     * lock at the fork, a child may take it anyway, because no thread of the
     * child would ever release it. */
    atomic_uint holder;
#endif
} waits;

static void
lock_waits(void)
{
#ifdef Py_GIL_DISABLED
    unsigned mine = ps_generation() + 1, seen = 0;
    while (!atomic_compare_exchange_weak(&waits.holder, &seen, mine)) {
        if (seen == mine) {
            seen = 0;
            sched_yield();
        }
    }
#endif
    if (waits.generation != ps_generation()) {
        waits.generation = ps_generation();
        waits.first = NULL;
    }
}

static void
unlock_waits(void)
{
#ifdef Py_GIL_DISABLED
    atomic_store(&waits.holder, 0);
#endif
}

void
blocked_begin(struct blocked *blocked, const char *operation,
              const struct work *work, PyObject *object)
{
    *blocked = (struct blocked){
        .generation = ps_generation(),
        .thread = PyThread_get_thread_ident(),
        .state = PyThreadState_Get(),
        .operation = operation,
        .work = work,
        .object = object,
        .since_ns = coarse_ns(),
    };
    lock_waits();
    blocked->next = waits.first;
    blocked->link = &waits.first;
    if (blocked->next != NULL) {
        blocked->next->link = &blocked->next;
    }
    waits.first = blocked;
    unlock_waits();
}

void
blocked_end(struct blocked *blocked)
{
    lock_waits();
    if (blocked->generation == waits.generation) {
        *blocked->link = blocked->next;
        if (blocked->next != NULL) {
            blocked->next->link = blocked->link;
        }
    }
    unlock_waits();
}

/* ---- Words for streams and events ---- */

/* Returns the key of a stream: the tuple (backend, runtime, device_index,
 * handle).  `backend` is the name of the device type, for people to read.
 * Several emulations have the same name, so the key also has `runtime`, the
 * index of the runtime. */
static PyObject *
key_of(const struct ps_device *device, ps_handle handle)
{
    return Py_BuildValue("(siiK)", device->runtime->backend->name,
                         device->runtime->index, device->index,
                         (unsigned long long)handle);
}

/* Returns whether the event's latest record is known to be done.  Does not
 * query a backend with PS_BACKEND_SHARED, because such a query may wait for
 * other libraries. */
static bool
is_done(struct ps_event *event)
{
    const struct ps_backend *backend = event->runtime->registered;
    struct ps_device *device = atomic_load(&event->device);
    if (ps_event_known_done(event) || device == NULL) {
        return true;
    }
    return !(backend->flags & PS_BACKEND_SHARED) &&
           event->generation == ps_generation() &&
           backend->event_query(backend, device->index,
                                atomic_load(&event->handle)) !=
               PS_ERROR_NOT_READY;
}

/* Returns (done, key).  `done` tells whether the event is done.  `key` is the
 * key of the stream of its latest record, or None if that stream is not
 * known. */
static PyObject *
state_of_event(struct ps_event *event)
{
    struct ps_device *device = atomic_load(&event->device);
    bool done = is_done(event);
    bool known =
        device != NULL && !event->external && !ps_event_is_shared(event);
    PyObject *key = known ? key_of(device, atomic_load(&event->source))
                          : Py_NewRef(Py_None);
    return Py_BuildValue("(ON)", done ? Py_True : Py_False, key);
}

/* Returns what a wait is waiting for: ("stream", key), ("event", (done, key or
 * None)), ("device", backend, runtime, index), or ("object", object). */
static PyObject *
target_of(const struct work *work, PyObject *object)
{
    if (work == NULL) {
        return Py_BuildValue("(sO)", "object", object);
    }
    if (work->stream != NULL) {
        return Py_BuildValue(
            "(sN)", "stream",
            key_of(work->stream->device, work->stream->identity));
    }
    if (work->event != NULL) {
        return Py_BuildValue("(sN)", "event", state_of_event(work->event));
    }
    return Py_BuildValue("(ssii)", "device",
                         work->device->runtime->backend->name,
                         work->device->runtime->index, work->device->index);
}

/* Get the device and the handle from a stream's key.  Returns NULL without an
 * exception if this process does not use the device; NULL with an exception
 * for a malformed key. */
static struct ps_device *
parse_key(PyObject *args, ps_handle *handle)
{
    const char *name;
    int number, index;
    unsigned long long value;
    struct ps_device *device = NULL;
    if (PyArg_ParseTuple(args, "(siiK)", &name, &number, &index, &value) &&
        number >= 0 && number < ps_runtime_count() &&
        ps_runtime_is_used(ps_runtime_at(number))) {
        *handle = (ps_handle)value;
        ps_runtime_device(ps_runtime_at(number), index, &device);
    }
    return device;
}

static PyObject *
explain_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    enum { ROOM = 16 };
    struct ps_stream_state states[ROOM];
    ps_handle handle;
    int count = 0;
    struct ps_device *device = parse_key(args, &handle);
    if (device == NULL) {
        return none_unless_raised(PyErr_Occurred() != NULL ? -1 : 0);
    }
    const struct ps_backend *backend = device->runtime->registered;
    if (backend->stream_explain == NULL ||
        backend->stream_explain(backend, device->index, handle, states, ROOM,
                                &count) != PS_SUCCESS) {
        Py_RETURN_NONE;
    }
    int found = count < ROOM ? count : ROOM;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < found; i++) {
        const struct ps_stream_state *state = &states[i];
        PyObject *key =
            key_of(&device->runtime->devices[state->device], state->stream);
        list = list_with(list,
                         Py_BuildValue("(NIiznLi)", key, state->pending,
                                       (int)state->obstacle, state->operation,
                                       (Py_ssize_t)state->nbytes,
                                       (long long)state->left_ns,
                                       i == ROOM - 1 ? count - ROOM : 0));
    }
    return list;
}

static PyObject *
explain_name(PyObject *Py_UNUSED(module), PyObject *args)
{
    ps_handle handle;
    struct ps_device *device = parse_key(args, &handle);
    if (device == NULL) {
        return PyErr_Occurred() != NULL ? NULL
                                        : Py_BuildValue("(Oi)", Py_None, 0);
    }
    unsigned number = ps_cpu_schedules.number(device->runtime->registered,
                                              device->index, handle);
    return Py_BuildValue("(NI)", stream_name_at(device, handle), number);
}

static PyObject *
explain_target(PyObject *Py_UNUSED(module), PyObject *argument)
{
    struct work work = {0};
    struct stream_use use;
    if (is_event(argument)) {
        work.event = ((EventObject *)argument)->event;
        if (atomic_load(&work.event->recorded) == 0 &&
            !ps_event_is_shared(work.event)) {
            Py_RETURN_NONE;
        }
        return target_of(&work, NULL);
    }
    if (stream_use_named("explain_target", argument, &use) < 0) {
        return NULL;
    }
    work.stream = use.stream;
    PyObject *target = target_of(&work, NULL);
    stream_use_end(&use);
    return target;
}

/* Append the keys of the device's streams that have pending work, and return
 * the list.  On failure, drop the list and return NULL with an exception. */
static PyObject *
with_busy_streams(PyObject *list, struct ps_device *device)
{
    const struct ps_backend *backend = device->runtime->registered;
    size_t room = backend->stream_explain != NULL
                      ? ps_device_identities(device, NULL, 0)
                      : 0;
    ps_handle *handles = PyMem_Calloc(room + 1, sizeof(*handles));
    if (handles == NULL) {
        return list_with(list, PyErr_NoMemory());
    }
    size_t count = room > 0 ? ps_device_identities(device, handles, room) : 0;
    for (size_t i = 0; i < count && i < room && list != NULL; i++) {
        struct ps_stream_state state;
        int states;
        if (backend->stream_explain(backend, device->index, handles[i], &state,
                                    1, &states) == PS_SUCCESS &&
            (states != 1 || state.pending > 0)) {
            list = list_with(list, key_of(device, handles[i]));
        }
    }
    PyMem_Free(handles);
    return list;
}

static PyObject *
explain_streams(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        int count = ps_runtime_is_used(runtime)
                        ? atomic_load(&runtime->device_count)
                        : 0;
        for (int d = 0; list != NULL && d < count; d++) {
            list = with_busy_streams(list, &runtime->devices[d]);
        }
    }
    return list;
}

/* ---- Callables and threads ---- */

static double
seconds_since(int64_t since_ns)
{
    int64_t passed = coarse_ns() - since_ns;
    return passed > 0 ? (double)passed / 1e9 : 0.0;
}

/* Returns a new reference to the innermost frame of a thread.  `state` must be
 * NULL or the state of a thread that has not ended.  Returns None if `state`
 * is NULL or the thread has no frame.  Always returns None on a free-threaded
 * interpreter, because the thread may be running there.  Also returns None
 * while the interpreter is finalizing, because Python then frees the states of
 * threads that are still waiting. */
static PyObject *
frame_of(PyThreadState *state)
{
    PyObject *frame = NULL;
#ifdef Py_GIL_DISABLED
    (void)state;
#else
    if (state != NULL && !is_finalizing()) {
        frame = (PyObject *)PyThreadState_GetFrame(state);
    }
#endif
    return frame != NULL ? frame : Py_NewRef(Py_None);
}

/* Call a function that makes a list, with the garbage collector off.
 * Otherwise a collection could run a finalizer that releases the GIL, and
 * other threads could change what the function is listing.  On a free-threaded
 * interpreter this is not needed, because a collection does not run within
 * such a call. */
static PyObject *
list_in_one_go(PyObject *(*list)(void))
{
#ifdef Py_GIL_DISABLED
    return list();
#else
    int collecting = PyGC_Disable();
    PyObject *found = list();
    if (collecting) {
        PyGC_Enable();
    }
    return found;
#endif
}

static PyObject *
tuple_of_callable(const struct job *job)
{
    const struct ps_stream *stream = atomic_load(&job->stream);
    return Py_BuildValue(
        "(NOONOOkdN)", key_of(stream->device, stream->identity), job->function,
        job->future, future_place(job->future),
        job->state != NULL ? Py_True : Py_False,
        atomic_load(&job->reached) ? Py_True : Py_False, job->thread,
        seconds_since(job->since_ns), frame_of(job->state));
}

static PyObject *
list_all_callables(void)
{
    return list_callables(tuple_of_callable);
}

static PyObject *
explain_callables(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return list_in_one_go(list_all_callables);
}

static PyObject *
list_waits(void)
{
    PyObject *list = PyList_New(0);
    lock_waits();
    for (struct blocked *b = waits.first; b != NULL && list != NULL;
         b = b->next) {
        list =
            list_with(list, Py_BuildValue("(ksdNN)", b->thread, b->operation,
                                          seconds_since(b->since_ns),
                                          target_of(b->work, b->object),
                                          frame_of(b->state)));
    }
    unlock_waits();
    return list;
}

static PyObject *
explain_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return list_in_one_go(list_waits);
}

/* ---- A signal that prints explain() ----
 *
 * The signal handler posts a semaphore.  One of the package's threads waits
 * for the semaphore with the GIL released, and then calls explain().  This
 * does not need the main thread, which may be blocked in any call. */

static sem_t asked;

/* The handlers that count_signal has replaced, indexed by the signal.  Once
 * set, an entry is never changed.  Otherwise, if another library replaced
 * count_signal with a handler that calls it, and count_signal were installed
 * again, the two handlers would call each other forever. */
static struct {
    bool known;
    struct sigaction action;
} former[NSIG];

static void
count_signal(int number, siginfo_t *info, void *context)
{
    const struct sigaction *before = &former[number].action;
    int error = errno;
    sem_post(&asked);
    if (before->sa_flags & SA_SIGINFO) {
        before->sa_sigaction(number, info, context);
    }
    else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(number);
    }
    errno = error;
}

/* The body of the thread that answers the signals.  It runs until the process
 * ends. */
static void
answer_signals(void)
{
    for (;;) {
        int failed;
        WITHOUT_GIL(failed = sem_wait(&asked));
        if (failed) {
            continue;
        }
        if (drop_result(import_call("pystreams._explain", "answer", "()")) <
            0) {
            report_ignored("explaining what work waits for");
        }
    }
}

static PyObject *
explain_on_signal(PyObject *Py_UNUSED(module), PyObject *argument)
{
    static unsigned generation = UINT_MAX;
    struct sigaction before,
        action = {
            .sa_sigaction = count_signal,
            .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK,
        };
    sigemptyset(&action.sa_mask);
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    /* Check that the signal can be caught.  If it cannot, sigaction even
     * refuses to set the present handler again. */
    if (number < 1 || number >= NSIG ||
        sigaction((int)number, NULL, &before) != 0 ||
        sigaction((int)number, &before, NULL) != 0) {
        return PyErr_Format(PyExc_ValueError,
                            "%ld is no signal that can be caught", number);
    }
    if (generation != ps_generation()) {
        sem_init(&asked, 0, 0);
        if (start_thread(NULL, answer_signals, NULL) < 0) {
            return NULL;
        }
        generation = ps_generation();
    }
    if (!former[number].known) {
        former[number].known = true;
        former[number].action = before;
        sigaction((int)number, &action, NULL);
    }
    Py_RETURN_NONE;
}

/* ---- The end of an error's message ---- */

PyObject *
explanation_of(const char *function, const struct work *work, PyObject *object)
{
    PyObject *target = target_of(work, object);
    PyObject *text = target != NULL ? import_call("pystreams._explain",
                                                  function, "(O)", target)
                                    : NULL;
    Py_XDECREF(target);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *error = take_exception();
        text =
            PyUnicode_FromFormat("what it waits for is not known: %R", error);
        Py_DECREF(error);
    }
    return text;
}

PyMethodDef explain_functions[] = {
    FUNCTION("explain_stream", explain_stream, METH_VARARGS, "key, /",
             "Return what a stream waits for: a list of tuples (key, pending, "
             "obstacle, operation,\nnbytes, left_ns, omitted), of the stream, "
             "of the one whose record it waits for, and\nso on.\n\n"
             "A key is (backend, runtime, device_index, handle).  None if the "
             "backend does not tell."),
    FUNCTION("explain_name", explain_name, METH_VARARGS, "key, /",
             "Return the name of a live stream, or None, and its number in "
             "the schedule that is\nexplored, or 0."),
    FUNCTION("explain_target", explain_target, METH_O, "object, /",
             "Return what a wait for a Stream or an Event waits for: "
             "(\"stream\", key), or\n(\"event\", (done, key)) of the event's "
             "latest record, None if there is none.\n\n"
             "An event's key is that of its stream; None if it is not known."),
    FUNCTION("explain_streams", explain_streams, METH_NOARGS, "/",
             "Return the keys of the streams that are known to have work."),
    FUNCTION("explain_callables", explain_callables, METH_NOARGS, "/",
             "Return the callables that have not ended: those that run, the "
             "latest first, then the\nothers, the latest first; as tuples "
             "(key, function, future, place, running, reached,\nthread, "
             "seconds, frame)."),
    FUNCTION("explain_threads", explain_threads, METH_NOARGS, "/",
             "Return the threads that wait for work, the latest first, as "
             "tuples (thread,\noperation, seconds, target, frame)."),
    FUNCTION("explain_on_signal", explain_on_signal, METH_O, "number, /",
             "Write what everything waits for to stderr upon a signal, on a "
             "thread of the package's.\n\n"
             "Call again in a forked child, which has no such thread.  Raises "
             "ValueError if the number\nis not that of a signal that can be "
             "caught."),
    {NULL},
};
