/* Python callables in stream order. */
#ifndef PYSTREAMS_PYTHON_SUBMIT_H
#define PYSTREAMS_PYTHON_SUBMIT_H

#include "../observe/races.h"

#include "module.h"
#include "wait.h"

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Whether the calling thread runs a callable that the stream is waiting
 * for. */
bool is_own_stream(struct ps_stream *stream);

/* Whether the calling thread runs a callable, and the moment of it: NULL if
 * nothing observed when it was queued. */
bool callable_moment(struct ps_moment **moment);

/* Called before a wait.  After a callable has ended, a callback may wait here:
 * another thread then runs the callables queued behind it.  check_may_wait: -1
 * with RuntimeError if the wait would be a deadlock. */
void let_others_run(void);
int check_may_wait(const struct work *work);

/* A callable that has not ended; new references. */
struct callable_view {
    struct ps_stream *stream;
    PyObject *function;
    PyObject *future;
    PyObject *frame; /* the innermost of its thread while it runs, or NULL */
    bool reached;    /* the work before it is done */
    bool running;
    unsigned long thread; /* that runs it */
    int64_t since_ns;     /* when it was queued, or began to run */
};

/* Callables of this process, the latest first: as many as there is room for.
 * The number of all. */
size_t list_callables(struct callable_view *views, size_t room);

/* Start no more callables, cancel those that have not started, and wait for
 * those that are running; returns whether all have ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
