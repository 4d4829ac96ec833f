/* The list of the waits in progress, for explain(), and texts that say what a
 * wait is waiting for. */
#ifndef PYSTREAMS_PYTHON_EXPLAIN_H
#define PYSTREAMS_PYTHON_EXPLAIN_H

#include "module.h"
#include "wait.h"

/* A wait of the calling thread.  It lasts from blocked_begin to blocked_end,
 * which are called with the GIL held.  The thread waits for `work` or, if that
 * is NULL, for `object`. */
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

/* Returns a new str that says what the work, or the object, waits for.  The
 * text ends the message of an error.  `function` is the function in
 * _explain.py that makes it.  If meanwhile an exception that is not an
 * Exception is raised, such as KeyboardInterrupt, returns NULL with that
 * exception. */
PyObject *explanation_of(const char *function, const struct work *work,
                         PyObject *object);

#endif
