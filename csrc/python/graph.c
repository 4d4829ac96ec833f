/* The type `Graph`: the calls of core that pystreams/cuda/_graphs.py gives
 * torch's names and words.  A method releases the GIL before it waits for a
 * graph that another thread uses. */
#include "module.h"

#include <errno.h>

#include "../core/graph.h"

#include "args.h"
#include "backends.h"
#include "captured.h"
#include "current.h"
#include "enqueue.h"
#include "errors.h"
#include "stream.h"

typedef struct {
    PyObject ob_base;
    struct ps_runtime *runtime;
    struct ps_graph *graph;
    PyObject *pool;      /* the token of the latest capture; NULL before it */
    struct calls *calls; /* of the capture; NULL if there is none */
} GraphObject;

/* Whether graphs can be printed after they are instantiated. */
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

/* A new reference, or NULL. */
static struct calls *
calls_get(PyObject *self)
{
    struct calls *calls;
    Py_BEGIN_CRITICAL_SECTION(self);
    calls = calls_ref(((GraphObject *)self)->calls);
    Py_END_CRITICAL_SECTION();
    return calls;
}

/* Replace them; takes over the caller's reference. */
static void
calls_set(PyObject *self, struct calls *calls)
{
    struct calls *replaced;
    Py_BEGIN_CRITICAL_SECTION(self);
    replaced = ((GraphObject *)self)->calls;
    ((GraphObject *)self)->calls = calls;
    Py_END_CRITICAL_SECTION();
    calls_end(replaced);
    calls_unref(replaced);
}

/* Drop those of a capture that the graph does not hold any more. */
static void
calls_settle(PyObject *self)
{
    struct calls *calls = calls_get(self), *dropped = NULL;
    uint64_t number;
    if (calls == NULL) {
        return;
    }
    WITHOUT_GIL(number = ps_graph_number(graph_of(self)));
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
}

static int
Graph_traverse(PyObject *op, visitproc visit, void *arg)
{
    GraphObject *self = (GraphObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->pool);
    return calls_traverse(self->calls, visit, arg);
}

static int
Graph_clear(PyObject *op)
{
    Py_CLEAR(((GraphObject *)op)->pool);
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
    ps_status status;
    PyObject_GC_UnTrack(op);
    if (self->graph != NULL && !is_finalizing()) {
        struct ps_device *device = self->graph->device;
        WITHOUT_GIL(status = ps_graph_destroy(self->graph));
        report_cleanup(self->runtime, device, "dropping a graph", status);
    }
    Graph_clear(op);
    object_free(op);
}

/* None, or NULL with the exception for the status; empty: the message if there
 * is no graph. */
static PyObject *
finish(PyObject *self, const char *operation, const char *empty,
       ps_status status)
{
    const struct {
        ps_status status;
        const char *text;
    } faults[] = {
        {PS_ERROR_GRAPH_TAKEN,
         "This CUDAGraph instance already owns a captured graph. To capture a "
         "new graph, create a new instance."},
        {PS_ERROR_GRAPH_DEFAULT,
         "CUDA graphs must be captured on a non-default stream. (However, "
         "after capture, it's ok to replay them on the default stream.)"},
        {PS_ERROR_GRAPH_IDLE, "capture_end() called before capture_begin()."},
        {PS_ERROR_GRAPH_STREAM,
         "Capture must end on the same stream it began on."},
        {PS_ERROR_GRAPH_FINAL,
         "instantiate() is intended to be called by the user only when "
         "keep_graph=true"},
        {PS_ERROR_GRAPH_INNER,
         "a replay cannot be captured into a graph; replay after the capture "
         "ends, or capture the same work again"},
        {PS_ERROR_GRAPH_EMPTY, empty},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(faults); i++) {
        if (faults[i].status == status) {
            PyErr_SetString(PyExc_RuntimeError, faults[i].text);
            return NULL;
        }
    }
    return none_or_raise(runtime_of(self), operation, status);
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
    uint64_t number;
    WITHOUT_GIL(status = ps_graph_capture_begin(graph_of(self), stream,
                                                (enum ps_capture_mode)mode,
                                                &number));
    stream_release(stream);
    if (status != PS_SUCCESS) {
        calls_unref(calls);
    }
    else {
        calls_begin(calls, number);
        calls_set(self, calls);
        reference_set(self, &((GraphObject *)self)->pool, Py_NewRef(pool));
    }
    return finish(self, "CUDAGraph.capture_begin", NULL, status);
}

static PyObject *
Graph_capture_end(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_stream *stream =
        current_stream_at(runtime_of(self)->backend->device_type);
    size_t operations = 0;
    ps_status status;
    if (stream == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_graph_capture_end(graph_of(self), stream,
                                              atomic_load(&debugging),
                                              &operations));
    stream_release(stream);
    if (status == PS_SUCCESS) {
        struct calls *calls = calls_get(self);
        calls_end(calls);
        calls_unref(calls);
    }
    calls_settle(self);
    if (status == PS_SUCCESS && operations == 0 &&
        PyErr_WarnEx(PyExc_UserWarning,
                     "The CUDA Graph is empty. This usually means that the "
                     "graph was attempted to be captured on wrong device or "
                     "stream.",
                     1) < 0) {
        return NULL;
    }
    return finish(self, "CUDAGraph.capture_end", NULL, status);
}

static PyObject *
Graph_instantiate(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_status status;
    WITHOUT_GIL(status = ps_graph_instantiate(graph_of(self)));
    return finish(self, "CUDAGraph.instantiate",
                  "capture_end() must have been called before calling "
                  "instantiate",
                  status);
}

static PyObject *
Graph_replay(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_currents *currents = currents_in_use();
    struct ps_stream *full;
    ps_status status;
    bool again;
    do {
        struct calls *calls = calls_get(self);
        status = launch_calls(graph_of(self), calls, currents, &full);
        calls_unref(calls);
        again = (full != NULL && has_room_again(full, &status)) ||
                status == PS_ERROR_GRAPH_CHANGED;
        stream_release(full);
    } while (again);
    return finish(self, "CUDAGraph.replay",
                  "Called CUDAGraph::replay without a preceding successful "
                  "capture.",
                  status);
}

static PyObject *
Graph_reset(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_status status;
    WITHOUT_GIL(status = ps_graph_reset(graph_of(self)));
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
    if (!atomic_load(&debugging) && !graph_of(self)->keeps) {
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
                  "debug_dump() needs a graph that was captured with debug "
                  "mode enabled, or with keep_graph=True",
                  status);
}

static PyMethodDef graph_methods[] = {
    METHOD("_begin", Graph_begin, METH_VARARGS, ", mode, pool, /",
           "Begin a capture on the current stream; mode is an enum "
           "ps_capture_mode.\n\n"
           "pool is any object; _state() returns it."),
    METHOD("capture_end", Graph_capture_end, METH_NOARGS, ", /",
           "End the capture of the current stream, and instantiate the "
           "graph\n(cudaStreamEndCapture).\n\n"
           "Call it on the thread that began the capture, unless the mode "
           "was 'relaxed'.  Raises\nRuntimeError if the capture began on "
           "another stream, AcceleratorError if it failed or\na stream that "
           "joined it was not joined back; its streams are usable again "
           "then.\nWarns if nothing was captured.  May block."),
    METHOD(
        "instantiate", Graph_instantiate, METH_NOARGS, ", /",
        "Make the captured graph ready to replay (cudaGraphInstantiate).\n\n"
        "For graphs with keep_graph=True; otherwise their first replay() "
        "does it.  May block.\nRaises RuntimeError if there is no such "
        "graph."),
    METHOD("replay", Graph_replay, METH_NOARGS, ", /",
           "Queue the captured work on the current stream of its device "
           "(cudaGraphLaunch).\n\n"
           "It runs after the stream's earlier work and after the graph's "
           "earlier replays.  Does\nnot wait for it.  Raises RuntimeError if "
           "nothing was captured, and if the stream is\nbeing captured or "
           "would have to wait for one that is; the capture goes on."),
    METHOD("reset", Graph_reset, METH_NOARGS, ", /",
           "Discard the graph; the memory and events that it keeps are "
           "released when its replays\nare done.\n\n"
           "Ends a capture in progress, on the thread that capture_end() "
           "needs.  Another capture\ncan begin afterwards.  May block."),
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
    METHOD("_state", Graph_state, METH_NOARGS, ", /",
           "Return keep_graph, the handles of the graph and of its "
           "executable, 0 if there is\nnone, and the pool."),
    {NULL},
};

PyDoc_STRVAR(graph_doc, "Graph(type, keep_graph=False)\n--\n\n"
                        "The base of pystreams.cuda.CUDAGraph.");

static PyType_Slot graph_slots[] = {
    {Py_tp_new, Graph_new},
    {Py_tp_dealloc, Graph_dealloc},
    {Py_tp_traverse, Graph_traverse},
    {Py_tp_clear, Graph_clear},
    {Py_tp_methods, graph_methods},
    {Py_tp_doc, (void *)graph_doc},
    {0, NULL},
};

PyType_Spec graph_spec =
    TYPE_SPEC("pystreams._C.Graph", GraphObject,
              Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, graph_slots);
