/* Stream.submit: Python callables that run in the order of a stream's work. */
#ifndef PYSTREAMS_PYTHON_SUBMIT_H
#define PYSTREAMS_PYTHON_SUBMIT_H

#include <stdatomic.h>

#include "../observe/races.h"

#include "module.h"
#include "wait.h"

/* A callable that was submitted, with everything that is needed to run it. */
struct job {
    struct job *next;
    /* The job's links in the list of jobs that have not started, or of jobs
     * that are running.  `earlier` is NULL if the job is in neither list. */
    struct job *later, **earlier;
    /* The time at which the callable was queued or, once it has started, the
     * time at which it began to run. */
    int64_t since_ns;
    atomic_bool reached;
    /* Whether the stream reached the job while a schedule was explored (see
     * schedules.h). */
    bool scheduled;
    /* The thread that runs the job, and the thread's Python thread state,
     * which is NULL until the job runs. */
    unsigned long thread;
    PyThreadState *state;
    /* The fork generation of the process that must run the job. */
    unsigned generation;
    struct ps_stream *_Atomic stream;
    /* The jobs of one stream form a row: they run one after another.  The jobs
     * of captured callables are in the row of the captured stream instead.
     * *row is the number of the row's jobs that have not ended. */
    unsigned *row;
    /* The captured callable, if a graph's launch has made the job; otherwise
     * NULL. */
    struct captured *captured;
    ps_handle gate;
    /* The status of the work before the job in its stream. */
    ps_status status;
    PyObject *future;
    PyObject *context;
    /* The job's slice in the timeline.  NULL if the timeline did not record
     * the job, or once its callable has returned. */
    struct ps_slice *slice;
    /* A copy of args[0].  It is needed because a method call temporarily
     * overwrites args[0] with `self` (PY_VECTORCALL_ARGUMENTS_OFFSET). */
    PyObject *function;
    /* The members from here on hold the function and its arguments, as they
     * were passed to Stream.submit. */
    PyObject *kwnames; /* may be NULL */
    /* The number of positional arguments, plus 1 for the function. */
    Py_ssize_t nargs;
    Py_ssize_t count; /* the length of args[] */
    PyObject *args[];
};

/* Returns a new job with the same function and arguments, for a launch of a
 * graph.  The new job has no stream yet.  On failure, returns NULL with an
 * exception. */
struct job *job_again(const struct job *job);
/* Accepts NULL. */
void job_destroy(struct job *job);
/* Make sure that a thread can run the job.  Call this before the job is
 * queued.  On failure, returns -1 with an exception. */
int job_expect(struct job *job);
/* Undo job_expect, if queueing the job failed. */
void job_give_up(struct job *job);
/* Append the job to the queue of callables.  Call this, on any thread, when
 * the stream has reached the job.  status: the status of the stream's work
 * before the job. */
void job_reached(struct job *job, ps_status status);

/* Lock and unlock the mutex of the queue of callables.  A thread that holds
 * the mutex must not wait for the GIL. */
void jobs_lock(void);
void jobs_unlock(void);

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Returns whether the calling thread is running a callable of this stream.  If
 * so, the stream waits for the thread. */
bool is_own_stream(struct ps_stream *stream);

/* Returns whether the calling thread is running a callable.  *moment becomes
 * the callable's moment; NULL if the race detector was off when the callable
 * was queued. */
bool callable_moment(struct ps_moment **moment);

/* If the calling thread is running a callable, returns the place at which the
 * callable was submitted, as place_of does.  Otherwise returns None.  On
 * failure, returns NULL with an exception. */
PyObject *callable_place(void);

/* While a schedule is explored, a thread that is running a callable has the
 * turn: the other threads wait.  The turn lasts until the clean-up after the
 * callable is complete.  has_turn returns whether the calling thread has the
 * turn because of a callable on this backend.  callable_has_ended returns
 * whether the calling thread is in the clean-up after a callable. */
bool has_turn(const struct ps_backend *registered);
bool callable_has_ended(void);
/* If the calling thread is in the clean-up after a callable, end its turn, so
 * that the schedule's other threads can continue. */
void end_turn(void);

/* Call one of these before a wait.  A thread that runs queued callables may
 * also wait between two callables, for example in a Future's callback.  In
 * that case, let_others_run makes another thread run the callables meanwhile.
 * check_may_wait does the same, but returns -1 with RuntimeError if the wait
 * would be a deadlock. */
void let_others_run(void);
int check_may_wait(const struct work *work);

/* Returns a list with the result of describe(job) for each job of this process
 * that has a stream and has not ended.  The jobs that are running come first,
 * then the others.  In each of the two groups the latest job comes first.
 * describe must run no Python code.  On failure, returns NULL with an
 * exception. */
PyObject *list_callables(PyObject *(*describe)(const struct job *job));

/* Prevent more callables from starting, cancel those that have not started,
 * and wait at most timeout_ns for those that are running.  Returns whether all
 * callables have ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
