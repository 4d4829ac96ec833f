/* Waiting until work is done. */
#ifndef PYSTREAMS_PYTHON_WAIT_H
#define PYSTREAMS_PYTHON_WAIT_H

#include "../core/event.h"
#include "../core/stream.h"

#include "module.h"

/* What is waited for: a stream's work, or an event's latest record, or all of
 * a device's. */
struct work {
    const char *operation;
    /* Of the stream and of an event that was recorded. */
    struct ps_device *device;
    struct ps_stream *stream;
    struct ps_event *event;
};

#define NO_TIMEOUT INT64_MAX

int64_t monotonic_ns(void);

/* A function's timeout in seconds, None or NULL for none; -1 with an
 * exception. */
int timeout_argument(const char *function, PyObject *argument,
                     int64_t *timeout_ns);

/* Wait with the GIL released; where the backend can end a wait, and wherever
 * there is a timeout, open to signals.  PS_ERROR_TIMED_OUT: it took longer. */
ps_status wait_for_work(struct module_state *state, const struct work *work,
                        int64_t timeout_ns);

/* Likewise, for a method or a function, which raises TimeoutError after
 * `timeout`, of timeout_ns: None, or NULL with an exception. */
PyObject *waited(struct module_state *state, const struct work *work,
                 PyObject *timeout, int64_t timeout_ns);

struct ps_mailbox;
/* ps_mailbox_wait with the GIL released, and open to signals. */
ps_status wait_for_mailbox(struct ps_mailbox *mailbox, int64_t timeout_ns);

#endif
