/* Callables in captured graphs. */
#ifndef PYSTREAMS_PYTHON_CAPTURED_H
#define PYSTREAMS_PYTHON_CAPTURED_H

#include "../core/graph.h"
#include "../observe/races.h"

#include "module.h"
#include "submit.h"
#include "wait.h"

/* A captured callable, and all callables of one capture, in the order of the
 * calls. */
struct captured;
struct calls;

/* The callables of a capture that is about to begin, with one reference; NULL
 * with an exception. */
struct calls *calls_create(struct ps_runtime *runtime);
/* Accept NULL. */
struct calls *calls_ref(struct calls *calls);
void calls_unref(struct calls *calls);
int calls_traverse(const struct calls *calls, visitproc visit, void *argument);

/* Between these calls, callables that are submitted in the capture with the
 * number (0: none) are added.  The second accepts NULL. */
void calls_begin(struct calls *calls, uint64_t number);
void calls_end(struct calls *calls);
/* That number, also after the capture. */
uint64_t calls_number(const struct calls *calls);
/* Whether a callable was captured. */
bool calls_any(struct calls *calls);

/* Make each launch run the job, which this function takes over, also on
 * failure.  Its Future is done.  -1 with an exception. */
int capture_job(struct job *job);
void captured_unref(struct captured *captured);

/* ps_graph_launch, with the callables of the graph's capture; calls may be
 * NULL.  Called with the GIL, which it releases. */
ps_status launch_calls(struct ps_graph *graph, struct calls *calls,
                       struct ps_stream **full);

/* The name of the callable whose gate has the argument; None if it is not
 * among calls, which may be NULL; NULL with an exception. */
PyObject *calls_name(struct calls *calls, const void *argument);

/* The hook of the race detector. */
void captured_launching(const struct ps_actor_name *stream);

/* The callable of a launch has raised the exception: the next wait for the
 * launch's stream, or for its device, raises it. */
void captured_failed(const struct job *job, PyObject *exception);

extern atomic_int captured_failures;
__attribute__((cold)) int raise_captured_failure(const struct work *work);

static inline bool
any_captured_failed(void)
{
    return atomic_load_explicit(&captured_failures, memory_order_relaxed) != 0;
}

/* After a wait for the work: -1 with the exception of a callable that no wait
 * has raised yet. */
static inline int
check_captured(const struct work *work)
{
    return any_captured_failed() ? raise_captured_failure(work) : 0;
}

/* Report the exceptions that no wait has raised. */
void report_captured_failures(void);

#endif
