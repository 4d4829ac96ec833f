/* Python callables in stream order. */
#ifndef PYSTREAMS_PYTHON_SUBMIT_H
#define PYSTREAMS_PYTHON_SUBMIT_H

#include <stdatomic.h>

#include "../observe/races.h"

#include "module.h"
#include "wait.h"

/* A callable that is to run. */
struct job {
    struct job *next;
    /* Links of the callables that have not started, or of those that run;
     * NULL for others. */
    struct job *later, **earlier;
    /* When it was queued, or began to run. */
    int64_t since_ns;
    atomic_bool reached;
    /* It was reached while a schedule was explored. */
    bool scheduled;
    /* That runs it; NULL if none does yet. */
    unsigned long thread;
    PyThreadState *state;
    /* The fork generation of the process that runs it. */
    unsigned generation;
    struct ps_stream *_Atomic stream;
    /* The count of the callables that run one after another with this one:
     * those of its stream, or of its stream of the capture. */
    unsigned *row;
    /* The captured callable that a launch runs, or NULL. */
    struct captured *captured;
    ps_handle gate;
    /* The status of the work queued before it. */
    ps_status status;
    PyObject *future;
    PyObject *context;
    /* Its part of the timeline until it has ended, or NULL. */
    struct ps_slice *slice;
    /* args[0]; while a method runs, its `self` takes that place. */
    PyObject *function;
    /* The function and its arguments, as submit got them. */
    PyObject *kwnames; /* may be NULL */
    Py_ssize_t nargs;  /* the positional ones, with the function */
    Py_ssize_t count;
    PyObject *args[];
};

/* A copy of the job for a launch, on no stream yet; NULL with an exception. */
struct job *job_again(const struct job *job);
/* Accepts NULL. */
void job_destroy(struct job *job);
/* Call before the job is queued: makes sure that a thread can run it; -1 with
 * an exception. */
int job_expect(struct job *job);
/* Call if the job was not queued after all. */
void job_give_up(struct job *job);
/* The stream has reached it; called on any thread. */
void job_reached(struct job *job, ps_status status);

/* The mutex of the queue of callables; never held while waiting for the
 * GIL. */
void jobs_lock(void);
void jobs_unlock(void);

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Whether the calling thread runs a callable that the stream is waiting
 * for. */
bool is_own_stream(struct ps_stream *stream);

/* Whether the calling thread runs a callable; *moment is the callable's, NULL
 * if nothing observed when it was queued. */
bool callable_moment(struct ps_moment **moment);

/* Where the callable that the calling thread runs was submitted, as place_of;
 * NULL with an exception. */
PyObject *callable_place(void);

/* Whether the calling thread runs a callable of a stream of the backend that a
 * schedule has picked, or has run it and still cleans up.  callable_has_ended:
 * whether it cleans up. */
bool has_turn(const struct ps_backend *registered);
bool callable_has_ended(void);
/* Let the schedule's other threads go on, if the calling thread cleans up. */
void end_turn(void);

/* Called before a wait.  After a callable has ended, a callback may wait here:
 * another thread then runs the callables queued behind it.  check_may_wait: -1
 * with RuntimeError if the wait would be a deadlock. */
void let_others_run(void);
int check_may_wait(const struct work *work);

/* A list of the results of describe, which runs no Python, for the callables
 * of this process that have not ended, the latest first; NULL with an
 * exception.  Each of these callables has a stream. */
PyObject *list_callables(PyObject *(*describe)(const struct job *job));

/* Start no more callables, cancel those that have not started, and wait for
 * those that are running; returns whether all have ended. */
bool stop_jobs(int64_t timeout_ns);

#endif
