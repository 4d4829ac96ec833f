/* Callables in captured graphs. */
#ifndef PYSTREAMS_PYTHON_CAPTURED_H
#define PYSTREAMS_PYTHON_CAPTURED_H

#include "../core/graph.h"
#include "../observe/races.h"

#include "module.h"
#include "submit.h"
#include "wait.h"

/* A captured callable; and all callables of one capture, in the order of the
 * calls. */
struct captured;
struct calls;

/* Create the list of callables of a capture that is about to begin, with one
 * reference.  On failure, returns NULL with an exception. */
struct calls *calls_create(struct ps_runtime *runtime);
/* Accept NULL. */
struct calls *calls_ref(struct calls *calls);
void calls_unref(struct calls *calls);
int calls_traverse(const struct calls *calls, visitproc visit, void *argument);

/* Between these two calls, callables that are submitted during the capture
 * with this number are added to `calls`.  With number 0, none are.  calls_end
 * accepts NULL. */
void calls_begin(struct calls *calls, uint64_t number);
void calls_end(struct calls *calls);
/* The number that calls_begin was given.  Stays valid after the capture. */
uint64_t calls_number(const struct calls *calls);
/* Returns whether any callable was captured. */
bool calls_any(struct calls *calls);

/* Capture the job: each launch of the graph will run its callable.  The job's
 * Future is settled at once.  Takes over the job, also on failure.  On
 * failure, returns -1 with an exception. */
int capture_job(struct job *job);
void captured_unref(struct captured *captured);

/* As ps_graph_launch; the launch also runs the captured callables.  calls may
 * be NULL.  Called with the GIL, which it releases meanwhile. */
ps_status launch_calls(struct ps_graph *graph, struct calls *calls,
                       struct ps_stream **full);

/* Find the name of the callable whose gate has this argument.  Returns None if
 * it is not among `calls`, which may be NULL; NULL with an exception. */
PyObject *calls_name(struct calls *calls, const void *argument);

/* Called by the race detector when a graph is launched on the stream. */
void captured_launching(const struct ps_actor_name *stream);

/* A callable of a launch has raised the exception.  Store it; the next wait
 * for the launch's stream or device raises it. */
void captured_failed(const struct job *job, PyObject *exception);

extern atomic_int captured_failures;
__attribute__((cold)) int raise_captured_failure(const struct work *work);

static inline bool
any_captured_failed(void)
{
    return atomic_load_explicit(&captured_failures, memory_order_relaxed) != 0;
}

/* Call after a wait for the work.  Raises the first exception of a captured
 * callable that no wait has raised yet: returns -1. */
static inline int
check_captured(const struct work *work)
{
    return any_captured_failed() ? raise_captured_failure(work) : 0;
}

/* Report the exceptions that no wait has raised, at the end of the program. */
void report_captured_failures(void);

#endif
