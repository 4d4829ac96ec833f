/* Context managers that make a stream current: the type `cuda.StreamContext`,
 * which pystreams.accelerator uses too; the function `cuda.stream`; and the
 * base class of `cuda.graph`. */
#include "module.h"

#include "args.h"
#include "current.h"
#include "device.h"
#include "errors.h"
#include "graph.h"
#include "stream.h"
#include "wait.h"

typedef struct {
    PyObject ob_base;
    PyObject *stream; /* NULL if __enter__ must change nothing */
} ContextObject;

static int
StreamContext_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "StreamContext", 1, 1, {"stream"}};
    PyObject *stream;
    if (parse_tuple(&signature, args, kwargs, &stream) < 0) {
        return -1;
    }
    if (stream != Py_None && !is_stream(stream)) {
        return refuse_type("StreamContext", "a Stream or None", "stream",
                           stream);
    }
    reference_set(self, &((ContextObject *)self)->stream,
                  stream != Py_None ? Py_NewRef(stream) : NULL);
    return 0;
}

static int
StreamContext_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((ContextObject *)self)->stream);
    return 0;
}

static int
StreamContext_clear(PyObject *self)
{
    Py_CLEAR(((ContextObject *)self)->stream);
    return 0;
}

static void
StreamContext_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    StreamContext_clear(self);
    object_free(self);
}

/* Returns a new reference to the Stream; NULL if there is none.  This is safe
 * even if another thread calls __init__ again at the same time. */
static PyObject *
held_stream(PyObject *self)
{
    return reference_get(self, &((ContextObject *)self)->stream);
}

static PyObject *
StreamContext_enter(PyObject *self, PyObject *ignored)
{
    PyObject *stream = held_stream(self);
    if (stream == NULL) {
        Py_RETURN_NONE;
    }
    int result = drop_result(Stream_enter(stream, ignored));
    Py_DECREF(stream);
    return none_unless_raised(result);
}

static PyObject *
StreamContext_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *stream = held_stream(self);
    if (stream == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = Stream_exit(stream, args, nargs);
    Py_DECREF(stream);
    return result;
}

static PyObject *
cuda_stream(PyObject *Py_UNUSED(module), PyObject *const *args,
            Py_ssize_t nargs, PyObject *kwnames)
{
    PyTypeObject *type = module_state.stream_context_type;
    PyObject *argument, *stream = NULL;
    if (parse_required("stream", "stream", args, nargs, kwnames, &argument) <
            0 ||
        (argument != Py_None &&
         (stream = as_stream_object("stream", PS_DEVICE_CUDA, argument)) ==
             NULL)) {
        return NULL;
    }
    ContextObject *self = (ContextObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(stream);
        return NULL;
    }
    self->stream = stream;
    return (PyObject *)self;
}

PyMethodDef cuda_stream_function = FUNCTION(
    "stream", cuda_stream, METH_FASTCALL | METH_KEYWORDS, "stream",
    "Return a context manager that makes a stream and its device current.\n\n"
    "Both are restored on exit, for the calling thread.  None changes "
    "nothing.\n\n"
    "Raises ValueError for a stream of another device type.");

static PyMethodDef context_methods[] = {
    METHOD("__enter__", StreamContext_enter, METH_NOARGS, ", /",
           "Make the stream and its device current.  May block."),
    METHOD(
        "__exit__", StreamContext_exit, METH_FASTCALL, ", /, *exc_info",
        "Restore the device and the current streams that __enter__ found.\n\n"
        "Raises RuntimeError if this thread has not entered."),
    {NULL},
};

static PyObject *
StreamContext_get_stream(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *stream = held_stream(self);
    return stream != NULL ? stream : Py_NewRef(Py_None);
}

static PyGetSetDef context_getset[] = {
    {"stream", StreamContext_get_stream, NULL,
     PyDoc_STR("The Stream; None if no stream is made current.")},
    {NULL},
};

PyDoc_STRVAR(context_doc,
             "StreamContext(stream)\n--\n\n"
             "Make a stream and its device current within a with block.\n\n"
             "If stream is None, changes nothing.  Raises TypeError for any "
             "other object.");

static PyType_Slot context_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, StreamContext_init},
    {Py_tp_traverse, StreamContext_traverse},
    {Py_tp_clear, StreamContext_clear},
    {Py_tp_dealloc, StreamContext_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {Py_tp_doc, (void *)context_doc},
    {0, NULL},
};

PyType_Spec stream_context_spec =
    TYPE_SPEC("pystreams.cuda.StreamContext", ContextObject,
              Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, context_slots);

static int
synchronize(void)
{
    struct work work = {
        .operation = "synchronize",
        .device = device_argument("graph", PS_DEVICE_CUDA, NULL),
        .implied = true,
    };
    return work.device != NULL ? drop_result(waited(&work, NULL, NO_TIMEOUT))
                               : -1;
}

/* Check that the stream belongs to the runtime in which the capture would
 * begin.  It does not belong to it if an emulation of CUDA has begun or ended
 * since the stream was created.  On failure, returns -1 with an exception. */
static int
check_stream(PyObject *self)
{
    PyObject *stream = held_stream(self);
    struct ps_runtime *present = ps_runtime_find(PS_DEVICE_CUDA);
    struct ps_runtime *its =
        stream != NULL ? ((StreamObject *)stream)->device->runtime : present;
    Py_XDECREF(stream);
    return its == present || present == NULL
               ? 0
               : check_emulations("graph", "stream", its, "capture", present);
}

/* Call _begin().  If that raises an exception, drop the capture that it has
 * begun, and return -1 with the exception. */
static int
begin(PyObject *self)
{
    PyObject *graph = PyObject_GetAttrString(self, "cuda_graph");
    if (graph == NULL) {
        return -1;
    }
    bool own = is_instance(graph, module_state.graph_type);
    uint64_t begun = own ? graph_begun(graph) : 0;
    int result = drop_result(PyObject_CallMethod(self, "_begin", NULL));
    if (result < 0 && own) {
        graph_drop(graph, begun);
    }
    else if (result < 0) {
        struct saved_exception failure = exception_save();
        if (drop_result(PyObject_CallMethod(self, "_cancel", NULL)) < 0) {
            PyErr_Clear();
        }
        exception_restore(failure);
    }
    Py_DECREF(graph);
    return result;
}

static PyObject *
GraphContext_enter(PyObject *self, PyObject *ignored)
{
    PyObject *entered = NULL;
    if (check_stream(self) == 0 && synchronize() == 0) {
        entered = StreamContext_enter(self, ignored);
    }
    if (entered != NULL && begin(self) < 0) {
        Py_CLEAR(entered);
        struct saved_exception failure = exception_save();
        if (drop_result(StreamContext_exit(self, NULL, 0)) < 0) {
            PyErr_Clear();
        }
        exception_restore(failure);
    }
    return entered;
}

/* If several steps raise exceptions, only one of them is raised in the end.
 * An exception from the `with` block takes precedence over one from ending the
 * capture, unless the latter is not an Exception (for example
 * KeyboardInterrupt).  An exception from ending the capture takes precedence
 * over one from leaving the stream.  If ending the capture has raised none, an
 * exception from leaving the stream replaces that from the block. */
static PyObject *
GraphContext_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    /* Neither this lookup nor the call below allocates memory, so the end of
     * the capture cannot fail for lack of memory. */
    PyObject *end = PyObject_GetAttr(self, module_state.str_end);
    bool raised = end == NULL || (nargs > 0 && args[0] != Py_None);
    if ((end == NULL || drop_result(PyObject_CallNoArgs(end)) < 0) && raised &&
        PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    struct saved_exception failure = exception_save();
    PyObject *left = StreamContext_exit(self, NULL, 0);
    if (failure.type != NULL) {
        Py_CLEAR(left);
        exception_restore(failure);
    }
    Py_XDECREF(end);
    return left;
}

static PyMethodDef graph_context_methods[] = {
    METHOD("__enter__", GraphContext_enter, METH_NOARGS, ", /",
           "Wait for all work on the current device, make the stream current "
           "and begin the\ncapture.  May block."),
    METHOD("__exit__", GraphContext_exit, METH_FASTCALL, ", /, *args",
           "End the capture, and restore the stream that was current before."),
    {NULL},
};

PyDoc_STRVAR(graph_context_doc,
             "GraphContext(stream)\n--\n\n"
             "The base of cuda.graph: a StreamContext that calls _begin() "
             "once it is entered, and\n_end() before it is left.  If _begin() "
             "raises, drops the capture that it has begun into\ncuda_graph "
             "or, if that is not a Graph, calls _cancel().\n\n"
             "Entering and leaving are one call each, so that Ctrl-C finds "
             "the stream current and its\ncapture begun, or neither.");

static PyType_Slot graph_context_slots[] = {
    {Py_tp_methods, graph_context_methods},
    {Py_tp_doc, (void *)graph_context_doc},
    {0, NULL},
};

PyType_Spec graph_context_spec =
    TYPE_SPEC("pystreams._C.GraphContext", ContextObject, Py_TPFLAGS_BASETYPE,
              graph_context_slots);
