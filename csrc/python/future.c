/* What C does with the Futures of callables, the package's StreamFuture.  Most
 * are settled before anybody looks at them, which is known by their dict, and
 * then no lock is made, nor taken. */
#include "module.h"

#include <sched.h>

enum {
    /* How long a result is spun for: about what going to sleep and waking up
     * cost. */
    LINGER_NS = 50 * 1000,
};

/* Counts the callables whose Futures were settled. */
static atomic_ullong settled;

PyObject *
future_new(struct module_state *state)
{
    if (state->future_type == NULL) {
        PyObject *module = PyImport_ImportModule("pystreams._futures");
        if (module != NULL) {
            state->future_type =
                PyObject_GetAttrString(module, "StreamFuture");
            Py_DECREF(module);
        }
    }
    return state->future_type != NULL ? PyObject_CallNoArgs(state->future_type)
                                      : NULL;
}

/* Change the state of a Future that nobody has looked at; false where somebody
 * has, who may hold its lock. */
static bool
change_unseen(PyObject *future, PyObject *state, PyObject *result)
{
    PyObject *dict = PyObject_GenericGetDict(future, NULL);
    bool unseen = dict != NULL &&
                  PyDict_GetItemString(dict, "_condition") == NULL &&
                  (result == NULL ||
                   PyDict_SetItemString(dict, "_result", result) == 0) &&
                  PyDict_SetItemString(dict, "_state", state) == 0;
    Py_XDECREF(dict);
    return unseen;
}

bool
future_start(struct module_state *state, PyObject *future)
{
    if (change_unseen(future, state->str_running, NULL)) {
        return true;
    }
    PyObject *go =
        PyObject_CallMethod(future, "set_running_or_notify_cancel", NULL);
    if (go == NULL) {
        PyErr_WriteUnraisable(future);
    }
    Py_XDECREF(go);
    return go == Py_True;
}

bool
future_settle_unseen(struct module_state *state, PyObject *future,
                     PyObject *result)
{
    return change_unseen(future, state->str_finished, result);
}

bool
future_has_callbacks(PyObject *future)
{
    PyObject *dict = PyObject_GenericGetDict(future, NULL);
    PyObject *callbacks =
        dict != NULL ? PyDict_GetItemString(dict, "_done_callbacks") : NULL;
    bool found = callbacks != NULL && PyObject_IsTrue(callbacks) == 1;
    Py_XDECREF(dict);
    return found;
}

void
future_settle(PyObject *future, PyObject *outcome, bool failed)
{
    PyObject *told = PyObject_CallMethod(
        future, failed ? "set_exception" : "set_result", "(O)", outcome);
    if (told == NULL) {
        PyErr_WriteUnraisable(future);
    }
    Py_XDECREF(told);
}

void
future_mark_settled(void)
{
    atomic_fetch_add(&settled, 1);
}

/* Spin, with the GIL released, until a Future was settled; on one core with
 * whoever settles it, too. */
static void
spin(unsigned long long seen, int64_t end)
{
    while (atomic_load_explicit(&settled, memory_order_acquire) == seen &&
           monotonic_ns() < end) {
        sched_yield();
    }
}

static PyObject *
linger(PyObject *module, PyObject *future)
{
    struct module_state *state = state_of_module(module);
    PyObject *dict = PyObject_GenericGetDict(future, NULL);
    int64_t end = monotonic_ns() + LINGER_NS;
    while (dict != NULL) {
        unsigned long long seen = atomic_load(&settled);
        bool finished =
            PyDict_GetItemString(dict, "_state") == state->str_finished;
        if (finished || monotonic_ns() >= end) {
            Py_DECREF(dict);
            return PyBool_FromLong(finished);
        }
        let_others_run();
        WITHOUT_GIL(spin(seen, end));
    }
    return NULL;
}

PyMethodDef future_functions[] = {
    FUNCTION("linger", linger, METH_O, "future, /",
             "Return whether the Future of a callable is finished, after a "
             "short while if not.\n\n"
             "Spins with the GIL released: a callable that is done soon costs "
             "no sleep."),
    {NULL},
};
