/* The type `Graph`, whose methods call core's graph functions.
 * pystreams/cuda/_graphs.py gives them torch's names and error messages.  A
 * method releases the GIL before it waits for the graph's mutex, which another
 * thread may hold for long. */
#include "graph.h"

#include <errno.h>

#include "../core/graph.h"
#include "../core/thread_stream.h"

#include "args.h"
#include "backends.h"
#include "captured.h"
#include "current.h"
#include "enqueue.h"
#include "errors.h"
#include "late.h"
#include "stream.h"

typedef struct {
    PyObject ob_base;
    struct ps_runtime *runtime;
    struct ps_graph *graph;
    PyObject *pool;      /* the argument `pool` of _begin(), or NULL */
    struct calls *calls; /* the capture's callables, or NULL */
    /* The number of calls of _begin() that may have begun a capture for which
     * `calls` is not set yet. */
    atomic_int beginning;
    /* The exception that was being handled when the capture began; NULL if
     * there was none, or after the capture has ended. */
    PyObject *handled;
} GraphObject;

/* Whether native graphs are kept, so that they can be printed after they are
 * instantiated. */
static atomic_bool debugging;

static struct ps_graph *
graph_of(PyObject *self)
{
    return ((GraphObject *)self)->graph;
}

static struct ps_runtime *
runtime_of(PyObject *self)
{
    return ((GraphObject *)self)->runtime;
}

/* ---- Hooks ---- */

/* Whether a hook was ever registered, for one graph or for all graphs. */
static atomic_bool hooked;

/* Run the hooks of this kind.  The hooks that were registered for all graphs
 * run first, and their exceptions are logged.  Then the graph's own hooks run.
 * If one of these raises an exception, runs no further hooks and returns -1
 * with the exception. */
static int
run_hooks(PyObject *self, const char *kind)
{
    if (!atomic_load_explicit(&hooked, memory_order_relaxed)) {
        return 0;
    }
    return drop_result(
        import_call("pystreams.cuda._graphs", "_run", "(Os)", self, kind));
}

/* Run the destroy hooks, and log the exceptions that they raise. */
static void
run_destroy_hooks(PyObject *self, uint64_t executable)
{
    struct saved_exception saved = exception_save();
    if (drop_result(import_call("pystreams.cuda._graphs", "_destroyed", "(OK)",
                                self, (unsigned long long)executable)) < 0) {
        report_ignored("running the destroy hooks of a graph");
    }
    exception_restore(saved);
}

/* Returns whether a capture is in progress.  *number becomes the number of the
 * graph's latest capture. */
static bool
is_capturing(PyObject *self, uint64_t *number)
{
    bool capturing;
    WITHOUT_GIL(capturing = ps_graph_is_capturing(graph_of(self), number));
    return capturing;
}

/* Store the place in the program at which the capture with this number begins.
 * Returns as clear_unless_interrupt does. */
static int
note_begin(PyObject *self, struct ps_stream *stream, uint64_t number)
{
    if (number == 0) {
        return 0;
    }
    drop_result(import_call(
        "pystreams.cuda._captures", "begun", "((iK)N)",
        runtime_of(self)->backend->device_type, (unsigned long long)number,
        captured_stream(stream->device, stream->identity)));
    return clear_unless_interrupt();
}

/* Forget the place where a capture that has ended began.  If the capture has
 * failed, add an explanation of the status to the pending exception. */
static void
note_end(struct ps_runtime *runtime, const struct ps_graph_end *end,
         ps_status status)
{
    if (!end->capture || end->number == 0) {
        return;
    }
    struct saved_exception saved = exception_save();
    /* No Python code runs if the module was imported before, so Ctrl-C cannot
     * interrupt this. */
    PyObject *capture = import_call("pystreams.cuda._captures", "forget",
                                    "((iK)O)", runtime->backend->device_type,
                                    (unsigned long long)end->number, Py_None);
    PyErr_Clear();
    exception_restore(saved);
    if (status != PS_SUCCESS) {
        explain_capture("ended", "(Oi)", capture, status);
    }
    Py_XDECREF(capture);
}

/* Add `text` to the message of the pending exception.  The placeholder {} in
 * the text is replaced with the place where the capture with this number
 * began.  The capture must be in progress. */
static void
explain_begin(PyObject *self, uint64_t number, const char *text)
{
    explain_capture("explained", "((iK)s)",
                    runtime_of(self)->backend->device_type,
                    (unsigned long long)number, text);
}

/* Wait for the graph's replays if a destroy hook requires that.  On failure,
 * returns -1 with an exception. */
static int
wait_if_asked(PyObject *self)
{
    return drop_result(
        import_call("pystreams.cuda._graphs", "_resetting", "(O)", self));
}

/* Forget the place where the ended capture began, and run the destroy
 * hooks. */
static void
finish_reset(PyObject *self, const struct ps_graph_end *end)
{
    note_end(runtime_of(self), end, PS_SUCCESS);
    if (end->capture) {
        reference_set(self, &((GraphObject *)self)->handled, NULL);
    }
    if (end->dropped && atomic_load(&hooked)) {
        run_destroy_hooks(self, end->executable);
    }
}

/* Call ps_graph_reset, and then run the destroy hooks. */
static ps_status
reset(PyObject *self)
{
    struct ps_graph_end end;
    ps_status status;
    if (atomic_load(&hooked) && wait_if_asked(self) < 0) {
        return PS_RAISED;
    }
    WITHOUT_GIL(status = ps_graph_reset(graph_of(self), &end));
    finish_reset(self, &end);
    return status;
}

/* tp_finalize.  Runs the destroy hooks before the object is deallocated, or
 * when the program ends (see pystreams/cuda/_graphs.py).  Does not reset the
 * graph, because a reset may be refused on this thread.  The deallocation
 * frees the graph, whichever thread it runs on. */
static void
Graph_finalize(PyObject *self)
{
    ps_handle native, executable;
    uint64_t capture, number;
    if (graph_of(self) == NULL || is_finalizing() || !atomic_load(&hooked) ||
        graph_of(self)->generation != ps_generation()) {
        return;
    }
    struct saved_exception saved = exception_save();
    WITHOUT_GIL(ps_graph_handles(graph_of(self), &native, &executable);
                number = ps_graph_executable_number(graph_of(self)));
    if (native != 0 || executable != 0 || is_capturing(self, &capture)) {
        if (wait_if_asked(self) < 0) {
            report_ignored("waiting for the replays of a graph");
        }
        run_destroy_hooks(self, number);
    }
    exception_restore(saved);
}

/* ---- Callables of the capture ---- */

/* Returns a new reference to the graph's list of callables; NULL if it has
 * none. */
static struct calls *
calls_get(PyObject *self)
{
    struct calls *calls;
    Py_BEGIN_CRITICAL_SECTION(self);
    calls = calls_ref(((GraphObject *)self)->calls);
    Py_END_CRITICAL_SECTION();
    return calls;
}

/* As calls_get.  *number becomes the number of the capture that the list
 * belongs to, 0 if there is no list, or UINT64_MAX, which is the number of no
 * capture, if another thread is about to set the list. */
static struct calls *
calls_find(PyObject *self, uint64_t *number)
{
    /* Read this first, because the other thread sets the list first. */
    bool may_come = atomic_load(&((GraphObject *)self)->beginning) > 0;
    struct calls *calls = calls_get(self);
    *number = calls != NULL ? calls_number(calls) : may_come ? UINT64_MAX : 0;
    return calls;
}

/* Replace the graph's list of callables, unless it belongs to a later capture,
 * which another thread has begun.  Takes over the caller's reference.  Returns
 * whether the list was replaced. */
static bool
calls_set(PyObject *self, struct calls *calls)
{
    struct calls *dropped;
    bool replaced = true;
    Py_BEGIN_CRITICAL_SECTION(self);
    dropped = ((GraphObject *)self)->calls;
    if (calls != NULL && dropped != NULL && calls_are_later(dropped, calls)) {
        dropped = calls;
        replaced = false;
    }
    else {
        ((GraphObject *)self)->calls = calls;
    }
    Py_END_CRITICAL_SECTION();
    calls_end(dropped);
    calls_unref(dropped);
    return replaced;
}

/* Call calls_end for the list of callables of the capture with this number, if
 * the graph has that list. */
static void
calls_end_of(PyObject *self, uint64_t number)
{
    struct calls *calls = calls_get(self);
    if (calls != NULL && calls_number(calls) == number) {
        calls_end(calls);
    }
    calls_unref(calls);
}

/* Drop the list of callables if the graph no longer has the capture to which
 * the callables belong. */
static void
calls_settle(PyObject *self)
{
    struct calls *calls = calls_get(self), *dropped = NULL;
    uint64_t number;
    if (calls == NULL) {
        return;
    }
    struct saved_exception saved = exception_save();
    is_capturing(self, &number);
    if (number != calls_number(calls)) {
        Py_BEGIN_CRITICAL_SECTION(self);
        if (((GraphObject *)self)->calls == calls) {
            dropped = calls;
            ((GraphObject *)self)->calls = NULL;
        }
        Py_END_CRITICAL_SECTION();
        calls_end(dropped);
        calls_unref(dropped);
    }
    calls_unref(calls);
    exception_restore(saved);
}

uint64_t
graph_begun(PyObject *self)
{
    uint64_t begun;
    WITHOUT_GIL(begun = ps_graph_begun(graph_of(self)));
    return begun;
}

void
graph_drop(PyObject *self, uint64_t begun)
{
    struct saved_exception saved = exception_save();
    struct ps_graph_end end;
    ps_status status;
    WITHOUT_GIL(status = ps_graph_drop(graph_of(self), begun, &end));
    finish_reset(self, &end);
    report_cleanup(runtime_of(self), graph_of(self)->device,
                   "dropping a capture", status);
    calls_settle(self);
    exception_restore(saved);
}

static int
Graph_traverse(PyObject *op, visitproc visit, void *arg)
{
    GraphObject *self = (GraphObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->pool);
    Py_VISIT(self->handled);
    return calls_traverse(self->calls, visit, arg);
}

static int
Graph_clear(PyObject *op)
{
    Py_CLEAR(((GraphObject *)op)->pool);
    Py_CLEAR(((GraphObject *)op)->handled);
    calls_set(op, NULL);
    return 0;
}

static PyObject *
Graph_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"type", "keep_graph", NULL};
    int device_type, keep = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|p:Graph", keywords,
                                     &device_type, &keep)) {
        return NULL;
    }
    struct ps_runtime *runtime = use_runtime(device_type);
    if (runtime == NULL) {
        return NULL;
    }
    if (runtime->backend->capture_begin == NULL) {
        return raise_absent(runtime, "graphs");
    }
    GraphObject *self = (GraphObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->runtime = runtime;
    ps_status status = ps_graph_create(keep, &self->graph);
    if (status != PS_SUCCESS) {
        Py_DECREF(self);
        return raise_status(runtime, "creating a graph", status);
    }
    return (PyObject *)self;
}

static void
Graph_dealloc(PyObject *op)
{
    GraphObject *self = (GraphObject *)op;
    struct ps_graph_end end;
    ps_status status;
    PyObject_GC_UnTrack(op);
    if (self->graph != NULL && !is_finalizing()) {
        struct ps_device *device = self->graph->device;
        WITHOUT_GIL(status = ps_graph_destroy(self->graph, &end));
        note_end(self->runtime, &end, PS_SUCCESS);
        report_cleanup(self->runtime, device, "dropping a graph", status);
    }
    Graph_clear(op);
    object_free(op);
}

/* The text of the exception for a status.  Its type is ValueError if
 * is_of_argument is true, else RuntimeError. */
struct fault {
    ps_status status;
    bool is_of_argument;
    const char *text; /* NULL ends a table */
};

#define FAULTS(...) ((const struct fault[]){__VA_ARGS__, {0}})
/* The table for an operation that needs a text of its own only if there is no
 * graph. */
#define IF_EMPTY(text) FAULTS({PS_ERROR_GRAPH_EMPTY, false, text})

/* Returns None for PS_SUCCESS, else NULL with an exception.  The exception's
 * text is from `own`, the table of the operation.  If the status is not in
 * that table, the text is from `common`, the table that all operations share.
 * If the status is in neither table, raises the exception that raise_status
 * does. */
static PyObject *
finish(PyObject *self, const char *operation, const struct fault *own,
       ps_status status)
{
    static const struct fault common[] = {
        {PS_ERROR_GRAPH_TAKEN, false,
         "This CUDAGraph instance already owns a captured graph. To capture a "
         "new graph, create a new instance."},
        {PS_ERROR_GRAPH_DEFAULT, false,
         "CUDA graphs must be captured on a non-default stream. (However, "
         "after capture, it's ok to replay them on the default stream.)"},
        {PS_ERROR_GRAPH_IDLE, false,
         "capture_end() called before capture_begin()."},
        {PS_ERROR_GRAPH_STREAM, false,
         "Capture must end on the same stream it began on."},
        {PS_ERROR_GRAPH_FINAL, false,
         "instantiate() is intended to be called by the user only when "
         "keep_graph=true"},
        {PS_ERROR_GRAPH_INNER, false,
         "a replay cannot be captured into a graph; add the graph to the "
         "capture with add_child(), or replay it after the capture ends"},
        {PS_ERROR_GRAPH_BEHIND, false,
         "a replay comes after the latest one, whose stream is being captured "
         "and cannot be waited for; replay after the capture ends"},
        {PS_ERROR_LAGS, false,
         "nothing can wait for the latest replay, on the default stream of "
         "another thread: its queue was full, or the thread ended in a "
         "capture; replay there again, or capture a new graph"},
        {0},
    };
    const struct fault *const tables[] = {own, common};
    for (int i = 0; status != PS_SUCCESS && i < 2; i++) {
        const struct fault *fault = tables[i];
        for (; fault != NULL && fault->text != NULL; fault++) {
            if (fault->status == status) {
                return PyErr_Format(fault->is_of_argument ? PyExc_ValueError
                                                          : PyExc_RuntimeError,
                                    "%s", fault->text);
            }
        }
    }
    return none_or_raise(runtime_of(self), operation, status);
}

/* Raise the exception for a capture that could not begin on the stream.
 * Returns NULL. */
static PyObject *
raise_begin(PyObject *self, struct ps_stream *stream, ps_status status)
{
    const struct ps_backend *backend = runtime_of(self)->backend;
    uint64_t number = 0;
    finish(self, "CUDAGraph.capture_begin", NULL, status);
    if (status == PS_ERROR_GRAPH_TAKEN) {
        if (is_capturing(self, &number)) {
            explain_begin(self, number, "\nIts capture, {}, has not ended.");
        }
    }
    else if (stream->handle != 0 && backend->stream_capture != NULL) {
        WITHOUT_GIL(backend->stream_capture(backend, stream->device->index,
                                            stream->handle, &number));
        explain_begin(self, number,
                      "\nThe stream is in a capture already, {}: end that "
                      "first, or begin this one on another stream.");
    }
    return NULL;
}

/* Returns a new reference to the exception that this thread is handling, as in
 * an except clause, a finally clause or an __exit__().  Returns NULL if there
 * is none. */
static PyObject *
handled_exception(void)
{
    PyObject *type, *value, *traceback;
    PyErr_GetExcInfo(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    if (value == Py_None) {
        Py_CLEAR(value);
    }
    return value;
}

/* Forget the exception that was being handled when the capture began, because
 * the capture has ended.  Returns whether this thread is handling an exception
 * that was raised during the capture. */
static bool
capture_raised(PyObject *self)
{
    PyObject **handled = &((GraphObject *)self)->handled;
    PyObject *before = reference_get(self, handled);
    PyObject *now = handled_exception();
    bool raised = now != NULL && now != before;
    reference_set(self, handled, NULL);
    Py_XDECREF(before);
    Py_XDECREF(now);
    return raised;
}

static PyObject *
Graph_begin(PyObject *self, PyObject *args)
{
    PyObject *pool;
    int mode;
    ps_status status;
    if (!PyArg_ParseTuple(args, "iO:_begin", &mode, &pool)) {
        return NULL;
    }
    struct calls *calls = calls_create(runtime_of(self));
    if (calls == NULL) {
        return NULL;
    }
    struct ps_stream *stream =
        current_stream_at(runtime_of(self)->backend->device_type);
    if (stream == NULL) {
        calls_unref(calls);
        return NULL;
    }
    uint64_t number, order, latest;
    atomic_fetch_add(&((GraphObject *)self)->beginning, 1);
    WITHOUT_GIL(calls_expect();
                status = ps_graph_capture_begin(graph_of(self), stream,
                                                (enum ps_capture_mode)mode,
                                                &number, &order);
                calls_begin(calls, number, order););
    if (status == PS_SUCCESS && calls_set(self, calls)) {
        reference_set(self, &((GraphObject *)self)->handled,
                      handled_exception());
        reference_set(self, &((GraphObject *)self)->pool, Py_NewRef(pool));
    }
    atomic_fetch_sub(&((GraphObject *)self)->beginning, 1);
    if (status != PS_SUCCESS) {
        raise_begin(self, stream, status);
        stream_release(stream);
        calls_unref(calls);
        return NULL;
    }
    int noted = note_begin(self, stream, number);
    stream_release(stream);
    if (!is_capturing(self, &latest) || latest != number) {
        /* Another thread has ended a relaxed capture already, perhaps before
         * the list and the note existed. */
        calls_end_of(self, number);
        calls_settle(self);
        reference_set(self, &((GraphObject *)self)->handled, NULL);
        note_end(runtime_of(self),
                 &(struct ps_graph_end){.capture = true, .number = number},
                 PS_SUCCESS);
    }
    if (noted < 0 || run_hooks(self, "capture_start") < 0) {
        graph_drop(self, order - 1);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Called by capture_end when the capture has ended: runs the hooks and
 * instantiates the graph. */
static ps_status
complete(PyObject *self, uint64_t order)
{
    ps_status status;
    bool made;
    bool debug = atomic_load(&debugging), has_hooks = atomic_load(&hooked);
    int raised = run_hooks(self, "capture_end");
    struct saved_exception saved = exception_save();
    /* Keep the native graph if there are hooks, because those that run after
     * the instantiation may inspect it. */
    WITHOUT_GIL(status = ps_graph_finish(graph_of(self), order,
                                         debug || has_hooks, &made));
    exception_restore(saved);
    if (raised == 0 && made) {
        raised = run_hooks(self, "post_instantiate");
    }
    if (status == PS_SUCCESS && has_hooks && !debug) {
        saved = exception_save();
        WITHOUT_GIL(status =
                        ps_graph_finish(graph_of(self), order, false, &made));
        exception_restore(saved);
    }
    return raised < 0 ? PS_RAISED : status;
}

static PyObject *
Graph_capture_end(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_stream *stream =
        current_stream_at(runtime_of(self)->backend->device_type);
    struct ps_graph_end end;
    ps_status status;
    if (stream == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_graph_capture_end(graph_of(self), stream, &end));
    stream_release(stream);
    ps_status ended = status;
    bool raised = end.capture && capture_raised(self);
    if (status == PS_SUCCESS) {
        calls_end_of(self, end.number);
        status = complete(self, end.order);
    }
    calls_settle(self);
    if (status == PS_SUCCESS && end.operations == 0 && !raised &&
        PyErr_WarnEx(PyExc_UserWarning,
                     "The CUDA Graph is empty. This usually means that the "
                     "graph was attempted to be captured on wrong device or "
                     "stream.",
                     1) < 0) {
        status = PS_RAISED;
    }
    PyObject *result = finish(self, "CUDAGraph.capture_end", NULL, status);
    if (status == PS_ERROR_GRAPH_STREAM) {
        explain_begin(self, end.number,
                      "\nThe capture, {}, goes on: make that stream current; "
                      "if it is closed, reset() drops the capture.");
    }
    note_end(runtime_of(self), &end, ended);
    return result;
}

static PyObject *
Graph_instantiate(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    static const struct signature signature = {
        "instantiate", 0, 0, {"auto_free_on_launch", "use_node_priority"}};
    static const unsigned flags[] = {PS_INSTANTIATE_AUTO_FREE,
                                     PS_INSTANTIATE_NODE_PRIORITY};
    PyObject *given[Py_ARRAY_LENGTH(flags)];
    unsigned options = 0;
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(flags); i++) {
        if (given[i] != NULL && !PyBool_Check(given[i])) {
            return raise_expected("instantiate", "a bool", signature.names[i],
                                  given[i]);
        }
        options |= given[i] != Py_False ? flags[i] : 0;
    }
    WITHOUT_GIL(status = ps_graph_instantiate(graph_of(self), options));
    if (status == PS_SUCCESS && run_hooks(self, "post_instantiate") < 0) {
        return NULL;
    }
    return finish(self, "CUDAGraph.instantiate",
                  IF_EMPTY("capture_end() must have been called before "
                           "calling instantiate"),
                  status);
}

/* Returns whether to try again because another thread has captured a graph
 * again meanwhile.  If a signal handler raises an exception, *status becomes
 * PS_RAISED. */
static bool
has_changed(ps_status *status)
{
    if (*status != PS_ERROR_GRAPH_CHANGED) {
        return false;
    }
    ps_status handled = run_handlers(ps_generation());
    *status = handled != PS_SUCCESS ? handled : *status;
    return handled == PS_SUCCESS;
}

static ps_status
launch(PyObject *self)
{
    struct late late = {0};
    struct ps_stream *full;
    ps_status status;
    bool again;
    do {
        struct ps_device *device = graph_of(self)->device;
        struct ps_stream *stream = NULL;
        if (device != NULL) {
            /* If the device's current stream is the calling thread's default
             * stream, this call creates that stream if necessary.
             * ps_graph_launch does not create it. */
            stream = current_stream_of(device);
            if (stream == NULL) {
                status = PS_RAISED;
                break;
            }
        }
        uint64_t number;
        struct calls *calls = calls_find(self, &number);
        status =
            launch_calls(graph_of(self), calls, number, stream, &late, &full);
        calls_unref(calls);
        stream_release(stream);
        again = late_run(&late, &status) ||
                (full != NULL && has_room_again(full, &status)) ||
                has_changed(&status);
        stream_release(full);
    } while (again);
    late_free(&late);
    return status;
}

/* If the call with this status has made the executable, run the hooks after an
 * instantiation.  Returns the status or, if only the hooks fail, PS_RAISED. */
static ps_status
run_instantiated(PyObject *self, bool made, ps_status status)
{
    if (!made || run_hooks(self, "post_instantiate") == 0) {
        return status;
    }
    if (status != PS_SUCCESS) {
        report_ignored("running the instantiation hooks of a graph");
        return status;
    }
    return PS_RAISED;
}

/* Make the executable if there is none, and run the hooks for it. */
static ps_status
prepare(PyObject *self)
{
    ps_status status;
    bool made;
    WITHOUT_GIL(status = ps_graph_prepare(graph_of(self), &made));
    return run_instantiated(self, made, status);
}

/* Run the replay_start hooks, launch the graph, and run the replay_end hooks.
 * The graph is instantiated before the first hook runs. */
static ps_status
launch_hooked(PyObject *self)
{
    ps_status status = prepare(self);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (run_hooks(self, "replay_start") < 0) {
        return PS_RAISED;
    }
    /* A replay_start hook may have captured the graph again. */
    status = prepare(self);
    if (status == PS_SUCCESS) {
        status = launch(self);
    }
    struct saved_exception saved = exception_save();
    if (run_hooks(self, "replay_end") < 0) {
        /* If the launch has failed, that failure is raised, so a hook's
         * exception is only reported. */
        if (status != PS_SUCCESS) {
            report_ignored("running the replay hooks of a graph");
        }
        else {
            status = PS_RAISED;
        }
    }
    if (saved.type != NULL) {
        exception_restore(saved);
    }
    return status;
}

static PyObject *
Graph_replay(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_status status = atomic_load_explicit(&hooked, memory_order_relaxed)
                           ? launch_hooked(self)
                           : launch(self);
    return finish(self, "CUDAGraph.replay",
                  IF_EMPTY("Called CUDAGraph::replay without a preceding "
                           "successful capture."),
                  status);
}

static PyObject *
Graph_reset(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_status status;
    status = reset(self);
    calls_settle(self);
    return finish(self, "CUDAGraph.reset", NULL, status);
}

static PyObject *
Graph_state(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_handle native, executable;
    WITHOUT_GIL(ps_graph_handles(graph_of(self), &native, &executable));
    PyObject *pool = reference_get(self, &((GraphObject *)self)->pool);
    return Py_BuildValue("(OKKN)", graph_of(self)->keeps ? Py_True : Py_False,
                         (unsigned long long)native,
                         (unsigned long long)executable,
                         pool != NULL ? pool : Py_NewRef(Py_None));
}

static PyObject *
Graph_executable(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t number;
    WITHOUT_GIL(number = ps_graph_executable_number(graph_of(self)));
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *
Graph_enable_debug_mode(PyObject *Py_UNUSED(self),
                        PyObject *Py_UNUSED(ignored))
{
    atomic_store(&debugging, true);
    Py_RETURN_NONE;
}

static PyObject *
Graph_debug_dump(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    static const struct signature signature = {
        "debug_dump", 1, 1, {"debug_path"}};
    PyObject *argument, *path;
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, &argument) < 0) {
        return NULL;
    }
    if (!PyUnicode_FSConverter(argument, &path)) {
        return PyErr_ExceptionMatches(PyExc_TypeError)
                   ? raise_expected("debug_dump",
                                    "a path (str, bytes or "
                                    "os.PathLike)",
                                    "debug_path", argument)
                   : NULL;
    }
    ps_handle native, executable;
    WITHOUT_GIL(ps_graph_handles(graph_of(self), &native, &executable));
    if (native == 0 && !atomic_load(&debugging) && !graph_of(self)->keeps) {
        Py_DECREF(path);
        if (PyErr_WarnEx(PyExc_UserWarning,
                         "CUDA Graphs debug not enabled, set with "
                         "[graph].enable_debug_mode()",
                         1) < 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    errno = 0;
    WITHOUT_GIL(status =
                    ps_graph_print(graph_of(self), PyBytes_AS_STRING(path)));
    int error = errno;
    Py_DECREF(path);
    if (status == PS_ERROR_OPERATING_SYSTEM && error != 0) {
        errno = error;
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, argument);
    }
    return finish(self, "CUDAGraph.debug_dump",
                  IF_EMPTY("debug_dump() needs a graph that was captured with "
                           "debug mode enabled, or with keep_graph=True"),
                  status);
}

static PyObject *
Graph_upload(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    struct stream_use use;
    ps_status status;
    bool made;
    if (stream_use_parsed("upload", runtime_of(self)->backend->device_type,
                          args, nargs, kwnames, &use) < 0) {
        return NULL;
    }
    struct ps_runtime *runtime = use.stream->device->runtime;
    if (runtime != runtime_of(self) &&
        check_emulations("upload", "graph", runtime_of(self), "stream",
                         runtime) < 0) {
        stream_use_end(&use);
        return NULL;
    }
    WITHOUT_GIL(status = ps_graph_upload(graph_of(self), use.stream, &made));
    stream_use_end(&use);
    status = run_instantiated(self, made, status);
    return finish(self, "CUDAGraph.upload",
                  FAULTS({PS_ERROR_GRAPH_STREAM, true,
                          "upload() expects a stream of the device that the "
                          "graph was captured on, but got one of another"},
                         {PS_ERROR_GRAPH_INNER, false,
                          "upload() cannot be captured into a graph, but the "
                          "stream is being captured; upload on another "
                          "stream, or after the capture ends"},
                         {PS_ERROR_GRAPH_EMPTY, false,
                          "Called CUDAGraph::upload without a preceding "
                          "successful capture."}),
                  status);
}

/* Indexed by enum ps_node_kind. */
static const char *const kinds[] = {
    "empty", "kernel",       "memcpy",     "memset",      "host",
    "host",  "event_record", "wait_event", "child_graph", "other",
};

static const char *
kind_of(const struct ps_graph_node *node)
{
    return node->kind == PS_NODE_OTHER && node->name != NULL
               ? node->name
               : kinds[node->kind];
}

/* Returns (x, y, z), or None if the extents are unknown. */
static PyObject *
extents(const unsigned *of)
{
    return of[0] == 0 ? Py_NewRef(Py_None)
                      : Py_BuildValue("(III)", of[0], of[1], of[2]);
}

/* Returns the size of a kernel's dynamic shared memory in bytes, or None if it
 * is unknown. */
static PyObject *
shared_nbytes(const struct ps_graph_node *node)
{
    return node->grid[0] == 0 ? Py_NewRef(Py_None)
                              : PyLong_FromUnsignedLong(node->shared_nbytes);
}

static PyObject *
node_tuple(struct calls *calls, const struct ps_graph_node *node)
{
    PyObject *name = node->kind == PS_NODE_GATE
                         ? calls_name(calls, node->argument)
                         : Py_NewRef(Py_None);
    uintptr_t function = node->kind == PS_NODE_GATE
                             ? (uintptr_t)node->argument
                             : (uintptr_t)node->function;
    return name == NULL
               ? NULL
               : Py_BuildValue(
                     "(sIzNNNKNKK)", kind_of(node), (unsigned)node->number,
                     node->kind == PS_NODE_KERNEL ? node->name : NULL,
                     extents(node->grid), extents(node->block),
                     shared_nbytes(node), (unsigned long long)function, name,
                     (unsigned long long)node->event,
                     (unsigned long long)node->nbytes);
}

static PyObject *
node_list(struct calls *calls, const struct ps_graph_node *nodes, size_t count)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < count && list != NULL; i++) {
        list = list_with(list, node_tuple(calls, &nodes[i]));
    }
    return list;
}

static PyObject *
edge_list(const struct ps_graph_edge *edges, size_t count)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < count && list != NULL; i++) {
        const struct ps_graph_edge *edge = &edges[i];
        list = list_with(list,
                         Py_BuildValue("(nnBBB)", (Py_ssize_t)edge->from,
                                       (Py_ssize_t)edge->to, edge->from_port,
                                       edge->to_port, edge->type));
    }
    return list;
}

static PyObject *
Graph_nodes(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_graph_node *nodes;
    struct ps_graph_edge *edges;
    size_t node_count, edge_count;
    ps_status status;
    /* Hold a reference to the list of callables, because their names are read
     * below. */
    struct calls *calls = calls_get(self);
    WITHOUT_GIL(status = ps_graph_describe(graph_of(self), &nodes, &node_count,
                                           &edges, &edge_count));
    PyObject *result = NULL;
    if (status == PS_SUCCESS) {
        PyObject *listed = node_list(calls, nodes, node_count);
        PyObject *joined = edge_list(edges, edge_count);
        if (listed != NULL && joined != NULL) {
            result = PyTuple_Pack(2, listed, joined);
        }
        Py_XDECREF(listed);
        Py_XDECREF(joined);
        free(nodes);
        free(edges);
    }
    else {
        finish(self, "CUDAGraph.get_graph_data",
               IF_EMPTY("get_graph_data() needs the captured graph: capture "
                        "with keep_graph=True or debug mode enabled, or call "
                        "it in a capture-end hook"),
               status);
    }
    calls_unref(calls);
    return result;
}

/* Add to the message of the pending exception which node in the other graph
 * differs, and how. */
static void
explain_difference(struct ps_graph *other,
                   const struct ps_graph_difference *difference)
{
    struct ps_graph_node *nodes;
    struct ps_graph_edge *edges;
    size_t node_count, edge_count;
    ps_status status;
    WITHOUT_GIL(status = ps_graph_describe(other, &nodes, &node_count, &edges,
                                           &edge_count));
    const char *reason =
        difference->reason != NULL ? difference->reason : "it differs";
    if (status == PS_SUCCESS && difference->node < node_count) {
        exception_add(PyUnicode_FromFormat(
            "\nNode %zu of the new graph, a %s node, is the first that cannot "
            "be updated: %s. See get_graph_data().",
            difference->node, kind_of(&nodes[difference->node]), reason));
    }
    else {
        exception_add(PyUnicode_FromFormat(
            "\nThe graphs must have the same nodes and edges, but %s.",
            reason));
    }
    free(nodes);
    free(edges);
}

/* Check the argument `other`, which must be another graph in the same runtime.
 * On failure, returns -1 with an exception. */
static int
check_other(PyObject *self, const char *function, const char *name,
            PyObject *other)
{
    if (!is_instance(other, module_state.graph_type)) {
        return refuse_type(function, "a graph", name, other);
    }
    if (self != other && runtime_of(self) == runtime_of(other)) {
        return 0;
    }
    if (self != other && check_emulations(function, "graph", runtime_of(self),
                                          name, runtime_of(other)) < 0) {
        return -1;
    }
    return refuse(PyExc_ValueError,
                  "%s() expects another graph of the %s backend for %s, but "
                  "got %s",
                  function, runtime_of(self)->backend->name, name,
                  self == other ? "the graph itself"
                                : runtime_of(other)->backend->name);
}

/* Get the number of the other graph's capture.  If the capture has callables,
 * returns -1 with an exception, because a callable belongs to one executable,
 * and so another graph cannot take it over. */
static int
number_without_calls(PyObject *other, const char *function, uint64_t *number)
{
    struct calls *calls = calls_find(other, number);
    bool any = calls_any(calls);
    calls_unref(calls);
    return !any ? 0
                : refuse(PyExc_RuntimeError,
                         "%s() cannot take over a graph with callables, which "
                         "copies of pageable memory need; capture the same "
                         "work again",
                         function);
}

#define NEEDS_CAPTURE                                 \
    " needs the work that the other graph captured: " \
    "capture it with keep_graph=True"

static PyObject *
Graph_add_child(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    static const struct signature signature = {
        "add_child", 1, 2, {"child", "stream"}};
    PyObject *given[2] = {NULL, NULL};
    struct stream_use use;
    struct late late = {0};
    uint64_t number;
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, given) < 0 ||
        check_other(self, "add_child", "child", given[0]) < 0 ||
        stream_use_parsed("add_child", runtime_of(self)->backend->device_type,
                          &given[1], given[1] != NULL, NULL, &use) < 0) {
        return NULL;
    }
    do {
        if (number_without_calls(given[0], "add_child", &number) < 0) {
            status = PS_RAISED;
            break;
        }
        status = late_begin(&late);
        if (status == PS_SUCCESS) {
            WITHOUT_GIL(status = ps_graph_add_child(graph_of(self),
                                                    graph_of(given[0]), number,
                                                    use.stream));
            late_end();
        }
    } while (late_run(&late, &status) || has_changed(&status));
    late_free(&late);
    if (status == PS_ERROR_CAPTURE_INVALIDATED) {
        /* Pass the stream to raise_on_stream, because it tells which capture
         * is invalid. */
        raise_on_stream(use.stream, "CUDAGraph.add_child", status);
        status = PS_RAISED;
    }
    stream_use_end(&use);
    return finish(
        self, "CUDAGraph.add_child",
        FAULTS({PS_ERROR_GRAPH_IDLE, false,
                "add_child() needs a capture: call it between this "
                "graph's capture_begin() and capture_end()"},
               {PS_ERROR_GRAPH_STREAM, true,
                "add_child() expects a stream that this graph "
                "captures, of the device on which the child was "
                "captured"},
               {PS_ERROR_GRAPH_SOURCE, false, "add_child()" NEEDS_CAPTURE}),
        status);
}

static PyObject *
Graph_update(PyObject *self, PyObject *other)
{
    struct ps_graph_difference difference;
    uint64_t number;
    ps_status status;
    bool made;
    if (check_other(self, "update", "other", other) < 0) {
        return NULL;
    }
    do {
        if (number_without_calls(other, "update", &number) < 0) {
            return NULL;
        }
        WITHOUT_GIL(status = ps_graph_update(graph_of(self), graph_of(other),
                                             number, &difference, &made));
    } while (has_changed(&status));
    status = run_instantiated(self, made, status);
    PyObject *result =
        finish(self, "CUDAGraph.update",
               FAULTS({PS_ERROR_GRAPH_STREAM, true,
                       "update() expects a graph that was captured on the "
                       "same device, but got one of another"},
                      {PS_ERROR_GRAPH_SOURCE, false, "update()" NEEDS_CAPTURE},
                      {PS_ERROR_GRAPH_EMPTY, false,
                       "Called CUDAGraph::update without a preceding "
                       "successful capture."}),
               status);
    if (status == PS_ERROR_GRAPH_UPDATE) {
        explain_difference(graph_of(other), &difference);
    }
    return result;
}

/* A reference-counted holder of a Python object that a graph keeps. */
struct retained {
    atomic_uint refs;
    unsigned generation;
    PyObject *object;
};

/* Called on any thread, with or without the GIL. */
static ps_status
drop_retained(void *memory)
{
    struct retained *retained = memory;
    if (atomic_fetch_sub(&retained->refs, 1) > 1 || is_finalizing() ||
        retained->generation != ps_generation()) {
        return PS_SUCCESS;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    struct saved_exception saved = exception_save();
    Py_DECREF(retained->object);
    PyMem_Free(retained);
    exception_restore(saved);
    PyGILState_Release(gil);
    return PS_SUCCESS;
}

static PyObject *
Graph_keep(PyObject *self, PyObject *object)
{
    struct retained *retained = PyMem_Malloc(sizeof(*retained));
    ps_status status;
    if (retained == NULL) {
        return PyErr_NoMemory();
    }
    *retained = (struct retained){
        .generation = ps_generation(),
        .object = Py_NewRef(object),
    };
    const struct ps_kept item = {retained, &retained->refs, drop_retained};
    WITHOUT_GIL(status = ps_graph_keep(graph_of(self), &item));
    if (status != PS_SUCCESS) {
        Py_DECREF(object);
        PyMem_Free(retained);
    }
    return finish(self, "CUDAGraph.retain_object", NULL, status);
}

static PyObject *
Graph_wait(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct work work = {.operation = "CUDAGraph.reset", .implied = true};
    struct ps_stream *launched;
    WITHOUT_GIL(launched = ps_graph_launched(graph_of(self)));
    if (launched == NULL) {
        Py_RETURN_NONE;
    }
    ps_status status = ps_thread_stream_latest(launched, &work.event);
    work.device = launched->device;
    work.stream = work.event != NULL ? NULL : launched;
    PyObject *result = status == PS_SUCCESS
                           ? waited(&work, NULL, NO_TIMEOUT)
                           : finish(self, work.operation, NULL, status);
    stream_release(launched);
    return result;
}

static PyObject *
Graph_use_hooks(PyObject *Py_UNUSED(type), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(!atomic_exchange(&hooked, true));
}

/* ---- As a context manager ---- */

static PyObject *
Graph_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t begun = graph_begun(self);
    PyObject *entered = PyObject_CallMethod(self, "_begin_capture", NULL);
    if (entered == NULL) {
        graph_drop(self, begun);
    }
    return entered;
}

/* An exception from the `with` block takes precedence over an Exception that
 * capture_end raises. */
static PyObject *
Graph_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *ended = Graph_capture_end(self, NULL);
    if (ended == NULL && nargs > 0 && args[0] != Py_None &&
        PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    return ended;
}

static PyMethodDef graph_methods[] = {
    METHOD("_begin", Graph_begin, METH_VARARGS, ", mode, pool, /",
           "Begin a capture on the current stream; mode is an enum "
           "ps_capture_mode.\n\n"
           "pool is any object; _state() returns it."),
    METHOD(
        "capture_end", Graph_capture_end, METH_NOARGS, ", /",
        "End the capture of the current stream, and instantiate the "
        "graph\n(cudaStreamEndCapture).\n\n"
        "Call it on the thread that began the capture, unless the mode was "
        "'relaxed'.  Raises\nRuntimeError if the capture began on another "
        "stream, AcceleratorError if the capture\nfailed or a stream that "
        "joined it was not joined back; the capture's streams are "
        "then\nusable again.  Warns if nothing was captured, unless an "
        "exception that was raised during\nthe capture is being handled.  May "
        "block."),
    METHOD("instantiate", Graph_instantiate, METH_FASTCALL | METH_KEYWORDS,
           ", /, *, auto_free_on_launch=True, use_node_priority=True",
           "Make the captured graph ready to replay "
           "(cudaGraphInstantiate).\n\n"
           "For graphs with keep_graph=True; otherwise their first replay() "
           "does it.\nauto_free_on_launch: a replay first frees memory that "
           "the previous replay allocated and\ndid not free, as work of other "
           "libraries may; without it, such a replay "
           "fails.\nuse_node_priority: work has the priority of the stream on "
           "which it was captured, not\nthat of the replay's stream.  May "
           "block.  Raises RuntimeError if there is no such "
           "graph,\nNotImplementedError if an option is False and the backend "
           "has no options."),
    METHOD("replay", Graph_replay, METH_NOARGS, ", /",
           "Queue the captured work on the current stream of its device "
           "(cudaGraphLaunch).\n\n"
           "It runs after the stream's earlier work and after the graph's "
           "earlier replays.  replay()\ndoes not wait for it.  Raises "
           "RuntimeError if nothing was captured, and if the stream is\nbeing "
           "captured or would have to wait for one that is; the capture goes "
           "on."),
    METHOD("reset", Graph_reset, METH_NOARGS, ", /",
           "Discard the graph; the memory and events that it keeps are "
           "released when its replays\nare done.\n\n"
           "To end a capture in progress, call this on the thread that must "
           "call capture_end().\nAnother capture can begin afterwards.  May "
           "block."),
    METHOD("enable_debug_mode", Graph_enable_debug_mode, METH_NOARGS, ", /",
           "Make debug_dump() work for all graphs whose capture ends from "
           "now on."),
    METHOD("debug_dump", Graph_debug_dump, METH_FASTCALL | METH_KEYWORDS,
           ", /, debug_path",
           "Write the graph to a file, in Graphviz' language "
           "(cudaGraphDebugDotPrint).\n\n"
           "Warns, and does nothing, unless debug mode was enabled or "
           "keep_graph is True.  May\nblock.  Raises OSError if the "
           "file cannot be written, NotImplementedError\nif the backend "
           "has no such function."),
    METHOD(
        "upload", Graph_upload, METH_FASTCALL | METH_KEYWORDS,
        ", /, stream=None",
        "Prepare the next replay on a stream, the current one if None "
        "(cudaGraphUpload).\n\n"
        "Instantiates the graph if necessary, so that the first replay does "
        "not take longer\nthan the others.  May block.  Raises RuntimeError "
        "if nothing was captured or the\nstream is being captured, "
        "ValueError for a stream of another device than the\ngraph's, "
        "NotImplementedError if the backend has no such function."),
    METHOD(
        "add_child", Graph_add_child, METH_FASTCALL | METH_KEYWORDS,
        ", /, child, stream=None",
        "Capture the work of another graph into this one's capture "
        "(cudaGraphAddChildGraphNode).\n\n"
        "The child's work comes after the work that the stream (None: the "
        "current one) has\ncaptured, and before its later work.  The child "
        "must have keep_graph=True and no\ncallables; it is copied, and may "
        "be reset afterwards.  Raises RuntimeError if nothing is\nbeing "
        "captured or the child is empty or was not kept, ValueError for a "
        "stream that this\ngraph does not capture or that is on another "
        "device than the child, NotImplementedError\nif the backend has no "
        "such function."),
    METHOD(
        "update", Graph_update, METH_O, ", other, /",
        "Make later replays run the work of another captured graph "
        "(cudaGraphExecUpdate).\n\n"
        "The other graph must have keep_graph=True, no callables, and the "
        "same nodes and edges,\nin the order of the captured calls; only "
        "parameters, such as addresses and values, may\ndiffer.  This is "
        "cheaper than instantiating that graph.  Replays that are already "
        "queued\ndo the earlier work.  This graph keeps the objects that the "
        "new work uses, and those of\nits own work, which instantiate() "
        "brings back.  May block.  Raises AcceleratorError,\nwhich names the "
        "first node that differs, RuntimeError if either is empty or the "
        "other\nwas not kept, ValueError if the other is of another device; "
        "this graph is then\nunchanged."),
    METHOD("_nodes", Graph_nodes, METH_NOARGS, ", /",
           "Return a list of nodes (kind, number, kernel, grid, block, shared "
           "memory, function,\nfunction's name, event, bytes) and a list of "
           "edges (from, to, from_port, to_port, type).\nMay block."),
    METHOD("_keep", Graph_keep, METH_O, ", object, /",
           "Keep the object until reset(), and until the replays are done."),
    METHOD("_wait", Graph_wait, METH_NOARGS, ", /",
           "Wait until all replays are done.  Blocks with the GIL released."),
    CLASS_METHOD("_use_hooks", Graph_use_hooks, METH_NOARGS, ", /",
                 "Have all graphs call the hooks of pystreams.cuda._graphs "
                 "from now on.\n\nReturns whether they did not before."),
    METHOD("_enter", Graph_enter, METH_NOARGS, ", /",
           "Call _begin_capture(), which begins a capture; drop the capture "
           "if it raises."),
    METHOD("_exit", Graph_exit, METH_FASTCALL, ", /, *args",
           "End the capture, as the __exit__ of a context manager."),
    METHOD("_state", Graph_state, METH_NOARGS, ", /",
           "Return keep_graph, the handles of the graph and of its "
           "executable, 0 if there is\nnone, and the pool."),
    METHOD("_executable", Graph_executable, METH_NOARGS, ", /",
           "Return the number by which tools name the executable, 0 if there "
           "is none."),
    {NULL},
};

PyDoc_STRVAR(graph_doc, "Graph(type, keep_graph=False)\n--\n\n"
                        "The base of pystreams.cuda.CUDAGraph.");

static PyType_Slot graph_slots[] = {
    {Py_tp_new, Graph_new},           {Py_tp_dealloc, Graph_dealloc},
    {Py_tp_traverse, Graph_traverse}, {Py_tp_clear, Graph_clear},
    {Py_tp_finalize, Graph_finalize}, {Py_tp_methods, graph_methods},
    {Py_tp_doc, (void *)graph_doc},   {0, NULL},
};

PyType_Spec graph_spec =
    TYPE_SPEC("pystreams._C.Graph", GraphObject,
              Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, graph_slots);
