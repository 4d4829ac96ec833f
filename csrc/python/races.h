/* The race detector's use of Python. */
#ifndef PYSTREAMS_PYTHON_RACES_H
#define PYSTREAMS_PYTHON_RACES_H

#include "../core/stream.h"
#include "../observe/races.h"

#include "module.h"
#include "wait.h"

/* Have the tables of all backends that are registered observed, if anything
 * looks for races. */
void observe_backends(void);

struct ps_actor_name actor_name(const struct ps_stream *stream);

/* What the work consists of so far; NULL if nothing looks for races. */
struct ps_moment *moment_of_work(const struct work *work);

/* The host accesses memory, or the callable that this thread runs does; -1
 * with an exception. */
int host_access(const char *operation, const void *data, Py_ssize_t nbytes,
                bool writes);

/* A callable is to be queued on the stream, with these arguments: it reads
 * Buffers, and the moment of its run goes to the Future; -1 with an
 * exception. */
int expect_callable(struct ps_stream *stream, PyObject *const *args,
                    Py_ssize_t count, PyObject *future);

#endif
