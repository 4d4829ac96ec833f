/* Python callables in stream order. */
#ifndef PYSTREAMS_PYTHON_SUBMIT_H
#define PYSTREAMS_PYTHON_SUBMIT_H

#include "module.h"
#include "wait.h"

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Whether the caller is a callable that the stream now waits for. */
bool is_own_stream(struct ps_stream *stream);

/* Before a wait, which after a callable's end lets another thread run those
 * behind it.  -1 with RuntimeError in one that would wait for itself. */
void let_others_run(void);
int check_may_wait(const struct work *work);

/* Start no more callables, cancel those that have not started, and wait for
 * those that run: whether all ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
