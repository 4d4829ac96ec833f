/* What the files of the package's StreamFuture share. */
#ifndef PYSTREAMS_PYTHON_FUTURE_H
#define PYSTREAMS_PYTHON_FUTURE_H

#include "submit.h"

/* From CANCELLED on it is done. */
enum future_state { PENDING, RUNNING, CANCELLED, FINISHED };

typedef struct {
    PyObject ob_base;
    /* An enum future_state, written with the GIL. */
    atomic_int state;
    /* The threads that sleep until it is done. */
    atomic_int sleepers;
    /* Of the process that the callable was submitted in. */
    unsigned generation;
    /* How many are inside `with _condition`. */
    unsigned holders;
    /* Whether _state shows it as done. */
    bool published;
    PyObject *result;
    PyObject *exception;
    /* Lists, or NULL before they are asked for. */
    PyObject *callbacks;
    PyObject *waiters;
} FutureObject;

static inline FutureObject *
as_future(PyObject *self)
{
    return (FutureObject *)self;
}

static inline int
state_of_future(FutureObject *self)
{
    return atomic_load(&self->state);
}

static inline bool
is_done(FutureObject *self)
{
    return state_of_future(self) >= CANCELLED;
}

/* The list's items, held while others change it. */
struct snapshot {
    PyObject *few[16];
    PyObject **items;
    Py_ssize_t count;
};

/* Of a list or NULL, once there is memory; other threads may run before. */
void snapshot_take(struct snapshot *snapshot, PyObject **list);
void snapshot_drop(struct snapshot *snapshot);

/* Show a Future that is done as such to wait() and as_completed() of
 * concurrent.futures, and notify those that wait. */
void future_publish(FutureObject *self);

/* A list of the Future's, made if there is none: borrowed. */
PyObject *future_list(PyObject **list);

extern PyGetSetDef future_getters[];

#endif
