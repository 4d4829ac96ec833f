/* Implements the waits in methods that block until work is done, except waits
 * for a Future (see future.c).  The waits release the GIL, but the main thread
 * must run signal handlers during a wait.  If the backend calls limit.is_over
 * while it waits, the handlers run in that call.  Otherwise, a wait with a
 * timeout is split into slices of time, and the handlers run between the
 * slices, but no handlers run during a wait without a timeout.  A wait for a
 * mailbox is always split into slices. */
#include "wait.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../core/mailbox.h"
#include "../core/thread.h"
#include "../core/trace.h"
#include "../observe/races.h"

#include "args.h"
#include "buffer.h"
#include "captured.h"
#include "errors.h"
#include "explain.h"
#include "races.h"
#include "schedules.h"
#include "submit.h"
#include "timeline.h"
#include "waiter.h"

enum { SLICE_NS = 50 * 1000 * 1000 };

/* The shortest timeout of a wait for a device.  A shorter timeout is extended
 * to this one, because a thread reports the completion of a device's work with
 * a delay. */
enum { LEAST_NS = 10 * 1000 * 1000 };

/* A timeout of this many seconds or more means that there is no limit. */
static const double LONGEST = 1e9;

int64_t
monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int
parse_timeout(const char *function, PyObject *argument, int64_t *timeout_ns)
{
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            raise_expected(function, "a number of seconds or None", "timeout",
                           argument);
        }
        return -1;
    }
    if (seconds != seconds) {
        return refuse(
            PyExc_ValueError,
            "%s() expects a number of seconds for timeout, but got nan",
            function);
    }
    *timeout_ns = seconds >= LONGEST ? NO_TIMEOUT
                  : seconds > 0      ? (int64_t)(seconds * 1e9)
                                     : 0;
    return 0;
}

/* Wait with the backend's function for this kind of work.  limit may be
 * NULL. */
static ps_status
synchronize(const struct work *work, const struct ps_limit *limit)
{
    if (work->stream != NULL) {
        return ps_stream_synchronize(work->stream, limit);
    }
    return work->event != NULL ? ps_event_synchronize(work->event, limit)
                               : ps_device_synchronize(work->device, limit);
}

ps_status
run_handlers(unsigned generation)
{
    /* A signal handler may run during a wait that the library makes for its
     * own purposes.  While the handler runs, clear the marks of such waits,
     * because the handler's waits are the program's. */
    const void *own = ps_thread_word(PS_THREAD_OWN);
    const void *implied = ps_thread_word(PS_THREAD_IMPLIED);
    ps_thread_set_word(PS_THREAD_OWN, NULL);
    ps_thread_set_word(PS_THREAD_IMPLIED, NULL);
    int result = PyErr_CheckSignals();
    ps_thread_set_word(PS_THREAD_OWN, own);
    ps_thread_set_word(PS_THREAD_IMPLIED, implied);
    return result < 0                      ? PS_RAISED
           : generation != ps_generation() ? PS_ERROR_FOREIGN
                                           : PS_SUCCESS;
}

/* The is_over function of a wait.  Returns whether a signal handler raised an
 * exception or forked.  Only the main thread may take the GIL here.  If
 * another thread took it while the interpreter is finalizing, Python would
 * stop the thread.  The thread's stack would then be gone, but the backend
 * would still use the wait that is stored on it. */
static int
is_disturbed(void *argument)
{
    struct core_wait *wait = argument;
    if (wait->status != PS_SUCCESS || syscall(SYS_gettid) != getpid()) {
        return wait->status != PS_SUCCESS;
    }
    PyEval_RestoreThread(wait->thread);
    wait->status = run_handlers(wait->generation);
    wait->thread = PyEval_SaveThread();
    return wait->status != PS_SUCCESS;
}

void
wait_begin(struct core_wait *wait, int64_t timeout_ns)
{
    *wait = (struct core_wait){
        .limit = {timeout_ns, is_disturbed, wait},
        .generation = ps_generation(),
        .status = PS_SUCCESS,
    };
    wait->thread = PyEval_SaveThread();
}

ps_status
wait_end(struct core_wait *wait, ps_status status)
{
    PyEval_RestoreThread(wait->thread);
    return wait->status != PS_SUCCESS ? wait->status : status;
}

/* Wait with the backend's function for the work, with the GIL released.
 * Returns PS_ERROR_NOT_SUPPORTED if there is a timeout and the backend does
 * not support limits. */
static ps_status
wait_natively(const struct work *work, int64_t timeout_ns)
{
    struct core_wait wait;
    wait_begin(&wait, timeout_ns);
    ps_status status = synchronize(work, &wait.limit);
    if (status == PS_ERROR_NOT_SUPPORTED && timeout_ns == NO_TIMEOUT) {
        status = synchronize(work, NULL);
    }
    return wait_end(&wait, status);
}

/* Sleep until a message arrives or `end` is reached, but at most for a time
 * that grows with the time since `start`.  A CPU core that has slept for long
 * takes a tenth of a millisecond to wake up.  Short sleeps avoid that delay,
 * and the wake-ups take less than a hundredth of the core's time. */
static ps_status
back_off(struct ps_mailbox *mailbox, int64_t start, int64_t now, int64_t end)
{
    enum { LEAST = 20 * 1000, PART = 250 };
    int64_t rest = (now - start) / PART > LEAST ? (now - start) / PART : LEAST;
    return ps_mailbox_wait(mailbox, rest < end - now ? rest : end - now);
}

/* A function that waits for one slice of time. */
typedef ps_status (*slice_function)(const void *what, int64_t timeout_ns);

struct mailbox_wait {
    struct ps_mailbox *mailbox;
    int64_t start;
};

static ps_status
mailbox_slice(const void *context, int64_t timeout_ns)
{
    const struct mailbox_wait *wait = context;
    int64_t now = monotonic_ns(), end = now + timeout_ns;
    ps_status status;
    do {
        status = back_off(wait->mailbox, wait->start, now, end);
        now = monotonic_ns();
    } while (status == PS_ERROR_TIMED_OUT && now < end);
    return status;
}

/* Returns how much of the timeout is left since `start`. */
static int64_t
left_of(int64_t timeout_ns, int64_t start)
{
    int64_t passed = monotonic_ns() - start;
    return timeout_ns == NO_TIMEOUT ? NO_TIMEOUT
           : passed < timeout_ns    ? timeout_ns - passed
                                    : 0;
}

static ps_status
wait_in_slices(slice_function slice, const void *what, int64_t timeout_ns)
{
    ps_status status;
    unsigned generation = ps_generation();
    int64_t start = monotonic_ns(), left = timeout_ns;
    do {
        WITHOUT_GIL(status = slice(what, left < SLICE_NS ? left : SLICE_NS));
        ps_status handled = run_handlers(generation);
        if (handled != PS_SUCCESS) {
            return handled;
        }
        left = left_of(timeout_ns, start);
    } while (status == PS_ERROR_TIMED_OUT && left > 0);
    return status;
}

static bool
has_message(void *mailbox)
{
    return ps_mailbox_wait(mailbox, 0) == PS_SUCCESS;
}

/* Sleep until a message arrives, for at most NAP_NS.  The message may come
 * from another library's Future, of which the schedule does not know. */
static void
nap_in_schedule(struct ps_mailbox *mailbox, int64_t *left_ns)
{
    enum { NAP_NS = 5 * 1000 * 1000 };
    struct ps_sleep sleep;
    ps_cpu_schedules.sleep(&sleep, false, 0, *left_ns);
    ps_mailbox_wait(mailbox, *left_ns < NAP_NS ? *left_ns : NAP_NS);
    ps_cpu_schedules.wake(&sleep, left_ns);
}

/* Like wait_for_mailbox, but while a schedule is explored. */
static ps_status
wait_in_schedule(const struct mailbox_wait *wait, int64_t timeout_ns)
{
    struct ps_mailbox *mailbox = wait->mailbox;
    unsigned generation = ps_generation();
    int64_t left = timeout_ns;
    while (!has_message(mailbox) && ps_cpu_schedules.is_on()) {
        ps_status status = advance_schedule(has_message, mailbox, &left);
        if (status == PS_ERROR_TIMED_OUT ||
            (left <= 0 && !has_message(mailbox))) {
            return PS_ERROR_TIMED_OUT;
        }
        WITHOUT_GIL(nap_in_schedule(mailbox, &left));
        status = run_handlers(generation);
        if (status != PS_SUCCESS) {
            return status;
        }
        /* The timeout also applies to real time, because callables take real
         * time. */
        int64_t real = left_of(timeout_ns, wait->start);
        left = left < real ? left : real;
    }
    arrive_in_schedule();
    return PS_SUCCESS;
}

ps_status
wait_for_mailbox(struct ps_mailbox *mailbox, int64_t timeout_ns)
{
    ps_status status = PS_SUCCESS;
    struct mailbox_wait wait = {mailbox, monotonic_ns()};
    struct ps_slice *slice = timeline_wait("wait", NULL, 0);
    if (ps_cpu_schedules.is_on()) {
        status = wait_in_schedule(&wait, timeout_ns);
        timeout_ns = left_of(timeout_ns, wait.start);
    }
    if (status == PS_SUCCESS) {
        status = wait_in_slices(mailbox_slice, &wait, timeout_ns);
    }
    timeline_waited(slice);
    return status;
}

/* A wait for a notification.  The work is also queried, since the notification
 * may be delayed. */
struct notified_wait {
    const struct work *work;
    struct ps_mailbox *mailbox;
    int64_t start;
    /* The value of ps_event.recorded when the wait began, if the work is an
     * event; otherwise 0. */
    unsigned long long record;
};

static unsigned long long
latest_record(const struct work *work)
{
    return work->event != NULL ? atomic_load(&work->event->recorded) : 0;
}

static ps_status
ask(const struct notified_wait *wait)
{
    const struct work *work = wait->work;
    if (work->stream != NULL) {
        return ps_stream_query(work->stream);
    }
    ps_status status =
        work->event != NULL ? ps_event_query(work->event) : PS_ERROR_NOT_READY;
    /* If the event was recorded again after the wait began, the query was
     * about another record. */
    return latest_record(work) == wait->record ? status : PS_ERROR_NOT_READY;
}

/* Wait for one slice of time.  During the first EAGER_NS of the wait, query
 * without a pause. */
static ps_status
notified_slice(const void *context, int64_t timeout_ns)
{
    enum { EAGER_NS = 50 * 1000 };
    const struct notified_wait *wait = context;
    int64_t now = monotonic_ns(), end = now + timeout_ns;
    ps_status status;
    do {
        if (now - wait->start > EAGER_NS &&
            back_off(wait->mailbox, wait->start, now, end) == PS_SUCCESS) {
            struct ps_message *message = ps_mailbox_take(wait->mailbox);
            status = message->status;
            ps_races_reached(message->attached);
            ps_message_free(message);
        }
        else {
            status = ask(wait);
        }
        now = monotonic_ns();
    } while (status == PS_ERROR_NOT_READY && now < end);
    return status == PS_ERROR_NOT_READY ? PS_ERROR_TIMED_OUT : status;
}

/* Wait with a timeout, for a backend that does not support limits. */
static ps_status
wait_notified(const struct work *work, int64_t timeout_ns)
{
    struct notified_wait wait = {
        .work = work,
        .start = monotonic_ns(),
        .record = latest_record(work),
    };
    bool is_device = work->stream == NULL && work->event == NULL;
    ps_status status;
    CALL_BACKEND(work->device->runtime, status = ask(&wait));
    if (status != PS_ERROR_NOT_READY) {
        return status;
    }
    if (!is_device && timeout_ns <= 0) {
        return PS_ERROR_TIMED_OUT;
    }
    status = ps_mailbox_create(&wait.mailbox);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = register_work(wait.mailbox, work, 0);
    /* Even if the backend has no notifications, a wait for a stream or an
     * event can go on, because streams and events can be queried. */
    if (status == PS_SUCCESS ||
        (status == PS_ERROR_NOT_SUPPORTED && !is_device)) {
        status = wait_in_slices(
            notified_slice, &wait,
            is_device && timeout_ns < LEAST_NS ? LEAST_NS : timeout_ns);
    }
    if (status != PS_ERROR_FOREIGN) {
        CALL_BACKEND(work->device->runtime, ps_mailbox_destroy(wait.mailbox));
    }
    if (status == PS_SUCCESS && work->event != NULL) {
        /* Query the event again, so that core stores that it is done. */
        ps_event_query(work->event);
    }
    return status;
}

static void
trace(const struct work *work)
{
    if (work->stream != NULL) {
        ps_trace(PS_TRACE_STREAM_SYNCHRONIZATION, work->device,
                 work->stream->handle, 0);
    }
    else if (work->event != NULL) {
        ps_trace(PS_TRACE_EVENT_SYNCHRONIZATION, work->device,
                 atomic_load(&work->event->handle), 0);
    }
    else {
        ps_trace(PS_TRACE_DEVICE_SYNCHRONIZATION, work->device, 0, 0);
    }
}

/* Returns the name of a wait, as operation_on_stream does. */
static const char *
name_of_wait(const struct work *work, struct named_operation *named)
{
    return work->stream != NULL
               ? operation_on_stream(work->stream, work->operation, named)
               : work->operation;
}

ps_status
wait_for_work(const struct work *work, int64_t timeout_ns)
{
    struct named_operation named;
    ps_status status;
    if (check_may_wait(work) < 0) {
        return PS_RAISED;
    }
    if (work->implied) {
        imply_begin();
    }
    trace(work);
    struct ps_slice *slice = timeline_wait(work->operation, work, 0);
    struct blocked blocked;
    blocked_begin(&blocked, work->operation, work, NULL);
    status = wait_natively(work, timeout_ns);
    if (status == PS_ERROR_NOT_SUPPORTED) {
        status = wait_notified(work, timeout_ns);
    }
    if (status == PS_ERROR_DEADLOCK) {
        raise_deadlock(name_of_wait(work, &named), work, NULL);
        status = PS_RAISED;
    }
    blocked_end(&blocked);
    timeline_waited(slice);
    memory_settle(work->device->runtime);
    if (work->implied) {
        imply_end();
    }
    return status;
}

/* Like waited, but does not tell the race detector about a failure. */
static PyObject *
waited_or_raised(const struct work *work, PyObject *timeout,
                 int64_t timeout_ns)
{
    ps_status status = wait_for_work(work, timeout_ns);
    if (status == PS_SUCCESS) {
        return none_unless_raised(check_captured(work));
    }
    if (status == PS_ERROR_TIMED_OUT) {
        struct named_operation named;
        PyObject *text = explanation_of("explain_timeout", work, NULL);
        if (text != NULL) {
            PyErr_Format(PyExc_TimeoutError,
                         "%s: the work was not done after %S s; the work "
                         "goes on\n%U",
                         name_of_wait(work, &named), timeout, text);
            Py_DECREF(text);
        }
        return NULL;
    }
    return work->stream != NULL
               ? raise_on_stream(work->stream, work->operation, status)
               : raise_status(work->device->runtime, work->operation, status);
}

PyObject *
waited(const struct work *work, PyObject *timeout, int64_t timeout_ns)
{
    PyObject *result = waited_or_raised(work, timeout, timeout_ns);
    if (result == NULL && !work->implied) {
        wait_raised();
    }
    return result;
}
