/* Waiting until work is done. */
#ifndef PYSTREAMS_PYTHON_WAIT_H
#define PYSTREAMS_PYTHON_WAIT_H

#include "../core/event.h"
#include "../core/stream.h"

#include "module.h"

/* Work to wait for: all work on a stream, an event's latest record, or all
 * work on a device.  Of `stream` and `event`, at most one is not NULL. */
struct work {
    const char *operation;
    /* The device of the work.  For an event, this is the device of its native
     * event; NULL if it has no native event, and so was never recorded. */
    struct ps_device *device;
    struct ps_stream *stream;
    struct ps_event *event;
    /* Whether the library needs the wait, and the program has not asked for
     * it; see imply_begin. */
    bool implied;
};

#define NO_TIMEOUT INT64_MAX

/* The state of a wait inside core.  Only the thread that waits uses it. */
struct core_wait {
    /* The limit to pass to core.  Its is_over runs signal handlers, which can
     * end the wait. */
    struct ps_limit limit;
    PyThreadState *thread;
    unsigned generation;
    ps_status status;
};

/* Begin a wait in core.  Releases the GIL. */
void wait_begin(struct core_wait *wait, int64_t timeout_ns);

/* End the wait.  Takes the GIL.  Returns PS_RAISED if a signal handler raised
 * an exception during the wait, PS_ERROR_FOREIGN if a handler forked and this
 * is the child, and `status` otherwise. */
ps_status wait_end(struct core_wait *wait, ps_status status);

/* Run the handlers of pending signals.  Call this during a wait.  generation:
 * the fork generation in which the wait began.  Returns PS_RAISED if a handler
 * raised an exception.  Returns PS_ERROR_FOREIGN if a handler forked and this
 * is the child process, in which the wait would never end. */
ps_status run_handlers(unsigned generation);

int64_t monotonic_ns(void);

/* Like monotonic_ns, but faster.  It takes only a few nanoseconds, and is
 * accurate to a few milliseconds. */
int64_t coarse_ns(void);

/* Convert a function's argument `timeout`, a number of seconds, to
 * nanoseconds.  On failure, returns -1 with an exception. */
int
parse_timeout(const char *function, PyObject *argument, int64_t *timeout_ns);

/* Like parse_timeout, but if the argument is None or was not given, there is
 * no timeout. */
static inline int
timeout_argument(const char *function, PyObject *argument, int64_t *timeout_ns)
{
    *timeout_ns = NO_TIMEOUT;
    return argument == NULL || argument == Py_None
               ? 0
               : parse_timeout(function, argument, timeout_ns);
}

/* Wait for the work, with the GIL released.  Returns PS_ERROR_TIMED_OUT if the
 * work is not done after timeout_ns.  Signal handlers run during the wait if
 * the backend can end a wait early, or if there is a timeout.  After success,
 * the caller must call check_captured. */
ps_status wait_for_work(const struct work *work, int64_t timeout_ns);

/* Like wait_for_work, but for a Python method or function.  Returns None; NULL
 * with an exception, which is TimeoutError after timeout_ns.  `timeout` is the
 * argument from which timeout_ns was computed, for the message. */
PyObject *
waited(const struct work *work, PyObject *timeout, int64_t timeout_ns);

struct ps_mailbox;
/* Like ps_mailbox_wait, but with the GIL released.  Signal handlers run during
 * the wait. */
ps_status wait_for_mailbox(struct ps_mailbox *mailbox, int64_t timeout_ns);

#endif
