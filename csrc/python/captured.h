/* Callables that were submitted to a stream during a capture.  Each launch of
 * the graph runs them. */
#ifndef PYSTREAMS_PYTHON_CAPTURED_H
#define PYSTREAMS_PYTHON_CAPTURED_H

#include "../core/graph.h"
#include "../observe/races.h"

#include "module.h"
#include "submit.h"
#include "wait.h"

/* `struct captured` is one such callable.  `struct calls` is the list of the
 * callables of one capture, in the order of submission. */
struct captured;
struct calls;

/* Create the list of callables of a capture that is about to begin, with one
 * reference.  On failure, returns NULL with an exception. */
struct calls *calls_create(struct ps_runtime *runtime);
/* These three functions accept NULL. */
struct calls *calls_ref(struct calls *calls);
void calls_unref(struct calls *calls);
int calls_traverse(const struct calls *calls, visitproc visit, void *argument);

/* Between calls_begin and calls_end, callables that are submitted during the
 * capture with this number (see stream_capture in backend.h) are added to
 * `calls`.  If the number is 0, none are added.  Call calls_expect before the
 * capture begins.  Then call calls_begin, even if the capture failed to begin.
 * Between these two calls, another thread that submits a callable to the
 * stream waits for calls_begin.  calls_end accepts NULL.  calls_expect and
 * calls_begin can be called without the GIL.
 *
 * number and order are those of ps_graph_capture_begin. */
void calls_expect(void);
void calls_begin(struct calls *calls, uint64_t number, uint64_t order);
void calls_end(struct calls *calls);
/* Returns the number that was passed to calls_begin, even after the capture
 * has ended. */
uint64_t calls_number(const struct calls *calls);
/* Returns whether the list belongs to a later capture of the same graph than
 * the other list. */
bool calls_are_later(const struct calls *calls, const struct calls *other);
/* Returns whether any callable was captured, or may still be captured. */
bool calls_any(struct calls *calls);

/* Capture the job: each launch of the graph will run its callable.  The job's
 * Future gets an exception at once, because only launches run the callable,
 * and they do not settle this Future.
 *
 * On success, takes over the job, and returns 1.  Otherwise, the caller keeps
 * the job.  Returns -1 with an exception on failure, and 0 if another thread
 * has just begun or ended the capture, so that the caller should try again. */
int capture_job(struct job *job);
void captured_unref(struct captured *captured);

struct late;

/* Like ps_graph_launch, but the launch also runs the callables in `calls`.  If
 * `calls` is NULL, `number` becomes ps_launch.number.  Called with the GIL
 * held; releases it while it launches the graph.  The caller must call
 * late_run next. */
ps_status launch_calls(struct ps_graph *graph, struct calls *calls,
                       uint64_t number, struct ps_stream *stream,
                       struct late *late, struct ps_stream **full);

/* Returns the name of the callable in `calls` that runs at the gate of a graph
 * node; `argument` is that node's ps_graph_node.argument.  Returns None if
 * there is no such callable, or if `calls` is NULL.  On failure, returns NULL
 * with an exception. */
PyObject *calls_name(struct calls *calls, const void *argument);

/* Called by the race detector when a graph is launched on the stream.  Gives
 * the launch's callables their moments; see future_set_moment. */
void captured_launching(const struct ps_actor_name *stream);

/* Called when a callable of a launch has raised the exception.  Stores the
 * exception, and the next wait for the launch's stream or device raises it.
 * If an earlier exception from this stream is still stored, reports the new
 * one at once instead. */
void captured_failed(const struct job *job, PyObject *exception);

extern atomic_int captured_failures;
__attribute__((cold)) int raise_captured_failure(const struct work *work);

static inline bool
any_captured_failed(void)
{
    return atomic_load_explicit(&captured_failures, memory_order_relaxed) != 0;
}

/* Call this after a wait for the work.  If a captured callable in this work
 * has raised an exception that no wait has raised yet, raises the first such
 * exception and returns -1.  Otherwise returns 0. */
static inline int
check_captured(const struct work *work)
{
    return any_captured_failed() ? raise_captured_failure(work) : 0;
}

/* Called at the end of the program.  Reports captured callables' exceptions
 * that no wait has raised. */
void report_captured_failures(void);

#endif
