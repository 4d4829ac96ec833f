/* Waiting until work is done. */
#ifndef PYSTREAMS_PYTHON_WAIT_H
#define PYSTREAMS_PYTHON_WAIT_H

#include "../core/event.h"
#include "../core/stream.h"

#include "module.h"

/* The work that is waited for: that of a stream, of an event's latest record,
 * or of a device. */
struct work {
    const char *operation;
    /* The device of the stream, or of an event that was recorded. */
    struct ps_device *device;
    struct ps_stream *stream;
    struct ps_event *event;
};

#define NO_TIMEOUT INT64_MAX

/* A wait in core, of the thread that began it. */
struct core_wait {
    /* The limit by which signal handlers end the wait. */
    struct ps_limit limit;
    PyThreadState *thread;
    unsigned generation;
    ps_status status;
};

/* Release the GIL. */
void wait_begin(struct core_wait *wait, int64_t timeout_ns);

/* Take the GIL: the status, unless a signal handler raised (PS_RAISED) or
 * forked (PS_ERROR_FOREIGN). */
ps_status wait_end(struct core_wait *wait, ps_status status);

/* Run the handlers of signals that came, during a wait that began in the fork
 * generation.  PS_RAISED: a handler raised.  PS_ERROR_FOREIGN: a handler
 * forked and this is the child, in which the wait cannot end. */
ps_status run_handlers(unsigned generation);

int64_t monotonic_ns(void);

/* Likewise, accurate to a few milliseconds, but takes only a few
 * nanoseconds. */
int64_t coarse_ns(void);

/* A function's timeout in seconds; -1 with an exception. */
int
parse_timeout(const char *function, PyObject *argument, int64_t *timeout_ns);

/* Likewise, for an argument that may be None or not given: no timeout. */
static inline int
timeout_argument(const char *function, PyObject *argument, int64_t *timeout_ns)
{
    *timeout_ns = NO_TIMEOUT;
    return argument == NULL || argument == Py_None
               ? 0
               : parse_timeout(function, argument, timeout_ns);
}

/* Wait with the GIL released.  Signal handlers run meanwhile if the backend
 * can end a wait or there is a timeout.  PS_ERROR_TIMED_OUT: the time is
 * up. */
ps_status wait_for_work(const struct work *work, int64_t timeout_ns);

/* Likewise, for a method or a function: None; NULL with an exception,
 * TimeoutError after `timeout`, which is timeout_ns. */
PyObject *
waited(const struct work *work, PyObject *timeout, int64_t timeout_ns);

struct ps_mailbox;
/* ps_mailbox_wait with the GIL released; signal handlers run meanwhile. */
ps_status wait_for_mailbox(struct ps_mailbox *mailbox, int64_t timeout_ns);

#endif
