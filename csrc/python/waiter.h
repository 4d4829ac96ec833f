/* Messages about completed work. */
#ifndef PYSTREAMS_PYTHON_WAITER_H
#define PYSTREAMS_PYTHON_WAITER_H

#include "module.h"
#include "wait.h"

/* Put a message with the token into the mailbox when the work has
 * completed. */
ps_status register_work(struct ps_mailbox *mailbox, const struct work *work,
                        uint64_t token);

PyObject *Stream_await(PyObject *self);
PyObject *Event_await(PyObject *self);

/* The work of an object that the caller holds: an Event's, a device's or a
 * stream's.  The caller releases the stream. */
int work_of(PyObject *object, struct work *work);

#endif
