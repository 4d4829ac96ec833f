/* The types `Graph`, of any device type, and `cuda.CUDAGraph`, with torch's
 * names and words.  A method releases the GIL before it waits for a graph that
 * another thread uses. */
#include "module.h"

#include <structmember.h>

#include <errno.h>

#include "../core/graph.h"

#include "args.h"
#include "backends.h"
#include "current.h"
#include "enqueue.h"
#include "errors.h"
#include "stream.h"

typedef struct {
    PyObject ob_base;
    struct ps_runtime *runtime;
    struct ps_graph *graph;
    /* What pool() returns once there is a graph. */
    unsigned long long pool[2];
    PyObject *weakrefs;
} GraphObject;

/* Whether graphs stay printable once they are instantiated. */
static atomic_bool debugging;

static atomic_ullong last_pool;

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

static PyObject *
graph_new(PyTypeObject *type, int device_type, bool keep)
{
    struct module_state *state = state_of_type(type);
    struct ps_runtime *runtime = use_runtime(state, device_type);
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
        return raise_status(state, runtime, "creating a graph", status);
    }
    return (PyObject *)self;
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
    return graph_new(type, device_type, keep);
}

static PyObject *
CudaGraph_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"keep_graph", NULL};
    int keep = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:CUDAGraph", keywords,
                                     &keep)) {
        return NULL;
    }
    return graph_new(type, PS_DEVICE_CUDA, keep);
}

static void
Graph_dealloc(PyObject *op)
{
    GraphObject *self = (GraphObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    ps_status status;
    if (PyType_IS_GC(type)) {
        PyObject_GC_UnTrack(op);
    }
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    if (self->graph != NULL && !is_finalizing()) {
        struct ps_device *device = self->graph->device;
        WITHOUT_GIL(status = ps_graph_destroy(self->graph));
        if (device != NULL) {
            report_cleanup_on(state_of(op), device, "dropping a graph",
                              status);
        }
        else {
            report_cleanup(state_of(op), self->runtime, "dropping a graph",
                           status);
        }
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* What an operation returns, where `empty` says in words that there is no
 * graph. */
static PyObject *
finish(PyObject *self, const char *operation, const char *empty,
       ps_status status)
{
    const char *fault = NULL;
    switch (status) {
    case PS_ERROR_GRAPH_TAKEN:
        fault = "This CUDAGraph instance already owns a captured graph. To "
                "capture a new graph, create a new instance.";
        break;
    case PS_ERROR_GRAPH_DEFAULT:
        fault = "CUDA graphs must be captured on a non-default stream. "
                "(However, after capture, it's ok to replay them on the "
                "default stream.)";
        break;
    case PS_ERROR_GRAPH_IDLE:
        fault = "capture_end() called before capture_begin().";
        break;
    case PS_ERROR_GRAPH_STREAM:
        fault = "Capture must end on the same stream it began on.";
        break;
    case PS_ERROR_GRAPH_FINAL:
        fault = "instantiate() is intended to be called by the user only when "
                "keep_graph=true";
        break;
    case PS_ERROR_GRAPH_INNER:
        fault = "a replay cannot be captured into a graph; replay after the "
                "capture ends, or capture the same work again";
        break;
    case PS_ERROR_GRAPH_EMPTY:
        fault = empty;
        break;
    default:
        return none_or_raise(state_of(self), runtime_of(self), operation,
                             status);
    }
    PyErr_SetString(PyExc_RuntimeError, fault);
    return NULL;
}

static int
parse_mode(PyObject *argument, enum ps_capture_mode *mode)
{
    static const char *const names[] = {"global", "thread_local", "relaxed"};
    *mode = PS_CAPTURE_GLOBAL;
    if (argument == NULL) {
        return 0;
    }
    if (!PyUnicode_Check(argument)) {
        PyErr_Format(PyExc_TypeError,
                     "capture_error_mode must be a str, not %s",
                     Py_TYPE(argument)->tp_name);
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        if (PyUnicode_CompareWithASCIIString(argument, names[i]) == 0) {
            *mode = (enum ps_capture_mode)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_RuntimeError,
                 "Unknown capture error mode. Expected `global`, "
                 "`thread_local`, or `relaxed`, got %U",
                 argument);
    return -1;
}

static int
parse_pool(PyObject *argument, unsigned long long pool[2])
{
    pool[0] = pool[1] = 0;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(argument) ||
        !PyArg_ParseTuple(argument, "KK", &pool[0], &pool[1])) {
        PyErr_Format(PyExc_TypeError,
                     "pool must be None or what graph_pool_handle() or "
                     "CUDAGraph.pool() returned, not %R",
                     argument);
        return -1;
    }
    return 0;
}

static PyObject *
Graph_capture_begin(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    static const char *const names[] = {"pool", "capture_error_mode", NULL};
    static const struct signature signature = {"capture_begin", 0, 2, names};
    struct module_state *state = state_of(self);
    PyObject *values[2];
    enum ps_capture_mode mode;
    unsigned long long pool[2];
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0 ||
        parse_pool(values[0], pool) < 0 || parse_mode(values[1], &mode) < 0) {
        return NULL;
    }
    struct ps_stream *stream =
        current_stream_at(state, runtime_of(self)->backend->device_type);
    if (stream == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_graph_capture_begin(graph_of(self), stream, mode));
    stream_release(state, stream);
    if (status == PS_SUCCESS) {
        bool given = pool[0] != 0 || pool[1] != 0;
        GraphObject *object = (GraphObject *)self;
        object->pool[0] =
            given ? pool[0] : atomic_fetch_add(&last_pool, 1) + 1;
        object->pool[1] = pool[1];
    }
    return finish(self, "CUDAGraph.capture_begin", NULL, status);
}

static PyObject *
Graph_capture_end(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct module_state *state = state_of(self);
    struct ps_stream *stream =
        current_stream_at(state, runtime_of(self)->backend->device_type);
    size_t operations = 0;
    ps_status status;
    if (stream == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_graph_capture_end(graph_of(self), stream,
                                              atomic_load(&debugging),
                                              &operations));
    stream_release(state, stream);
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
        WITHOUT_GIL(status = ps_graph_launch(graph_of(self), currents, &full));
        again = full != NULL && has_room_again(full, &status);
        stream_release(state_of(self), full);
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
    return finish(self, "CUDAGraph.reset", NULL, status);
}

/* The native graph and the executable, 0 while there is none. */
static void
read_handles(PyObject *self, ps_handle *native, ps_handle *executable)
{
    WITHOUT_GIL(ps_graph_handles(graph_of(self), native, executable));
}

static PyObject *
Graph_pool(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    GraphObject *object = (GraphObject *)self;
    ps_handle native, executable;
    read_handles(self, &native, &executable);
    if (native == 0 && executable == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Called CUDAGraph::pool() without a preceding "
                        "successful capture.");
        return NULL;
    }
    return Py_BuildValue("(KK)", object->pool[0], object->pool[1]);
}

static PyObject *
Graph_raw_cuda_graph(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_handle native, executable;
    read_handles(self, &native, &executable);
    if (!graph_of(self)->keeps) {
        PyErr_SetString(PyExc_RuntimeError,
                        "You cannot access the raw cudaGraph_t instance "
                        "unless CUDAGraph was initialized with "
                        "keep_graph=true");
        return NULL;
    }
    if (native == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "You cannot access the raw cudaGraph_t instance until "
                        "capture_end() has been called");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(native);
}

static PyObject *
Graph_raw_cuda_graph_exec(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ps_handle native, executable;
    read_handles(self, &native, &executable);
    if (executable == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "You cannot access the raw cudaGraphExec_t instance "
                        "until instantiate() has been called");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(executable);
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
    static const char *const names[] = {"debug_path", NULL};
    static const struct signature signature = {"debug_dump", 1, 1, names};
    PyObject *argument, *path;
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, &argument) < 0) {
        return NULL;
    }
    if (!atomic_load(&debugging) && !graph_of(self)->keeps) {
        if (PyErr_WarnEx(PyExc_UserWarning,
                         "CUDA Graphs debug not enabled, set with "
                         "[graph].enable_debug_mode()",
                         1) < 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    if (!PyUnicode_FSConverter(argument, &path)) {
        return NULL;
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

static PyObject *
graph_pool_handle(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(iK)", 0, atomic_fetch_add(&last_pool, 1) + 1);
}

PyMethodDef graph_functions[] = {
    FUNCTION("graph_pool_handle", graph_pool_handle, METH_NOARGS, "",
             "Return a new token for a memory pool that graphs share, two "
             "ints."),
    {NULL},
};

static PyMethodDef graph_methods[] = {
    METHOD(
        "capture_begin", Graph_capture_begin, METH_FASTCALL | METH_KEYWORDS,
        ", /, pool=None, capture_error_mode='global'",
        "Begin to capture what the current stream gets, instead of doing "
        "it\n(cudaStreamBeginCapture).\n\n"
        "A stream that waits for an event recorded in the capture joins it, "
        "until the end.\ncapture_error_mode: which threads' calls that a "
        "capture cannot see are errors, of\n'global' (all), 'thread_local' "
        "(this one) and 'relaxed' (none).  pool is what\n"
        "graph_pool_handle() or pool() returned, and changes nothing: "
        "there is no caching\nallocator, and each graph keeps the Buffers "
        "that its work uses.  Raises RuntimeError\non a default stream, "
        "where there is a graph already, and for another mode."),
    METHOD("capture_end", Graph_capture_end, METH_NOARGS, ", /",
           "End the capture on the current stream, and make it ready to "
           "replay\n(cudaStreamEndCapture).\n\n"
           "On the thread that began it, unless its mode was 'relaxed'.  "
           "Raises RuntimeError on\nanother stream than the capture's, and "
           "AcceleratorError for a capture that failed or\nthat a stream "
           "joined and did not come back from; the streams are usable again "
           "then.\nWarns where nothing was captured.  May block."),
    METHOD(
        "instantiate", Graph_instantiate, METH_NOARGS, ", /",
        "Make the captured graph ready to replay (cudaGraphInstantiate).\n\n"
        "For graphs with keep_graph=True, whose first replay() does so "
        "otherwise.  May block.\nRaises RuntimeError where there is no "
        "such graph."),
    METHOD("replay", Graph_replay, METH_NOARGS, ", /",
           "Queue the captured work on the current stream of its device "
           "(cudaGraphLaunch).\n\n"
           "It comes after what the stream has and after the graph's earlier "
           "replays.  Does not\nwait for it.  Raises RuntimeError where "
           "nothing was captured, and on a stream that is\nbeing captured, or "
           "would have to wait for one that is; the capture goes on."),
    METHOD("reset", Graph_reset, METH_NOARGS, ", /",
           "Give up the graph, and what it keeps once its replays are "
           "done.\n\n"
           "Ends a capture that is under way, on the thread that "
           "capture_end() needs.  Another\none can begin afterwards.  "
           "May block."),
    METHOD("pool", Graph_pool, METH_NOARGS, ", /",
           "Return the token of the graph's memory pool, for another's "
           "capture_begin().\n\n"
           "Raises RuntimeError where nothing was captured."),
    METHOD("enable_debug_mode", Graph_enable_debug_mode, METH_NOARGS, ", /",
           "Let debug_dump() work, for all graphs whose capture ends from "
           "here on."),
    METHOD("debug_dump", Graph_debug_dump, METH_FASTCALL | METH_KEYWORDS,
           ", /, debug_path",
           "Write the graph to a file, in Graphviz' language "
           "(cudaGraphDebugDotPrint).\n\n"
           "Warns, and does nothing, unless debug mode was enabled or "
           "keep_graph is True.  May\nblock.  Raises OSError if the "
           "file cannot be written, NotImplementedError\nif the backend "
           "has no such function."),
    METHOD("raw_cuda_graph", Graph_raw_cuda_graph, METH_NOARGS, ", /",
           "Return the cudaGraph_t as an int.\n\n"
           "Raises RuntimeError unless keep_graph is True and "
           "capture_end() was called."),
    METHOD("raw_cuda_graph_exec", Graph_raw_cuda_graph_exec, METH_NOARGS,
           ", /",
           "Return the cudaGraphExec_t as an int, valid until "
           "instantiate() or reset().\n\n"
           "Raises RuntimeError where there is none."),
    {NULL},
};

static PyMemberDef graph_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(GraphObject, weakrefs),
     READONLY, NULL},
    {NULL},
};

PyDoc_STRVAR(graph_doc, "Graph(type, keep_graph=False)\n--\n\n"
                        "A CUDAGraph of any device type.");

static PyType_Slot graph_slots[] = {
    {Py_tp_new, Graph_new},         {Py_tp_dealloc, Graph_dealloc},
    {Py_tp_methods, graph_methods}, {Py_tp_members, graph_members},
    {Py_tp_doc, (void *)graph_doc}, {0, NULL},
};

PyType_Spec graph_spec = {
    .name = "pystreams._C.Graph",
    .basicsize = sizeof(GraphObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = graph_slots,
};

PyDoc_STRVAR(cuda_graph_doc,
             "CUDAGraph(keep_graph=False)\n--\n\n"
             "Work that is captured once and replayed as a whole.\n\n"
             "It keeps the Buffers that its work uses, and the external "
             "events, until reset() or its\nend.  keep_graph: keep the "
             "cudaGraph_t for raw_cuda_graph(), and leave the making of\n"
             "what is replayed to instantiate().\n\n"
             "Raises RuntimeError where there is no device, "
             "NotImplementedError where the backend\nhas no graphs.  Safe to "
             "use from several threads.");

static PyType_Slot cuda_graph_slots[] = {
    {Py_tp_new, CudaGraph_new},
    {Py_tp_doc, (void *)cuda_graph_doc},
    {0, NULL},
};

PyType_Spec cuda_graph_spec = {
    .name = "pystreams.cuda.CUDAGraph",
    .basicsize = sizeof(GraphObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = cuda_graph_slots,
};
