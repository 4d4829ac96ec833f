/* `Stream.submit`: Python callables in stream order.  When the stream reaches
 * a callable, the backend's thread only puts the callable into a queue, and
 * the stream waits at a gate.  Threads of this package run the queued
 * callables and open the gates.  So a backend's threads never need the GIL,
 * and a slow callable delays only its own stream.
 *
 *   submit --> stream --reached--> queue --a thread--> runs --> gate opens */
#include "submit.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/thread.h"
#include "../core/work.h"

#include "args.h"
#include "captured.h"
#include "enqueue.h"
#include "errors.h"
#include "future.h"
#include "races.h"
#include "schedules.h"
#include "stream.h"
#include "threads.h"
#include "timeline.h"
#include "wait.h"

enum {
    /* The largest number of threads.  It is also the largest number of
     * callables that can run at once. */
    MOST_THREADS = 256,
    /* An idle thread waits this long for a callable before it ends. */
    IDLE_SECONDS = 5,
};

/* The queue of callables, and the threads that run them.  A callable is in the
 * queue from when its stream reaches it until a thread takes it. */
static struct {
    /* Guards the other fields, except the last two.  It is never held while a
     * thread waits for the GIL. */
    pthread_mutex_t mutex;
    /* Signalled when a callable or a thread ends after the queue was
     * closed. */
    pthread_cond_t ended;
    /* Posted to wake a thread, usually once for each callable that is appended
     * to the queue.  The thread that wakes up may find the queue empty.  It is
     * a semaphore, because a thread that waits for a semaphore needs no lock
     * to wake up. */
    sem_t hints;
    struct job *first;
    struct job **tail;
    int threads;
    /* The number of threads that will run no more callables but still have a
     * Python thread state. */
    int leaving;
    /* The number of callables that are running, or whose Futures' callbacks
     * are running. */
    int running;
    /* The number of calls to advance_awaited since a thread entered the loop
     * in it; 0 if no thread is in that loop. */
    unsigned advances;
    /* The number of threads that may be busy at the same time.  This is one
     * for each row (see struct job) that has jobs which have not ended, and
     * one for each thread that let_others_run has replaced. */
    int wanted;
    /* Whether the program has ended.  If so, no more callables start. */
    bool closed;
    /* The lists of callables that have not started, and of callables that are
     * running.  The GIL guards them; on a free-threaded interpreter, the mutex
     * does. */
    struct job *pending;
    struct job *started;
} queue;

/* The fork generation in which the queue was initialized.  While a thread
 * initializes the queue, this is the bitwise complement of the generation. */
static atomic_uint queue_generation = UINT_MAX / 2;

/* The state of a thread that runs callables. */
struct worker {
    struct job *current; /* the callable that the thread runs, or NULL */
    /* If the thread has the turn in a schedule (see has_turn), the device of
     * the callable that the thread is running or has just run.  Otherwise
     * NULL. */
    const struct ps_device *turn;
    bool replaced; /* whether let_others_run replaced the thread */
    bool coming;   /* whether it is about to look at the queue */
};

/* Returns the calling thread's state; NULL if it is not a thread that runs
 * callables. */
static struct worker *
worker_self(void)
{
    return ps_thread_word(PS_THREAD_WORKER);
}

static void
make_queue(void)
{
    pthread_condattr_t monotonic;
    memset(&queue, 0, sizeof(queue));
    queue.tail = &queue.first;
    pthread_mutex_init(&queue.mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&queue.ended, &monotonic);
    sem_init(&queue.hints, 0, 0);
    pthread_condattr_destroy(&monotonic);
}

/* Initialize the queue, unless this process has already done so.  In a forked
 * child, the queue becomes empty. */
static void
ensure_queue(void)
{
    unsigned generation = ps_generation();
    unsigned found = atomic_load(&queue_generation);
    while (found != generation) {
        if (found == ~generation) {
            sched_yield();
            found = atomic_load(&queue_generation);
        }
        else if (atomic_compare_exchange_weak(&queue_generation, &found,
                                              ~generation)) {
            make_queue();
            atomic_store(&queue_generation, generation);
            return;
        }
    }
}

void
jobs_lock(void)
{
    ensure_queue();
    pthread_mutex_lock(&queue.mutex);
}

void
jobs_unlock(void)
{
    pthread_mutex_unlock(&queue.mutex);
}

void
job_reached(struct job *job, ps_status status)
{
    struct worker *self = worker_self();
    job->status = status;
    job->scheduled = ps_cpu_schedules.is_on();
    job->next = NULL;
    atomic_store_explicit(&job->reached, true, memory_order_relaxed);
    pthread_mutex_lock(&queue.mutex);
    *queue.tail = job;
    queue.tail = &job->next;
    pthread_mutex_unlock(&queue.mutex);
    if (self != NULL && self->coming) {
        self->coming = false;
    }
    else {
        sem_post(&queue.hints);
    }
}

/* Called when a stream has reached the callable.  This is a
 * ps_notification_function. */
static void
reached(void *argument, ps_status status)
{
    job_reached(argument, status);
}

static struct job *
take_locked(void)
{
    struct job *job = queue.closed ? NULL : queue.first;
    if (job != NULL) {
        queue.first = job->next;
        queue.running++;
        if (queue.first == NULL) {
            queue.tail = &queue.first;
            /* The queue is empty now, so set the semaphore to 0.  It is posted
             * again when a callable is appended. */
            while (sem_trywait(&queue.hints) == 0) {
            }
        }
    }
    return job;
}

/* Wait for a callable and take it.  Called by take() with the GIL released.
 * Returns NULL if this thread should end. */
static struct job *
wait_and_take(void)
{
    struct timespec end;
    struct job *job;
    bool idle, stays;
    do {
        /* If the system's clock is set meanwhile, an idle thread ends sooner
         * or later than intended, which does no harm. */
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += IDLE_SECONDS;
        idle = sem_timedwait(&queue.hints, &end) != 0 && errno == ETIMEDOUT;
        pthread_mutex_lock(&queue.mutex);
        job = take_locked();
        /* A thread stays if submitted callables may still need it.  All
         * threads also stay after the program has ended.  To end, a thread
         * runs Python code, and Python could stop the thread there while the
         * thread holds locks of `threading` that Python itself needs. */
        stays = queue.closed || !idle || queue.threads <= queue.wanted;
        if (job == NULL && !stays) {
            queue.threads--;
            queue.leaving++;
        }
        pthread_mutex_unlock(&queue.mutex);
    } while (job == NULL && stays);
    return job;
}

/* Take the next callable from the queue, and return it.  Returns NULL if this
 * thread should end.  Releases the GIL only if there is no callable to take
 * now. */
static struct job *
take(void)
{
    pthread_mutex_lock(&queue.mutex);
    struct job *job = take_locked();
    pthread_mutex_unlock(&queue.mutex);
    if (job != NULL) {
        future_mark_settled();
        return job;
    }
    Py_BEGIN_ALLOW_THREADS
    /* Call this only after the GIL was released: the call ends the spinning of
     * a thread that waits for the result, and that thread then takes the GIL
     * at once. */
    future_mark_settled();
    job = wait_and_take();
    Py_END_ALLOW_THREADS
    return job;
}

void
job_destroy(struct job *job)
{
    if (job == NULL) {
        return;
    }
    if (job->future != NULL) {
        ps_races_callable_ended(future_moment(job->future));
    }
    if (job->slice != NULL) {
        ps_slice_drop(job->slice);
    }
    Py_XDECREF(job->future);
    Py_XDECREF(job->context);
    Py_XDECREF(job->kwnames);
    for (Py_ssize_t i = 0; i < job->count; i++) {
        Py_DECREF(job->args[i]);
    }
    stream_release(job->stream);
    captured_unref(job->captured);
    PyMem_Free(job);
}

/* Call the function in its context.  Returns its result; NULL with an
 * exception. */
static PyObject *
call(struct job *job)
{
    if (job->status != PS_SUCCESS && job->captured != NULL) {
        /* The work before the captured callable has failed.  Do not raise its
         * failure here, because every wait for the launch's stream raises
         * it. */
        Py_RETURN_NONE;
    }
    if (job->status != PS_SUCCESS) {
        return raise_on_stream(job->stream, "the work before a callable",
                               job->status);
    }
    if (PyContext_Enter(job->context) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(job->function, job->args + 1,
                                           ((size_t)job->nargs - 1) |
                                               PY_VECTORCALL_ARGUMENTS_OFFSET,
                                           job->kwnames);
    struct saved_exception saved = exception_save();
    PyContext_Exit(job->context);
    exception_restore(saved);
    return result;
}

static PyObject *
call_in_timeline(struct job *job)
{
    if (job->slice == NULL) {
        return call(job);
    }
    ps_slice_begin(job->slice);
    PyObject *result = call(job);
    ps_slice_end(job->slice);
    job->slice = NULL;
    return result;
}

static bool prepare(void);
static void run_jobs(void);
static void left(void);

/* Start one more thread if queue.wanted says that one is needed.  On failure,
 * returns -1 with an exception. */
static int
hire(void)
{
    pthread_mutex_lock(&queue.mutex);
    bool short_handed = !queue.closed && queue.threads < queue.wanted &&
                        queue.threads < MOST_THREADS;
    queue.threads += short_handed;
    pthread_mutex_unlock(&queue.mutex);
    if (!short_handed) {
        return 0;
    }
    if (start_thread(prepare, run_jobs, left) < 0) {
        pthread_mutex_lock(&queue.mutex);
        queue.threads--;
        pthread_mutex_unlock(&queue.mutex);
        return -1;
    }
    return 0;
}

static void
want_threads(int change)
{
    pthread_mutex_lock(&queue.mutex);
    queue.wanted += change;
    pthread_mutex_unlock(&queue.mutex);
}

/* Add `change`, 1 or -1, to the counter of the job's row, and keep
 * queue.wanted up to date. */
static void
count_locked(const struct job *job, int change)
{
    unsigned before = *job->row;
    *job->row += (unsigned)change;
    queue.wanted += (*job->row != 0) - (before != 0);
}

static void
count(const struct job *job, int change)
{
    pthread_mutex_lock(&queue.mutex);
    count_locked(job, change);
    pthread_mutex_unlock(&queue.mutex);
}

void
let_others_run(void)
{
    struct worker *self = worker_self();
    if (self == NULL || self->current != NULL || self->replaced) {
        return;
    }
    self->replaced = true;
    want_threads(1);
    if (hire() < 0) {
        report_ignored("starting a thread for callables");
    }
    sem_post(&queue.hints);
}

static void
open_gate(struct worker *self, struct job *job)
{
    struct ps_device *device = job->stream->device;
    const struct ps_backend *backend = device->runtime->backend;
    /* Keep the GIL during this function, which is short.  If it released the
     * GIL, it might have to wait a whole switch interval until a busy thread
     * releases the GIL. */
    if (self->turn != NULL) {
        ps_cpu_schedules.ending();
    }
    self->coming = true;
    ps_status status = backend->gate_open(backend, device->index, job->gate);
    self->coming = false;
    pthread_mutex_lock(&queue.mutex);
    count_locked(job, -1);
    pthread_mutex_unlock(&queue.mutex);
    report_cleanup(device->runtime, device, "opening a gate", status);
}

/* Count as ended a callable that a thread has taken. */
static void
count_ended(void)
{
    pthread_mutex_lock(&queue.mutex);
    queue.running--;
    if (queue.closed) {
        pthread_cond_broadcast(&queue.ended);
    }
    pthread_mutex_unlock(&queue.mutex);
}

static void
lock_pending(void)
{
#ifdef Py_GIL_DISABLED
    pthread_mutex_lock(&queue.mutex);
#endif
}

static void
unlock_pending(void)
{
#ifdef Py_GIL_DISABLED
    pthread_mutex_unlock(&queue.mutex);
#endif
}

static void
link_locked(struct job *job, struct job **list)
{
    job->since_ns = coarse_ns();
    job->later = *list;
    job->earlier = list;
    if (job->later != NULL) {
        job->later->earlier = &job->later;
    }
    *list = job;
}

/* Add a job to the list of callables that have not started. */
static void
link_pending(struct job *job)
{
    lock_pending();
    link_locked(job, &queue.pending);
    unlock_pending();
}

static void
unlink_locked(struct job *job)
{
    if (job->earlier != NULL) {
        *job->earlier = job->later;
        if (job->later != NULL) {
            job->later->earlier = job->earlier;
        }
        job->earlier = NULL;
    }
}

static void
unlink_job(struct job *job)
{
    lock_pending();
    unlink_locked(job);
    unlock_pending();
}

/* Move a job, which the calling thread will run, to the list of callables that
 * are running. */
static void
link_started(struct job *job)
{
    lock_pending();
    unlink_locked(job);
    job->thread = PyThread_get_thread_ident();
    job->state = PyThreadState_Get();
    link_locked(job, &queue.started);
    unlock_pending();
}

static PyObject *
describe_locked(PyObject *list, const struct job *job,
                PyObject *(*describe)(const struct job *job))
{
    for (; job != NULL && list != NULL; job = job->later) {
        /* A launch's job has no stream before the launch is queued. */
        if (atomic_load(&job->stream) != NULL) {
            list = list_with(list, describe(job));
        }
    }
    return list;
}

PyObject *
list_callables(PyObject *(*describe)(const struct job *job))
{
    PyObject *list = PyList_New(0);
    if (atomic_load(&queue_generation) == ps_generation()) {
        lock_pending();
        list = describe_locked(list, queue.started, describe);
        list = describe_locked(list, queue.pending, describe);
        unlock_pending();
    }
    return list;
}

/* Remove one callable that has not started.  Returns a new reference to its
 * Future; NULL if there is no such callable. */
static PyObject *
take_pending(void)
{
    PyObject *future = NULL;
    ensure_queue();
    lock_pending();
    if (queue.pending != NULL) {
        future = Py_NewRef(queue.pending->future);
        unlink_locked(queue.pending);
    }
    unlock_pending();
    return future;
}

/* Returns whether the program has ended and closed the queue. */
static bool
has_closed(void)
{
    jobs_lock();
    bool closed = queue.closed;
    jobs_unlock();
    return closed;
}

/* Run the schedule's work for threads that wait for Futures; see
 * futures_are_awaited.  If another thread is doing this already, only
 * increment queue.advances, which makes that thread do it again.  If every
 * thread did this work, no thread would be free to run the callables that
 * streams reach meanwhile, and each of these callables would need one more
 * thread. */
static void
advance_awaited(void)
{
    if (!futures_are_awaited()) {
        return;
    }
    pthread_mutex_lock(&queue.mutex);
    unsigned seen = ++queue.advances;
    pthread_mutex_unlock(&queue.mutex);
    bool again = seen == 1;
    while (again) {
        future_advance_awaited();
        pthread_mutex_lock(&queue.mutex);
        again = queue.advances != seen;
        seen = queue.advances = again ? queue.advances : 0;
        pthread_mutex_unlock(&queue.mutex);
    }
}

static void
run(struct worker *self, struct job *job)
{
    unsigned generation = job->generation;
    PyObject *outcome = NULL;
    bool failed = false;
    self->turn = job->scheduled ? job->stream->device : NULL;
    link_started(job);
    if (future_start(job->future)) {
        self->current = job;
        ps_memory_may_wait(false);
        outcome = call_in_timeline(job);
        failed = outcome == NULL;
        outcome = failed ? take_exception() : outcome;
        ps_memory_may_wait(true);
        self->current = NULL;
    }
    /* If the callable has forked and this is the child, end it.  The parent
     * settles the Future and opens the gate. */
    if (generation != ps_generation()) {
        end_child(failed ? outcome : NULL);
    }
    unlink_job(job);
    if (failed && job->captured != NULL) {
        /* Store the exception before the gate opens, so that a wait for the
         * stream finds it. */
        captured_failed(job, outcome);
        Py_SETREF(outcome, Py_NewRef(Py_None));
        failed = false;
    }
    if (outcome != NULL) {
        /* Settle the Future before the gate opens, because a thread that finds
         * the stream's work done must find the Future done, too.  Do not log
         * an exception that the callable did not cause.  If the work before
         * the callable has failed, the stream reports that.  If the program
         * has ended, that may be the cause. */
        future_settle(job->future, outcome, failed,
                      job->status == PS_SUCCESS && !has_closed());
        if (failed && ps_cpu_schedules.is_on() &&
            drop_result(import_call("pystreams.schedules", "_note_failed",
                                    "(O)", job->future)) < 0) {
            PyErr_WriteUnraisable(NULL);
        }
    }
    open_gate(self, job);
    if (outcome != NULL) {
        future_finish(job->future);
        Py_DECREF(outcome);
    }
    job_destroy(job);
    if (generation != ps_generation()) {
        end_child(NULL);
    }
    /* Do this only now, because the end of the program also waits for the
     * Future's callbacks, and for what the arguments' destructors do. */
    count_ended();
    advance_awaited();
    end_turn();
    if (self->replaced) {
        self->replaced = false;
        want_threads(-1);
    }
}

/* Prepare a new thread to run callables.  Returns false if there is no
 * memory. */
static bool
prepare(void)
{
    struct worker *self = calloc(1, sizeof(*self));
    /* On each thread, only the first call to each of these two functions can
     * fail for lack of memory.  Make these calls now, so that later ones
     * cannot fail. */
    if (self == NULL ||
        ps_thread_set_word(PS_THREAD_WORKER, self) != PS_SUCCESS ||
        ps_memory_may_wait(false) != PS_SUCCESS) {
        ps_thread_set_word(PS_THREAD_WORKER, NULL);
        free(self);
        return false;
    }
    ps_memory_may_wait(true);
    return true;
}

/* The body of a thread that runs callables. */
static void
run_jobs(void)
{
    struct worker *self = worker_self();
    struct job *job;
    while ((job = take()) != NULL) {
        run(self, job);
    }
    ps_thread_set_word(PS_THREAD_WORKER, NULL);
    free(self);
}

/* Called when the thread no longer has a Python thread state. */
static void
left(void)
{
    pthread_mutex_lock(&queue.mutex);
    queue.leaving--;
    if (queue.closed) {
        pthread_cond_broadcast(&queue.ended);
    }
    pthread_mutex_unlock(&queue.mutex);
}

int
job_expect(struct job *job)
{
    pthread_mutex_lock(&queue.mutex);
    bool closed = queue.closed;
    if (!closed) {
        count_locked(job, 1);
    }
    pthread_mutex_unlock(&queue.mutex);
    if (closed) {
        return refuse(PyExc_RuntimeError,
                      "cannot submit a callable after the program ended");
    }
    if (hire() < 0) {
        count(job, -1);
        return -1;
    }
    link_pending(job);
    return 0;
}

void
job_give_up(struct job *job)
{
    unlink_job(job);
    count(job, -1);
}

static bool
is_capturing(struct ps_stream *stream)
{
    int capturing;
    ps_status status;
    CALL_BACKEND(stream->device->runtime,
                 status = ps_stream_capturing(stream, &capturing));
    return status == PS_SUCCESS && capturing;
}

static ps_status
queue_job(struct job *job)
{
    struct ps_stream *stream = job->stream;
    const struct ps_backend *backend = stream->device->runtime->backend;
    ps_status status;
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (backend->stream_gate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (job_expect(job) < 0) {
        return PS_RAISED;
    }
    ENQUEUE(status, stream,
            backend->stream_gate(backend, stream->device->index,
                                 stream->handle, reached, job, &job->gate));
    if (status != PS_SUCCESS) {
        job_give_up(job);
    }
    return status;
}

/* Queue the job or, if its stream is being captured, capture it.  On success,
 * takes over the job.  On failure, returns -1 with an exception. */
static int
queue_or_capture(struct job *job)
{
    struct ps_stream *stream = job->stream;
    for (;;) {
        ps_status status = queue_job(job);
        if (status == PS_SUCCESS) {
            return 0;
        }
        if (status != PS_ERROR_CAPTURE_UNSUPPORTED) {
            raise_on_stream(stream, "Stream.submit", status);
            return -1;
        }
        int captured = capture_job(job);
        if (captured != 0) {
            return captured < 0 ? -1 : 0;
        }
        if (run_handlers(stream->generation) == PS_RAISED) {
            return -1;
        }
    }
}

/* Returns a new job for the arguments of submit; NULL with an exception.  The
 * job will run in a copy of `context` or, if that is NULL, of the current
 * context. */
static struct job *
job_create(struct ps_stream *stream, PyObject *context, PyObject *const *args,
           Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t count =
        nargs + (kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0);
    struct job *job =
        PyMem_Calloc(1, sizeof(*job) + (size_t)count * sizeof(job->args[0]));
    if (job == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    job->generation = ps_generation();
    if (stream != NULL) {
        job->stream = ps_stream_ref(stream);
        job->row = &stream->jobs;
    }
    job->kwnames = Py_XNewRef(kwnames);
    job->nargs = nargs;
    job->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        job->args[i] = Py_NewRef(args[i]);
    }
    job->function = job->args[0];
    job->context =
        context != NULL ? PyContext_Copy(context) : PyContext_CopyCurrent();
    if (job->context == NULL || (job->future = future_new()) == NULL) {
        job_destroy(job);
        return NULL;
    }
    future_set_place(job->future);
    return job;
}

struct job *
job_again(const struct job *job)
{
    return job_create(NULL, job->context, job->args, job->nargs, job->kwnames);
}

PyObject *
Stream_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    if (nargs < 1) {
        return PyErr_Format(PyExc_TypeError,
                            "submit() missing required argument 'fn'");
    }
    if (!PyCallable_Check(args[0])) {
        return raise_expected("submit", "a callable", "fn", args[0]);
    }
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    struct ps_stream *stream = use.stream;
    ensure_queue();
    struct job *job = job_create(stream, NULL, args, nargs, kwnames);
    /* The job has its own reference to the stream. */
    stream_use_end(&use);
    if (job == NULL) {
        return NULL;
    }
    PyObject *const *given = job->args + 1;
    Py_ssize_t count = job->count - 1;
    if ((ps_races_are_on() &&
         expect_callable(stream, given, count, job->future) < 0) ||
        (ps_cpu_schedules.is_noted() && !is_capturing(stream) &&
         note_arguments(given, count) < 0)) {
        job_destroy(job);
        return NULL;
    }
    if (ps_timeline_is_on()) {
        uint64_t source;
        job->slice = timeline_callable(stream, job->function, &source);
        future_set_source(job->future, source);
    }
    PyObject *future = Py_NewRef(job->future);
    if (queue_or_capture(job) < 0) {
        job_destroy(job);
        Py_CLEAR(future);
    }
    return future;
}

/* Returns the stream whose callable the calling thread is running.  Returns
 * NULL if it is running none, or if the callable has forked and this is the
 * child. */
static struct ps_stream *
own_stream(void)
{
    struct worker *self = worker_self();
    struct job *job = self != NULL ? self->current : NULL;
    return job != NULL && job->generation == ps_generation() ? job->stream
                                                             : NULL;
}

bool
callable_moment(struct ps_moment **moment)
{
    struct worker *self = worker_self();
    struct job *job = self != NULL ? self->current : NULL;
    *moment = job != NULL ? future_moment(job->future) : NULL;
    return job != NULL;
}

PyObject *
callable_place(void)
{
    struct worker *self = worker_self();
    return self != NULL && self->current != NULL
               ? future_place(self->current->future)
               : Py_NewRef(Py_None);
}

bool
has_turn(const struct ps_backend *registered)
{
    struct worker *self = worker_self();
    return self != NULL && self->turn != NULL &&
           self->turn->runtime->registered == registered;
}

bool
callable_has_ended(void)
{
    struct worker *self = worker_self();
    return self != NULL && self->turn != NULL && self->current == NULL;
}

void
end_turn(void)
{
    struct worker *self = worker_self();
    if (callable_has_ended()) {
        WITHOUT_GIL(ps_cpu_schedules.ended());
        self->turn = NULL;
    }
}

bool
is_own_stream(struct ps_stream *stream)
{
    struct ps_stream *mine = own_stream();
    return mine != NULL && mine->device == stream->device &&
           mine->identity == stream->identity;
}

int
check_may_wait(const struct work *work)
{
    struct ps_stream *mine = own_stream();
    let_others_run();
    if (mine == NULL || work->device != mine->device) {
        return 0;
    }
    bool cyclic = true;
    if (work->stream != NULL) {
        cyclic = is_own_stream(work->stream);
    }
    else if (work->event != NULL) {
        cyclic = atomic_load(&work->event->source) == mine->identity &&
                 ps_event_query(work->event) == PS_ERROR_NOT_READY;
    }
    if (cyclic) {
        return refuse(PyExc_RuntimeError,
                      "%s: a callable cannot wait for the stream that it runs "
                      "on, whose work waits for the callable",
                      work->operation);
    }
    return 0;
}

static void
close_queue(void)
{
    pthread_mutex_lock(&queue.mutex);
    queue.closed = true;
    pthread_mutex_unlock(&queue.mutex);
}

/* Cancel the callables that have not started, so that their Futures become
 * done. */
static void
cancel_pending(void)
{
    PyObject *future;
    while ((future = take_pending()) != NULL) {
        future_cancel(future);
        Py_DECREF(future);
    }
}

/* Wait until no callable or callback is running and no thread is leaving, for
 * at most timeout_ns.  Returns whether none is running.  Called with the GIL
 * released. */
static bool
wait_for_running(int64_t timeout_ns)
{
    int64_t end_ns = monotonic_ns() + timeout_ns;
    struct timespec end = {end_ns / 1000000000, end_ns % 1000000000};
    int error = 0;
    pthread_mutex_lock(&queue.mutex);
    while (queue.running + queue.leaving > 0 && error == 0) {
        error = pthread_cond_timedwait(&queue.ended, &queue.mutex, &end);
    }
    bool finished = queue.running == 0;
    pthread_mutex_unlock(&queue.mutex);
    return finished;
}

bool
stop_jobs(int64_t timeout_ns)
{
    bool finished;
    unsigned generation;
    do {
        generation = ps_generation();
        ensure_queue();
        close_queue();
        cancel_pending();
        /* If a Future's callback has forked, this is a child, whose new queue
         * is still open. */
    } while (generation != ps_generation());
    WITHOUT_GIL(finished = wait_for_running(timeout_ns));
    report_captured_failures();
    return finished;
}
