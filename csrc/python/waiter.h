/* Messages about completed work. */
#ifndef PYSTREAMS_PYTHON_WAITER_H
#define PYSTREAMS_PYTHON_WAITER_H

#include "module.h"
#include "wait.h"

/* Register the work: when it is done, a message with this token goes to the
 * mailbox. */
ps_status register_work(struct ps_mailbox *mailbox, const struct work *work,
                        uint64_t token);

PyObject *Stream_await(PyObject *self);
PyObject *Event_await(PyObject *self);

/* Get the work that an object means: an Event, a device or a stream.  The
 * caller holds the object, and releases work->stream.  On failure, returns -1
 * with an exception. */
int work_of(PyObject *object, struct work *work);

#endif
