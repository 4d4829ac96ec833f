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
    /* Links in one of two lists: the jobs that have not started, or those that
     * run.  earlier is NULL if the job is in neither list. */
    struct job *later, **earlier;
    /* The time when the callable was queued or began to run. */
    int64_t since_ns;
    atomic_bool reached;
    /* Whether the stream reached the job while a schedule was explored. */
    bool scheduled;
    /* The thread that runs the job, and that thread's state, which is NULL
     * until the job runs. */
    unsigned long thread;
    PyThreadState *state;
    /* The fork generation of the process that must run the job. */
    unsigned generation;
    struct ps_stream *_Atomic stream;
    /* Jobs with the same `row` run one after another; *row is the number of
     * these jobs.  They are the jobs of one stream or, for captured callables,
     * of one stream of the capture. */
    unsigned *row;
    /* Only for a job of a graph launch: the captured callable.  NULL in
     * others. */
    struct captured *captured;
    ps_handle gate;
    /* The status of the work before the job in its stream. */
    ps_status status;
    PyObject *future;
    PyObject *context;
    /* The job's slice in the timeline, until the job has ended; or NULL. */
    struct ps_slice *slice;
    /* A copy of args[0].  It is needed because a call of a method puts `self`
     * in the place of args[0]. */
    PyObject *function;
    /* The function and its arguments, as Stream.submit got them. */
    PyObject *kwnames; /* may be NULL */
    /* The number of positional arguments, plus 1 for the function. */
    Py_ssize_t nargs;
    Py_ssize_t count;
    PyObject *args[];
};

/* Returns a copy of the job for a launch, without a stream yet; NULL with an
 * exception. */
struct job *job_again(const struct job *job);
/* Accepts NULL. */
void job_destroy(struct job *job);
/* Call this before the job is queued.  Makes sure that a thread can run the
 * job.  On failure, returns -1 with an exception. */
int job_expect(struct job *job);
/* Undo job_expect, if queueing the job failed. */
void job_give_up(struct job *job);
/* Call this when the stream has reached the job, on any thread. */
void job_reached(struct job *job, ps_status status);

/* The mutex of the queue of callables.  Never held while waiting for the
 * GIL. */
void jobs_lock(void);
void jobs_unlock(void);

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Returns whether the calling thread runs a callable for which this stream
 * waits. */
bool is_own_stream(struct ps_stream *stream);

/* Returns whether the calling thread runs a callable.  *moment becomes the
 * callable's moment; NULL if the race detector was off when it was queued. */
bool callable_moment(struct ps_moment **moment);

/* Returns the place where the callable that this thread runs was submitted, as
 * place_of.  NULL with an exception. */
PyObject *callable_place(void);

/* While a schedule is explored, a thread that runs a callable has the turn:
 * others wait.  The turn lasts until the callable's clean-up is complete.
 * has_turn returns whether the calling thread has such a turn, for a stream of
 * this backend.  callable_has_ended returns whether the calling thread is in
 * the clean-up after a callable. */
bool has_turn(const struct ps_backend *registered);
bool callable_has_ended(void);
/* If the calling thread is in the clean-up of a callable, end its turn, so
 * that the schedule's other threads can continue. */
void end_turn(void);

/* Call both before a wait.  let_others_run makes another thread run the queued
 * callables, if the calling thread should run them but is about to wait in a
 * callback.  check_may_wait returns -1 with RuntimeError if the wait would be
 * a deadlock. */
void let_others_run(void);
int check_may_wait(const struct work *work);

/* Returns a list with the result of describe(job) for each job of this process
 * that has a stream and has not ended, the latest first.  describe must run no
 * Python code.  NULL with an exception. */
PyObject *list_callables(PyObject *(*describe)(const struct job *job));

/* Let no more callables start, cancel those that have not started, and wait at
 * most timeout_ns for those that run.  Returns whether all have ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
