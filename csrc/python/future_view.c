/* What wait() and as_completed() of concurrent.futures use of a Future: its
 * _state, its _waiters and its _condition, which is a `_C.FutureLock`.
 *
 * They count on a Future that does not become done while they hold its
 * _condition.  It is no lock, which Ctrl-C could leave locked for ever: what
 * _state shows waits for its holders, and takes them for dead after a
 * second. */
#include "future.h"

#include <unistd.h>

enum {
    NAP_US = 1000,
    /* Naps until the holders of a _condition are taken for dead. */
    PATIENCE = 1000,
};

typedef struct {
    PyObject ob_base;
    FutureObject *future;
} LockObject;

static void
nap(void)
{
    WITHOUT_GIL(usleep(NAP_US));
}

/* Runs no Python. */
static bool
snapshot_try(struct snapshot *snapshot, PyObject *list)
{
    snapshot->count = list != NULL ? PyList_GET_SIZE(list) : 0;
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

void
snapshot_take(struct snapshot *snapshot, PyObject **list)
{
    while (!snapshot_try(snapshot, *list)) {
        nap();
    }
}

void
snapshot_drop(struct snapshot *snapshot)
{
    for (Py_ssize_t i = 0; i < snapshot->count; i++) {
        Py_DECREF(snapshot->items[i]);
    }
    if (snapshot->items != snapshot->few) {
        PyMem_Free(snapshot->items);
    }
}

/* Whether to try again what raised, as there was no memory. */
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

/* Whether a waiter has the Future already.  Keeps the pending exception. */
static bool
is_known_to(PyObject *waiter, PyObject *future)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *list = PyObject_GetAttrString(waiter, "finished_futures");
    bool found = false;
    for (Py_ssize_t i = 0;
         list != NULL && PyList_Check(list) && i < PyList_GET_SIZE(list);
         i++) {
        found = found || PyList_GET_ITEM(list, i) == future;
    }
    Py_XDECREF(list);
    PyErr_Restore(type, value, traceback);
    return found;
}

/* What fails in the middle of a waiter's own method is lost: the locks that it
 * takes may be left locked. */
static void
notify(PyObject *waiter, PyObject *future, const char *method)
{
    PyObject *none;
    do {
        none = PyObject_CallMethod(waiter, method, "(O)", future);
    } while (none == NULL && !is_known_to(waiter, future) &&
             is_to_be_tried_again());
    if (none == NULL) {
        PyErr_WriteUnraisable(waiter);
    }
    Py_XDECREF(none);
}

void
future_publish(FutureObject *self)
{
    struct snapshot snapshot;
    for (int i = 0; (self->holders > 0 && i < PATIENCE) ||
                    !snapshot_try(&snapshot, self->waiters);
         i++) {
        nap();
    }
    self->published = true;
    const char *method = state_of_future(self) == CANCELLED ? "add_cancelled"
                         : self->exception != NULL          ? "add_exception"
                                                            : "add_result";
    for (Py_ssize_t i = 0; i < snapshot.count; i++) {
        notify(snapshot.items[i], (PyObject *)self, method);
    }
    snapshot_drop(&snapshot);
}

PyObject *
future_list(PyObject **list)
{
    PyObject *made = *list == NULL ? PyList_New(0) : NULL;
    /* Collecting garbage may have made one. */
    if (*list == NULL) {
        *list = made;
    }
    else {
        Py_XDECREF(made);
    }
    return *list;
}

/* ---- The attributes ---- */

static PyObject *
get_state(PyObject *op, void *Py_UNUSED(closure))
{
    FutureObject *self = as_future(op);
    int state = state_of_future(self);
    if (state >= CANCELLED && !self->published) {
        state = state == CANCELLED ? PENDING : RUNNING;
    }
    return Py_NewRef(PyTuple_GET_ITEM(state_of(op)->future_states, state));
}

static PyObject *
get_result(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *result = as_future(self)->result;
    return Py_NewRef(result != NULL ? result : Py_None);
}

static PyObject *
get_exception(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *exception = as_future(self)->exception;
    return Py_NewRef(exception != NULL ? exception : Py_None);
}

static PyObject *
get_callbacks(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_XNewRef(future_list(&as_future(self)->callbacks));
}

static PyObject *
get_waiters(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_XNewRef(future_list(&as_future(self)->waiters));
}

static PyObject *
get_condition(PyObject *self, void *Py_UNUSED(closure))
{
    PyTypeObject *type = state_of(self)->future_lock_type;
    LockObject *lock = (LockObject *)type->tp_alloc(type, 0);
    if (lock != NULL) {
        lock->future = as_future(Py_NewRef(self));
    }
    return (PyObject *)lock;
}

PyGetSetDef future_getters[] = {
    {"_state", get_state, NULL,
     PyDoc_STR("The state that concurrent.futures sees."), NULL},
    {"_result", get_result, NULL, PyDoc_STR("The result, or None."), NULL},
    {"_exception", get_exception, NULL, PyDoc_STR("The exception, or None."),
     NULL},
    {"_condition", get_condition, NULL,
     PyDoc_STR("What _state does not become done in."), NULL},
    {"_waiters", get_waiters, NULL,
     PyDoc_STR("Those of concurrent.futures' wait() and as_completed()."),
     NULL},
    {"_done_callbacks", get_callbacks, NULL,
     PyDoc_STR("The callables to call with the Future when it is done."),
     NULL},
    {NULL},
};

/* ---- FutureLock ---- */

static unsigned *
holders_of(PyObject *self)
{
    return &((LockObject *)self)->future->holders;
}

static PyObject *
Lock_acquire(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ++*holders_of(self);
    Py_RETURN_TRUE;
}

static PyObject *
Lock_release(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (*holders_of(self) == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "release() of a _condition that nothing holds");
        return NULL;
    }
    --*holders_of(self);
    Py_RETURN_NONE;
}

static void
Lock_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((LockObject *)self)->future);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef lock_methods[] = {
    {"acquire", Lock_acquire, METH_NOARGS,
     PyDoc_STR("acquire($self, /)\n--\n\n"
               "Keep the Future's _state from becoming done.  Does not "
               "block.")},
    {"release", Lock_release, METH_NOARGS,
     PyDoc_STR("release($self, /)\n--\n\n"
               "Take back one acquire().")},
    {"__enter__", Lock_acquire, METH_NOARGS,
     PyDoc_STR("__enter__($self, /)\n--\n\nAs acquire().")},
    {"__exit__", Lock_release, METH_VARARGS,
     PyDoc_STR("__exit__($self, /, *exc_info)\n--\n\nAs release().")},
    {NULL},
};

PyDoc_STRVAR(lock_doc, "What concurrent.futures takes for the lock of a "
                       "Future.");

static PyType_Slot lock_slots[] = {
    {Py_tp_dealloc, Lock_dealloc},
    {Py_tp_methods, lock_methods},
    {Py_tp_doc, (void *)lock_doc},
    {0, NULL},
};

PyType_Spec future_lock_spec = {
    .name = "pystreams._C.FutureLock",
    .basicsize = sizeof(LockObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = lock_slots,
};
