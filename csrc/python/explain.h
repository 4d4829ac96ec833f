/* The waits of threads, streams, events and callables, for explain(). */
#ifndef PYSTREAMS_PYTHON_EXPLAIN_H
#define PYSTREAMS_PYTHON_EXPLAIN_H

#include "module.h"
#include "wait.h"

/* A wait of the calling thread, from blocked_begin to blocked_end, both called
 * with the GIL held.  The thread waits for the work or, if that is NULL, for
 * the object. */
struct blocked {
    struct blocked *next, **link;
    unsigned generation;
    unsigned long thread;
    PyThreadState *state;
    const char *operation;
    const struct work *work;
    PyObject *object;
    int64_t since_ns;
};

void blocked_begin(struct blocked *blocked, const char *operation,
                   const struct work *work, PyObject *object);
void blocked_end(struct blocked *blocked);

/* What the work waits for, as the end of an error's message: a new str; NULL
 * with an exception that is not an Exception. */
PyObject *explanation_of(const struct work *work, PyObject *object);

#endif
