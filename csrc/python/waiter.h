/* Functions that post a message when work is done. */
#ifndef PYSTREAMS_PYTHON_WAITER_H
#define PYSTREAMS_PYTHON_WAITER_H

#include "module.h"
#include "wait.h"

/* Arrange that a message with this token is posted to the mailbox when the
 * work is done. */
ps_status register_work(struct ps_mailbox *mailbox, const struct work *work,
                        uint64_t token);

PyObject *Stream_await(PyObject *self);
PyObject *Event_await(PyObject *self);

/* Get the work of an object, which is an Event, a device or a stream.  The
 * caller must keep the object alive, and release work->stream afterwards.  On
 * failure, returns -1 with an exception. */
int work_of(PyObject *object, struct work *work);

#endif
