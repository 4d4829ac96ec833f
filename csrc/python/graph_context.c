/* The type `cuda.graph`: a with block whose work is captured into a CUDAGraph.
 * To enter it and to leave it is one call each, in which no Python code of the
 * package's runs, so that Ctrl-C finds the stream current and its capture
 * begun, or neither. */
#include "module.h"

#include <structmember.h>

#include "current.h"
#include "device.h"
#include "wait.h"

typedef struct {
    PyObject ob_base;
    /* NULL before __init__. */
    PyObject *cuda_graph;
    PyObject *pool;
    PyObject *capture_stream;
    PyObject *capture_error_mode;
    PyObject *stream_ctx;
    /* While it is entered: what ends the capture and leaves the stream, found
     * beforehand, as nothing may fail then. */
    PyObject *end;
    PyObject *leave;
} ContextObject;

static int
GraphContext_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"cuda_graph", "pool", "stream",
                               "capture_error_mode", NULL};
    ContextObject *self = (ContextObject *)op;
    struct module_state *state = state_of(op);
    PyObject *graph, *pool = Py_None, *stream = Py_None, *mode = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO:graph", keywords,
                                     &graph, &pool, &stream, &mode)) {
        return -1;
    }
    stream = stream == Py_None
                 ? PyObject_CallNoArgs((PyObject *)state->cuda_stream_type)
                 : as_stream_object(state, "graph", stream);
    PyObject *context =
        stream != NULL ? PyObject_CallOneArg(
                             (PyObject *)state->stream_context_type, stream)
                       : NULL;
    mode = mode != NULL ? Py_NewRef(mode) : PyUnicode_FromString("global");
    if (context == NULL || mode == NULL) {
        Py_XDECREF(stream);
        Py_XDECREF(context);
        Py_XDECREF(mode);
        return -1;
    }
    Py_XSETREF(self->cuda_graph, Py_NewRef(graph));
    Py_XSETREF(self->pool, Py_NewRef(pool));
    Py_XSETREF(self->capture_stream, stream);
    Py_XSETREF(self->capture_error_mode, mode);
    Py_XSETREF(self->stream_ctx, context);
    return 0;
}

static int
GraphContext_traverse(PyObject *op, visitproc visit, void *arg)
{
    ContextObject *self = (ContextObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->cuda_graph);
    Py_VISIT(self->pool);
    Py_VISIT(self->capture_stream);
    Py_VISIT(self->capture_error_mode);
    Py_VISIT(self->stream_ctx);
    Py_VISIT(self->end);
    Py_VISIT(self->leave);
    return 0;
}

static int
GraphContext_clear(PyObject *op)
{
    ContextObject *self = (ContextObject *)op;
    Py_CLEAR(self->cuda_graph);
    Py_CLEAR(self->pool);
    Py_CLEAR(self->capture_stream);
    Py_CLEAR(self->capture_error_mode);
    Py_CLEAR(self->stream_ctx);
    Py_CLEAR(self->end);
    Py_CLEAR(self->leave);
    return 0;
}

static void
GraphContext_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    GraphContext_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Whether a call worked, whose result is dropped: -1 with its exception. */
static int
check(PyObject *result)
{
    Py_XDECREF(result);
    return result != NULL ? 0 : -1;
}

/* Leave the stream, keeping the exception that is pending; without one, that
 * of leaving. */
static int
leave_stream(PyObject *leave)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int left = check(PyObject_CallNoArgs(leave));
    if (type == NULL) {
        return left;
    }
    PyErr_Restore(type, value, traceback);
    return -1;
}

static int
synchronize(struct module_state *state)
{
    struct work work = {
        .operation = "synchronize",
        .device = device_argument(state, "graph", PS_DEVICE_CUDA, NULL),
    };
    return work.device != NULL ? check(waited(state, &work, NULL, NO_TIMEOUT))
                               : -1;
}

/* The object is reachable from the caller's with statement alone, but a call
 * may run code that has it: what is used here is held. */
static int
enter(PyObject *op, PyObject *stream_ctx, PyObject *begin, PyObject *end,
      PyObject *leave)
{
    ContextObject *self = (ContextObject *)op;
    PyObject *arguments =
        PyTuple_Pack(2, self->pool, self->capture_error_mode);
    int result = -1;
    if (arguments != NULL && synchronize(state_of(op)) == 0 &&
        check(PyObject_CallMethod(stream_ctx, "__enter__", NULL)) == 0) {
        result = check(PyObject_CallObject(begin, arguments));
        if (result < 0) {
            leave_stream(leave);
        }
        else {
            Py_XSETREF(self->end, Py_NewRef(end));
            Py_XSETREF(self->leave, Py_NewRef(leave));
        }
    }
    Py_XDECREF(arguments);
    return result;
}

static PyObject *
GraphContext_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    ContextObject *self = (ContextObject *)op;
    if (self->stream_ctx == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the graph context has no graph: its __init__() was "
                        "not called");
        return NULL;
    }
    PyObject *stream_ctx = Py_NewRef(self->stream_ctx);
    PyObject *graph = Py_NewRef(self->cuda_graph);
    PyObject *begin = PyObject_GetAttrString(graph, "capture_begin");
    PyObject *end =
        begin != NULL ? PyObject_GetAttrString(graph, "capture_end") : NULL;
    PyObject *leave =
        end != NULL ? PyObject_GetAttrString(stream_ctx, "__exit__") : NULL;
    int result = leave != NULL ? enter(op, stream_ctx, begin, end, leave) : -1;
    Py_XDECREF(leave);
    Py_XDECREF(end);
    Py_XDECREF(begin);
    Py_DECREF(graph);
    Py_DECREF(stream_ctx);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
GraphContext_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    ContextObject *self = (ContextObject *)op;
    bool raised = nargs > 0 && args[0] != Py_None;
    PyObject *end = self->end, *leave = self->leave;
    if (leave == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the graph context was not entered");
        return NULL;
    }
    self->end = self->leave = NULL;
    if (check(PyObject_CallNoArgs(end)) < 0 && raised &&
        PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    int result = leave_stream(leave);
    Py_DECREF(end);
    Py_DECREF(leave);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef context_methods[] = {
    METHOD("__enter__", GraphContext_enter, METH_NOARGS, ", /",
           "Wait for all work on the current device, make the stream current "
           "and begin the\ncapture.  May block."),
    METHOD("__exit__", GraphContext_exit, METH_FASTCALL, ", /, *args",
           "End the capture, and make current again what was so before."),
    {NULL},
};

static PyMemberDef context_members[] = {
    {"cuda_graph", T_OBJECT, offsetof(ContextObject, cuda_graph), READONLY,
     PyDoc_STR("The CUDAGraph.")},
    {"pool", T_OBJECT, offsetof(ContextObject, pool), READONLY,
     PyDoc_STR("The token of a memory pool, or None.")},
    {"capture_stream", T_OBJECT, offsetof(ContextObject, capture_stream),
     READONLY, PyDoc_STR("The stream whose work is captured.")},
    {"capture_error_mode", T_OBJECT,
     offsetof(ContextObject, capture_error_mode), READONLY,
     PyDoc_STR("What CUDAGraph.capture_begin is given.")},
    {"stream_ctx", T_OBJECT, offsetof(ContextObject, stream_ctx), READONLY,
     PyDoc_STR("The StreamContext that is entered.")},
    {NULL},
};

PyDoc_STRVAR(
    context_doc,
    "graph(cuda_graph, pool=None, stream=None, "
    "capture_error_mode='global')\n--\n\n"
    "Capture what the current stream gets within a with block.\n\n"
    "The block runs with a stream current, one of its own if none is given, "
    "after all\nwork on the current device is done.  pool and "
    "capture_error_mode go to\nCUDAGraph.capture_begin.  However the block "
    "ends, so does the capture, the streams\nthat it took work of are usable "
    "again, and the stream that was current is so\nagain.  What the block "
    "raises comes before what is then wrong with the capture.");

static PyType_Slot context_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, GraphContext_init},
    {Py_tp_traverse, GraphContext_traverse},
    {Py_tp_clear, GraphContext_clear},
    {Py_tp_dealloc, GraphContext_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_members, context_members},
    {Py_tp_doc, (void *)context_doc},
    {0, NULL},
};

PyType_Spec graph_context_spec = {
    .name = "pystreams.cuda.graph",
    .basicsize = sizeof(ContextObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = context_slots,
};
