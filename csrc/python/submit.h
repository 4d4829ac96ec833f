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

/* Start no more callables, cancel those that have not started, and wait for
 * those that are running; returns whether all have ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
