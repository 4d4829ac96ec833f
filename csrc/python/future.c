/* The types `_C.FutureBase` and `_C.FutureLock`.  The package's class
 * StreamFuture is derived from FutureBase and concurrent.futures.Future.
 * FutureBase has the methods that must differ from those of
 * concurrent.futures.Future.  FutureLock is the type of a Future's _condition.
 *
 * The state of a Future is an atomic word.  No method takes a lock, because an
 * exception such as KeyboardInterrupt could leave the lock held forever.
 * Starting and settling a Future allocate no memory, so that they cannot
 * fail. */
#include "future.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "args.h"
#include "errors.h"
#include "explain.h"
#include "places.h"
#include "schedules.h"
#include "submit.h"
#include "timeline.h"
#include "wait.h"

enum {
    /* The time for which a waiter spins before it sleeps: about as long as it
     * takes to sleep and wake up. */
    LINGER_NS = 50 * 1000,
    /* The main thread sleeps at most this long at a time and then checks for
     * signals, because a signal that arrives just before a sleep does not end
     * the sleep. */
    SLICE_NS = 500 * 1000 * 1000,
    /* While a schedule is explored, any thread sleeps at most this long at a
     * time, and then tries again to run the schedule's work. */
    SCHEDULE_SLICE_NS = 10 * 1000 * 1000,
};

/* A Future is done in the states CANCELLED and FINISHED. */
enum future_state { PENDING, RUNNING, CANCELLED, FINISHED };

typedef struct {
    PyObject ob_base;
    /* An enum future_state. */
    atomic_int state;
    /* Whether the exception must be logged if no code retrieves it. */
    atomic_bool unretrieved;
    /* The number of threads that sleep until the Future is done. */
    atomic_int sleepers;
    /* The fork generation of the process that submitted the callable. */
    unsigned generation;
    /* The number of threads inside `with _condition`, plus the flag PUBLISHED
     * once that is set. */
    atomic_uint holders;
    /* The number of threads that are adding a callback. */
    atomic_uint adders;
    /* Written before the Future is done, and constant afterwards. */
    PyObject *result;
    PyObject *exception;
    /* The race detector's moment at which the callable runs in its stream;
     * NULL if the detector was off. */
    struct ps_moment *moment;
    /* The value for ps_slice.source in the slices of waits for this Future;
     * see future_set_source. */
    uint64_t source;
    /* The code object that called submit, and the calling instruction in it;
     * NULL if no Python code called submit. */
    PyCodeObject *code;
    int instruction;
    /* Lists of callbacks, and of waiters of concurrent.futures; NULL until
     * they are needed. */
    PyObject *_Atomic callbacks;
    PyObject *_Atomic waiters;
} FutureObject;

/* A flag in `holders`.  Once it is set, the attribute _state shows that the
 * Future is done. */
#define PUBLISHED (UINT_MAX / 2 + 1)

static FutureObject *
as_future(PyObject *self)
{
    return (FutureObject *)self;
}

static int
state_of_future(FutureObject *self)
{
    return atomic_load(&self->state);
}

static bool
is_done(FutureObject *self)
{
    return state_of_future(self) >= CANCELLED;
}

static bool
future_is_done(void *future)
{
    return is_done(future);
}

/* While a schedule is explored, a thread may wait for a Future in code that
 * does not run the schedule's work, such as a function of concurrent.futures
 * or an event loop.  In that case, the threads that run callables also run the
 * schedule's work.  awaited_elsewhere counts the Futures for which threads may
 * wait in this way.  awaited_before is the value that awaited_elsewhere had
 * when the threads that run callables last found no such work. */
static atomic_ullong awaited_elsewhere, awaited_before;

static void
expect_wait_elsewhere(FutureObject *self)
{
    int64_t left = NO_TIMEOUT;
    advance_schedule(future_is_done, self, &left);
    if (!is_done(self) && ps_cpu_schedules.is_on()) {
        atomic_fetch_add(&awaited_elsewhere, 1);
        /* Threads whose callables ended before the increment could not know of
         * this wait, so run the work that they would have run. */
        advance_schedule(future_is_done, self, &left);
    }
}

bool
futures_are_awaited(void)
{
    return atomic_load(&awaited_elsewhere) != atomic_load(&awaited_before);
}

void
future_advance_awaited(void)
{
    enum ps_progress progress = PS_RAN;
    int64_t left = NO_TIMEOUT;
    unsigned long long seen;
    while (progress == PS_RAN && (seen = atomic_load(&awaited_elsewhere)) !=
                                     atomic_load(&awaited_before)) {
        /* The schedule's work may reach callables of other streams, and the
         * call below would wait for these callables.  So let another thread
         * run them. */
        let_others_run();
        WITHOUT_GIL(progress = ps_cpu_schedules.advance(&left));
        if (progress == PS_NOTHING) {
            atomic_store(&awaited_before, seen);
        }
    }
}

static bool
is_published(FutureObject *self)
{
    return atomic_load(&self->holders) & PUBLISHED;
}

/* Change the state from `from` to `to`.  Returns false, and changes nothing,
 * if the state is not `from`. */
static bool
change_state(FutureObject *self, enum future_state from, enum future_state to)
{
    int state = (int)from;
    return atomic_compare_exchange_strong(&self->state, &state, (int)to);
}

/* This counter is incremented each time a thread has settled the Future of a
 * callable, as soon as that thread has released the GIL or is about to run its
 * next callable. */
static atomic_ullong settled;

static PyObject *
alloc(PyTypeObject *type)
{
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL) {
        as_future(self)->generation = ps_generation();
    }
    return self;
}

static PyObject *
Future_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
           PyObject *Py_UNUSED(kwargs))
{
    return alloc(type);
}

PyObject *
future_new(void)
{
    PyObject *type = import_once(&module_state.future_type,
                                 "pystreams._futures", "StreamFuture");
    return type != NULL ? alloc((PyTypeObject *)type) : NULL;
}

/* Returns a new reference to one of the Future's lists; NULL if it does not
 * exist. */
static PyObject *
list_get(FutureObject *self, PyObject *_Atomic *field)
{
    PyObject *list;
    (void)self;
    Py_BEGIN_CRITICAL_SECTION(self);
    list = Py_XNewRef(*field);
    Py_END_CRITICAL_SECTION();
    return list;
}

/* Like list_get, but creates the list if there is none.  On failure, returns
 * NULL with an exception. */
static PyObject *
list_ask(FutureObject *self, PyObject *_Atomic *field)
{
    PyObject *list = list_get(self, field);
    /* Try again if another thread has created the list, and dropped it before
     * list_get was called. */
    while (list == NULL && set_once(field, PyList_New(0)) != NULL) {
        list = list_get(self, field);
    }
    return list;
}

static void
list_drop(FutureObject *self, PyObject *_Atomic *field)
{
    PyObject *list;
    (void)self;
    Py_BEGIN_CRITICAL_SECTION(self);
    list = atomic_exchange(field, NULL);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(list);
}

static int
Future_traverse(PyObject *op, visitproc visit, void *arg)
{
    FutureObject *self = as_future(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->result);
    Py_VISIT(self->exception);
    Py_VISIT(self->callbacks);
    Py_VISIT(self->waiters);
    return 0;
}

static int
Future_clear(PyObject *op)
{
    FutureObject *self = as_future(op);
    Py_CLEAR(self->result);
    Py_CLEAR(self->exception);
    list_drop(self, &self->callbacks);
    list_drop(self, &self->waiters);
    return 0;
}

/* Log an exception that no code has retrieved. */
static void
log_exception(FutureObject *self)
{
    PyObject *place = future_place((PyObject *)self);
    if (place == NULL ||
        drop_result(import_call("pystreams._futures", "log_unretrieved",
                                "(OO)", self->exception, place)) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(place);
}

static void
Future_finalize(PyObject *op)
{
    FutureObject *self = as_future(op);
    if (atomic_load_explicit(&self->unretrieved, memory_order_relaxed) &&
        !is_finalizing() && self->generation == ps_generation() &&
        atomic_exchange(&self->unretrieved, false)) {
        struct saved_exception saved = exception_save();
        log_exception(self);
        exception_restore(saved);
    }
}

static void
Future_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Future_clear(op);
    ps_moment_unref(as_future(op)->moment);
    Py_XDECREF(as_future(op)->code);
    object_free(op);
}

/* ---- For wait() and as_completed() of concurrent.futures ----
 *
 * These functions assume that a Future does not become done while they hold
 * its _condition.  The _condition here is not a lock, because Ctrl-C could
 * leave a lock held forever.  Instead, when a Future becomes done, its
 * attribute _state shows this only once no thread holds the _condition.  After
 * a second, the holders are assumed to be dead, and _state changes anyway. */

enum {
    NAP_US = 1000,
    /* If threads still hold the _condition after this number of naps, they are
     * assumed to be dead. */
    PATIENCE = 1000,
};

/* References to the items that a list has at one moment.  Other threads may
 * change the list afterwards. */
struct snapshot {
    PyObject *few[16];
    PyObject **items;
    Py_ssize_t count;
};

static void
nap(void)
{
    WITHOUT_GIL(usleep(NAP_US));
}

/* Copy the list.  Runs no Python code.  Returns false if out of memory. */
static bool
read_list(struct snapshot *snapshot, PyObject *list)
{
    snapshot->count = PyList_GET_SIZE(list);
    snapshot->items =
        snapshot->count <= (Py_ssize_t)Py_ARRAY_LENGTH(snapshot->few)
            ? snapshot->few
            : PyMem_New(PyObject *, snapshot->count);
    if (snapshot->items == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < snapshot->count; i++) {
        snapshot->items[i] = Py_NewRef(PyList_GET_ITEM(list, i));
    }
    return true;
}

static void
snapshot_take(struct snapshot *snapshot, FutureObject *self,
              PyObject *_Atomic *field)
{
    PyObject *list = list_get(self, field);
    bool taken = list == NULL;
    *snapshot = (struct snapshot){.items = snapshot->few};
    while (!taken) {
        Py_BEGIN_CRITICAL_SECTION(list);
        taken = read_list(snapshot, list);
        Py_END_CRITICAL_SECTION();
        if (!taken) {
            nap();
        }
    }
    Py_XDECREF(list);
}

static void
snapshot_drop(struct snapshot *snapshot)
{
    for (Py_ssize_t i = 0; i < snapshot->count; i++) {
        Py_DECREF(snapshot->items[i]);
    }
    if (snapshot->items != snapshot->few) {
        PyMem_Free(snapshot->items);
    }
}

/* Called when a call has raised an exception.  If it is MemoryError, clears
 * it, waits a little and returns true, so that the caller repeats the call.
 * Otherwise returns false. */
static bool
is_to_be_tried_again(void)
{
    if (!PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return false;
    }
    PyErr_Clear();
    nap();
    return true;
}

/* Returns whether the Future is in the waiter's finished_futures already.
 * Keeps the pending exception. */
static bool
is_known_to(PyObject *waiter, PyObject *future)
{
    struct saved_exception saved = exception_save();
    PyObject *list = PyObject_GetAttrString(waiter, "finished_futures");
    bool found = false;
    if (list != NULL && PyList_Check(list)) {
        Py_BEGIN_CRITICAL_SECTION(list);
        for (Py_ssize_t i = 0; !found && i < PyList_GET_SIZE(list); i++) {
            found = PyList_GET_ITEM(list, i) == future;
        }
        Py_END_CRITICAL_SECTION();
    }
    Py_XDECREF(list);
    exception_restore(saved);
    return found;
}

/* Report to the race detector that the caller knows that the Future is done.
 * Does nothing if the Future was cancelled, because then its callable has not
 * run. */
static void
note_reached(FutureObject *self)
{
    if (state_of_future(self) == FINISHED) {
        ps_races_reached(self->moment);
    }
}

/* Call a waiter's method with the Future.  If the call raises MemoryError
 * before the waiter has stored the Future, repeats the call.  After the waiter
 * has stored the Future, the call must not be repeated, because the waiter's
 * locks may still be held. */
static void
notify(PyObject *waiter, PyObject *future, const char *method)
{
    int result;
    note_reached(as_future(future));
    do {
        result =
            drop_result(PyObject_CallMethod(waiter, method, "(O)", future));
    } while (result < 0 && !is_known_to(waiter, future) &&
             is_to_be_tried_again());
    if (result < 0) {
        PyErr_WriteUnraisable(waiter);
    }
}

/* Set PUBLISHED when no thread holds the _condition, and then wait until no
 * thread is adding a callback.  After this, no callback can be added, because
 * a thread that adds one increments `adders` first and then checks
 * PUBLISHED. */
static void
show(FutureObject *self)
{
    unsigned none = 0;
    for (int i = 0; i < PATIENCE && !atomic_compare_exchange_strong(
                                        &self->holders, &none, PUBLISHED);
         i++) {
        none = 0;
        nap();
    }
    atomic_fetch_or(&self->holders, PUBLISHED);
    while (atomic_load(&self->adders) > 0) {
        nap();
    }
}

static void
publish(FutureObject *self)
{
    struct snapshot snapshot;
    show(self);
    snapshot_take(&snapshot, self, &self->waiters);
    const char *method = state_of_future(self) == CANCELLED ? "add_cancelled"
                         : self->exception != NULL          ? "add_exception"
                                                            : "add_result";
    for (Py_ssize_t i = 0; i < snapshot.count; i++) {
        notify(snapshot.items[i], (PyObject *)self, method);
    }
    snapshot_drop(&snapshot);
}

/* ---- The attributes ---- */

typedef struct {
    PyObject ob_base;
    FutureObject *future;
} LockObject;

static PyObject *
get_state(PyObject *op, void *Py_UNUSED(closure))
{
    FutureObject *self = as_future(op);
    int state = state_of_future(self);
    if (state >= CANCELLED && !is_published(self)) {
        state = state == CANCELLED ? PENDING : RUNNING;
    }
    if (state == FINISHED) {
        note_reached(self);
    }
    return Py_NewRef(PyTuple_GET_ITEM(module_state.future_states, state));
}

static PyObject *
get_result(PyObject *self, void *Py_UNUSED(closure))
{
    FutureObject *future = as_future(self);
    PyObject *result = is_done(future) ? future->result : NULL;
    return Py_NewRef(result != NULL ? result : Py_None);
}

static PyObject *
get_exception(PyObject *self, void *Py_UNUSED(closure))
{
    FutureObject *future = as_future(self);
    PyObject *exception = is_done(future) ? future->exception : NULL;
    atomic_store(&future->unretrieved, false);
    return Py_NewRef(exception != NULL ? exception : Py_None);
}

static PyObject *
get_unretrieved(PyObject *self, void *Py_UNUSED(closure))
{
    FutureObject *future = as_future(self);
    PyObject *exception = is_done(future) && atomic_load(&future->unretrieved)
                              ? future->exception
                              : NULL;
    return Py_NewRef(exception != NULL ? exception : Py_None);
}

static PyObject *
get_callbacks(PyObject *self, void *Py_UNUSED(closure))
{
    return list_ask(as_future(self), &as_future(self)->callbacks);
}

static PyObject *
get_waiters(PyObject *self, void *Py_UNUSED(closure))
{
    return list_ask(as_future(self), &as_future(self)->waiters);
}

static PyObject *
get_condition(PyObject *self, void *Py_UNUSED(closure))
{
    PyTypeObject *type = module_state.future_lock_type;
    expect_wait_elsewhere(as_future(self));
    LockObject *lock = (LockObject *)type->tp_alloc(type, 0);
    if (lock != NULL) {
        lock->future = as_future(Py_NewRef(self));
    }
    return (PyObject *)lock;
}

static PyGetSetDef future_getters[] = {
    {"_state", get_state, NULL,
     PyDoc_STR("The state that concurrent.futures sees."), NULL},
    {"_result", get_result, NULL, PyDoc_STR("The result, or None."), NULL},
    {"_exception", get_exception, NULL, PyDoc_STR("The exception, or None."),
     NULL},
    {"_unretrieved", get_unretrieved, NULL,
     PyDoc_STR("The exception, if no code has retrieved it yet, or None."),
     NULL},
    {"_condition", get_condition, NULL,
     PyDoc_STR("A context manager within which _state does not become done."),
     NULL},
    {"_waiters", get_waiters, NULL,
     PyDoc_STR(
         "The waiters of concurrent.futures' wait() and as_completed()."),
     NULL},
    {"_done_callbacks", get_callbacks, NULL,
     PyDoc_STR("The callables to call with the Future when it is done."),
     NULL},
    {NULL},
};

/* ---- FutureLock ---- */

static atomic_uint *
holders_of(PyObject *self)
{
    return &((LockObject *)self)->future->holders;
}

static PyObject *
Lock_acquire(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    atomic_fetch_add(holders_of(self), 1);
    Py_RETURN_TRUE;
}

static PyObject *
Lock_release(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    unsigned holders = atomic_load(holders_of(self));
    while ((holders & ~PUBLISHED) != 0 &&
           !atomic_compare_exchange_weak(holders_of(self), &holders,
                                         holders - 1)) {
    }
    if ((holders & ~PUBLISHED) == 0) {
        return PyErr_Format(PyExc_RuntimeError,
                            "release() of a _condition that nothing holds");
    }
    Py_RETURN_NONE;
}

static void
Lock_dealloc(PyObject *self)
{
    Py_XDECREF(((LockObject *)self)->future);
    object_free(self);
}

static PyMethodDef lock_methods[] = {
    METHOD("acquire", Lock_acquire, METH_NOARGS, ", /",
           "Keep the Future's _state from becoming done.  Does not block."),
    METHOD("release", Lock_release, METH_NOARGS, ", /", "Undo one acquire()."),
    METHOD("__enter__", Lock_acquire, METH_NOARGS, ", /", "Like acquire()."),
    METHOD("__exit__", Lock_release, METH_VARARGS, ", /, *exc_info",
           "Like release()."),
    {NULL},
};

PyDoc_STRVAR(lock_doc,
             "The object that concurrent.futures uses as a Future's lock.");

static PyType_Slot lock_slots[] = {
    {Py_tp_dealloc, Lock_dealloc},
    {Py_tp_methods, lock_methods},
    {Py_tp_doc, (void *)lock_doc},
    {0, NULL},
};

PyType_Spec future_lock_spec =
    TYPE_SPEC("pystreams._C.FutureLock", LockObject,
              Py_TPFLAGS_DISALLOW_INSTANTIATION, lock_slots);

/* ---- Settling ---- */

static long
futex(FutureObject *self, int operation, int value,
      const struct timespec *until)
{
    return syscall(SYS_futex, &self->state, operation | FUTEX_PRIVATE_FLAG,
                   value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

PyObject *
take_exception(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Call a callback.  If the callback raises an Exception, logs it, as
 * concurrent.futures does.  If it raises any other exception, returns -1 with
 * this exception. */
static int
call_callback(PyObject *callback, PyObject *future)
{
    note_reached(as_future(future));
    if (drop_result(PyObject_CallOneArg(callback, future)) == 0) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyObject *exception = take_exception();
    if (drop_result(import_call("pystreams._futures", "log_callback", "(OO)",
                                future, exception)) < 0) {
        PyErr_WriteUnraisable(callback);
    }
    Py_DECREF(exception);
    return 0;
}

/* Call all callbacks.  If any of them raises an exception that is not an
 * Exception, returns -1 with the last such exception. */
static int
call_callbacks(FutureObject *self)
{
    struct snapshot snapshot;
    PyObject *exit = NULL;
    snapshot_take(&snapshot, self, &self->callbacks);
    /* Drop the list now, so that a Future that lives on does not keep the
     * objects of its callbacks alive. */
    list_drop(self, &self->callbacks);
    for (Py_ssize_t i = 0; i < snapshot.count; i++) {
        if (call_callback(snapshot.items[i], (PyObject *)self) < 0) {
            Py_XSETREF(exit, take_exception());
        }
    }
    snapshot_drop(&snapshot);
    if (exit == NULL) {
        return 0;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exit), exit);
    Py_DECREF(exit);
    return -1;
}

/* Call this when the Future is done.  Wakes the waiters and calls the
 * callbacks.  Returns -1 with an exception as call_callbacks does. */
static int
finish(FutureObject *self)
{
    if (atomic_load(&self->sleepers) > 0) {
        futex(self, FUTEX_WAKE_BITSET, INT_MAX, NULL);
    }
    if (atomic_load(&self->holders) > 0 || self->waiters != NULL) {
        /* The calls below may take long, and may wait for other callables.  So
         * let another thread run the queued callables. */
        let_others_run();
        if (atomic_load(&self->holders) > 0) {
            /* The threads that hold the _condition may be waiting for their
             * turn in the schedule, so end this thread's turn. */
            end_turn();
        }
    }
    publish(self);
    if (self->callbacks == NULL) {
        return 0;
    }
    let_others_run();
    return call_callbacks(self);
}

void
future_set_moment(PyObject *self, struct ps_moment *moment)
{
    as_future(self)->moment = moment;
}

void
future_set_source(PyObject *self, uint64_t source)
{
    as_future(self)->source = source;
}

uint64_t
future_source(PyObject *self)
{
    return as_future(self)->source;
}

struct ps_moment *
future_moment(PyObject *self)
{
    return as_future(self)->moment;
}

void
future_set_place(PyObject *op)
{
    FutureObject *self = as_future(op);
    self->code = find_place(&self->instruction);
    if (self->code == NULL) {
        /* If memory runs out, the Future has no place. */
        PyErr_Clear();
    }
}

PyObject *
future_place(PyObject *op)
{
    FutureObject *self = as_future(op);
    return place_of(self->code, self->instruction);
}

bool
future_start(PyObject *self)
{
    return change_state(as_future(self), PENDING, RUNNING);
}

void
future_settle(PyObject *op, PyObject *outcome, bool failed, bool lost)
{
    FutureObject *self = as_future(op);
    atomic_store(&self->unretrieved, failed && lost);
    *(failed ? &self->exception : &self->result) = Py_NewRef(outcome);
    atomic_store(&self->state, FINISHED);
}

void
future_finish(PyObject *self)
{
    if (finish(as_future(self)) < 0) {
        PyErr_WriteUnraisable(self);
    }
}

static int
cancel(FutureObject *self)
{
    return change_state(self, PENDING, CANCELLED) ? finish(self) : 0;
}

void
future_cancel(PyObject *self)
{
    if (cancel(as_future(self)) < 0) {
        PyErr_WriteUnraisable(self);
    }
}

void
future_mark_settled(void)
{
    atomic_fetch_add(&settled, 1);
}

/* ---- Waiting ---- */

/* Raise one of concurrent.futures' exceptions.  Returns -1. */
static int
raise(const char *name)
{
    PyObject *type = import_attribute("concurrent.futures", name);
    if (type != NULL) {
        PyErr_SetNone(type);
    }
    Py_XDECREF(type);
    return -1;
}

/* Raise concurrent.futures.TimeoutError.  Returns -1. */
static int
raise_timeout(FutureObject *self, PyObject *timeout)
{
    PyObject *type = import_attribute("concurrent.futures", "TimeoutError");
    PyObject *text = type != NULL ? explanation_of("explain_timeout", NULL,
                                                   (PyObject *)self)
                                  : NULL;
    if (text != NULL) {
        PyErr_Format(type, "the callable had not ended after %S s\n%U",
                     timeout, text);
    }
    Py_XDECREF(type);
    Py_XDECREF(text);
    return -1;
}

/* Spin until the Future is done and `settled` is no longer `seen`, or until
 * `end`.  When `settled` changes, the thread that has settled the Future has
 * released the GIL, or is about to run its next callable.  Yields the
 * processor, because the two threads may share one core. */
static void
spin(FutureObject *self, unsigned long long seen, int64_t end)
{
    while ((!is_done(self) || atomic_load(&settled) == seen) &&
           monotonic_ns() < end) {
        sched_yield();
    }
}

/* Returns the time `ns` after `now`, or `end` if that is earlier. */
static int64_t
moment_after(int64_t now, int64_t ns, int64_t end)
{
    return ns < end - now ? now + ns : end;
}

/* Sleep until the Future is done, until `end`, or until a signal arrives. */
static void
sleep_until_done(FutureObject *self, int64_t end)
{
    struct timespec until = {end / 1000000000, end % 1000000000};
    int state, error = 0;
    atomic_fetch_add(&self->sleepers, 1);
    while ((state = state_of_future(self)) < CANCELLED && error != EINTR &&
           error != ETIMEDOUT) {
        error = futex(self, FUTEX_WAIT_BITSET, state,
                      end != NO_TIMEOUT ? &until : NULL) < 0
                    ? errno
                    : 0;
    }
    atomic_fetch_sub(&self->sleepers, 1);
}

static int
check_generation(FutureObject *self)
{
    if (self->generation != ps_generation()) {
        return refuse(PyExc_RuntimeError,
                      "a callable submitted before a fork does not run in the "
                      "child, where its Future never ends; submit it there, "
                      "or use the 'spawn' start method");
    }
    return 0;
}

/* While a schedule is explored, run its work until the Future is done or
 * nothing can run.  *stuck counts how many calls in a row have found nothing
 * that can run.  On failure, returns -1 with an exception. */
static int
advance(FutureObject *self, PyObject *timeout, int64_t *left_ns,
        unsigned *stuck)
{
    ps_status status = advance_schedule(future_is_done, self, left_ns);
    *stuck = status == PS_ERROR_DEADLOCK ? *stuck + 1 : 0;
    if (status == PS_ERROR_TIMED_OUT && !is_done(self)) {
        return raise_timeout(self, timeout);
    }
    /* If a single call finds nothing that can run, that need not be a
     * deadlock, because another thread may be about to settle the Future. */
    if (*stuck > 2) {
        raise_deadlock("Future.result", NULL, (PyObject *)self);
        return -1;
    }
    return 0;
}

/* Like sleep_until_done, but also reports the sleep to the schedule that is
 * explored. */
static void
sleep_in_schedule(FutureObject *self, unsigned seen, int64_t end,
                  int64_t *left_ns)
{
    struct ps_sleep sleep;
    ps_cpu_schedules.sleep(&sleep, true, seen, *left_ns);
    sleep_until_done(self, end);
    ps_cpu_schedules.wake(&sleep, left_ns);
}

/* Wait until the Future is done, or until no schedule is explored any more.
 * On failure, returns -1 with an exception. */
static int
wait_in_schedule(FutureObject *self, PyObject *timeout, int64_t timeout_ns)
{
    unsigned stuck = 0;
    int64_t end = timeout_ns, left = timeout_ns;
    if (is_done(self)) {
        return 0;
    }
    while (!is_done(self) && ps_cpu_schedules.is_on()) {
        if (check_generation(self) < 0 ||
            advance(self, timeout, &left, &stuck) < 0) {
            return -1;
        }
        unsigned seen = ps_cpu_schedules.endings();
        if (is_done(self)) {
            break;
        }
        int64_t now = monotonic_ns();
        if (end == timeout_ns && end != NO_TIMEOUT) {
            end = moment_after(now, timeout_ns, NO_TIMEOUT);
        }
        if (now >= end) {
            return raise_timeout(self, timeout);
        }
        WITHOUT_GIL(sleep_in_schedule(
            self, seen, moment_after(now, SCHEDULE_SLICE_NS, end), &left));
        if (run_handlers(self->generation) == PS_RAISED) {
            return -1;
        }
    }
    arrive_in_schedule();
    return 0;
}

/* Wait until the Future is done.  explain() and the timeline do not show this
 * wait.  On failure, returns -1 with an exception, which may be TimeoutError
 * or one that a signal handler raised. */
static int
wait_unseen(FutureObject *self, PyObject *timeout, int64_t timeout_ns)
{
    bool is_main = syscall(SYS_gettid) == getpid();
    unsigned long long seen = atomic_load(&settled);
    int64_t now = monotonic_ns();
    int64_t end = moment_after(now, timeout_ns, NO_TIMEOUT);
    let_others_run();
    if (ps_cpu_schedules.is_on() &&
        wait_in_schedule(self, timeout, timeout_ns) < 0) {
        return -1;
    }
    WITHOUT_GIL(spin(self, seen, moment_after(now, LINGER_NS, end)));
    int result = 0;
    while (!is_done(self) && result == 0) {
        now = monotonic_ns();
        result = check_generation(self) < 0 ? -1
                 : now >= end               ? raise_timeout(self, timeout)
                                            : 0;
        if (result == 0) {
            WITHOUT_GIL(sleep_until_done(
                self, is_main ? moment_after(now, SLICE_NS, end) : end));
            result = run_handlers(self->generation) == PS_RAISED ? -1 : 0;
        }
    }
    return result;
}

/* Like wait_unseen, but explain() and the timeline show the wait. */
static int
wait_until_done(FutureObject *self, PyObject *timeout, int64_t timeout_ns)
{
    struct ps_slice *slice = timeline_wait("Future", NULL, self->source);
    struct blocked blocked;
    blocked_begin(&blocked, "Future.result", NULL, (PyObject *)self);
    int result = wait_unseen(self, timeout, timeout_ns);
    blocked_end(&blocked);
    timeline_waited(slice);
    return result;
}

/* Wait, and raise CancelledError if the Future was cancelled.  On failure,
 * returns -1 with an exception. */
static int
wait_with(PyObject *op, const char *method, PyObject *const *args,
          Py_ssize_t nargs, PyObject *kwnames)
{
    FutureObject *self = as_future(op);
    PyObject *timeout;
    int64_t timeout_ns;
    if (parse_optional(method, "timeout", args, nargs, kwnames, &timeout) <
            0 ||
        timeout_argument(method, timeout, &timeout_ns) < 0 ||
        (!is_done(self) && wait_until_done(self, timeout, timeout_ns) < 0)) {
        return -1;
    }
    note_reached(self);
    return state_of_future(self) == CANCELLED ? raise("CancelledError") : 0;
}

static PyObject *
Future_result(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    FutureObject *self = as_future(op);
    if (wait_with(op, "result", args, nargs, kwnames) < 0) {
        return NULL;
    }
    if (self->exception != NULL) {
        atomic_store(&self->unretrieved, false);
        PyErr_SetObject((PyObject *)Py_TYPE(self->exception), self->exception);
        return NULL;
    }
    return get_result(op, NULL);
}

static PyObject *
Future_exception(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    return wait_with(self, "exception", args, nargs, kwnames) == 0
               ? get_exception(self, NULL)
               : NULL;
}

/* ---- The other methods ---- */

static PyObject *
Future_cancel(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (cancel(as_future(self)) < 0) {
        return NULL;
    }
    return PyBool_FromLong(state_of_future(as_future(self)) == CANCELLED);
}

static PyObject *
Future_cancelled(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(state_of_future(as_future(self)) == CANCELLED);
}

static PyObject *
Future_running(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    bool running = state_of_future(as_future(self)) == RUNNING;
    if (!running && !is_done(as_future(self))) {
        poll_schedule();
    }
    return PyBool_FromLong(running);
}

static PyObject *
Future_done(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    bool done = is_done(as_future(self));
    if (done) {
        note_reached(as_future(self));
    }
    else {
        poll_schedule();
    }
    return PyBool_FromLong(done);
}

static PyObject *
Future_add_done_callback(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames)
{
    FutureObject *self = as_future(op);
    PyObject *callback;
    if (parse_required("add_done_callback", "fn", args, nargs, kwnames,
                       &callback) < 0 ||
        (!is_done(self) && check_generation(self) < 0)) {
        return NULL;
    }
    expect_wait_elsewhere(self);
    PyObject *list = list_ask(self, &self->callbacks);
    if (list == NULL) {
        return NULL;
    }
    atomic_fetch_add(&self->adders, 1);
    bool published = is_published(self);
    int result = published ? 0 : PyList_Append(list, callback);
    atomic_fetch_sub(&self->adders, 1);
    Py_DECREF(list);
    return none_unless_raised(published ? call_callback(callback, op)
                                        : result);
}

static PyMethodDef future_methods[] = {
    METHOD(
        "result", Future_result, METH_FASTCALL | METH_KEYWORDS,
        ", /, timeout=None",
        "Return the callable's result, or raise its exception.\n\n"
        "Blocks with the GIL released; Ctrl-C ends the wait.  Raises "
        "TimeoutError after timeout\nseconds, and CancelledError if the call "
        "was cancelled."),
    METHOD(
        "exception", Future_exception, METH_FASTCALL | METH_KEYWORDS,
        ", /, timeout=None",
        "Return the callable's exception, or None.  Waits as result() does."),
    METHOD("cancel", Future_cancel, METH_NOARGS, ", /",
           "Cancel the call if it has not started; return whether it is "
           "cancelled.\n\n"
           "The Future is done at once."),
    METHOD("cancelled", Future_cancelled, METH_NOARGS, ", /",
           "Return whether the call was cancelled."),
    METHOD("running", Future_running, METH_NOARGS, ", /",
           "Return whether the callable is running."),
    METHOD("done", Future_done, METH_NOARGS, ", /",
           "Return whether the callable has ended or was cancelled."),
    METHOD(
        "add_done_callback", Future_add_done_callback,
        METH_FASTCALL | METH_KEYWORDS, ", /, fn",
        "Call fn with the Future when it is done, on the thread that "
        "completes it; at once if\nit already is.\n\n"
        "Raises RuntimeError in a child forked since the call was submitted: "
        "the callable does\nnot run there."),
    {NULL},
};

PyDoc_STRVAR(future_doc, "FutureBase()\n--\n\n"
                         "The methods of StreamFuture that differ from "
                         "concurrent.futures.Future's.");

static PyType_Slot future_slots[] = {
    {Py_tp_new, Future_new},
    {Py_tp_dealloc, Future_dealloc},
    {Py_tp_traverse, Future_traverse},
    {Py_tp_clear, Future_clear},
    {Py_tp_methods, future_methods},
    {Py_tp_getset, future_getters},
    {Py_tp_finalize, Future_finalize},
    {Py_tp_doc, (void *)future_doc},
    {0, NULL},
};

PyType_Spec future_spec =
    TYPE_SPEC("pystreams._C.FutureBase", FutureObject,
              Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, future_slots);
