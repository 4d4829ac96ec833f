/* The current stream, as Python sees it: `with stream:` and the functions that
 * ask for and set it. */
#include "module.h"

static void
release(struct ps_stream *stream, void *state)
{
    stream_release(state, stream);
}

static void
destroy_thread(PyObject *capsule)
{
    if (!is_finalizing()) {
        ps_thread_destroy(PyCapsule_GetPointer(capsule, NULL), release,
                          PyCapsule_GetContext(capsule));
    }
}

static int
ensure_thread(struct module_state *state)
{
    if (ps_thread_self() != NULL) {
        return 0;
    }
    /* The thread's dictionary is cleared when its thread state ends, which
     * is the one place where dropping a stream is safe. */
    PyObject *dictionary = PyThreadState_GetDict();
    struct ps_thread *thread;
    if (dictionary == NULL || ps_thread_create(&thread) != PS_SUCCESS) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *capsule = PyCapsule_New(thread, NULL, destroy_thread);
    if (capsule == NULL) {
        ps_thread_destroy(thread, release, state);
        return -1;
    }
    /* The module is not unloaded while its threads' dictionaries live. */
    int result = PyCapsule_SetContext(capsule, state);
    if (result == 0) {
        result =
            PyDict_SetItemString(dictionary, "pystreams.current", capsule);
    }
    Py_DECREF(capsule);
    return result;
}

/* Call ps_current_set or ps_current_enter for a stream that the caller holds;
 * without the GIL where that has to switch the device, which may take long. */
static ps_status
make_current(struct module_state *state, struct ps_stream *stream,
             ps_status (*operation)(struct ps_stream *stream,
                                    struct ps_device *left,
                                    struct ps_stream **replaced))
{
    struct ps_stream *replaced = NULL;
    struct ps_device *left;
    if (ensure_thread(state) < 0) {
        return PS_RAISED;
    }
    ps_status status =
        ps_runtime_current_device(stream->device->runtime, &left);
    if (status == PS_SUCCESS && left == stream->device) {
        status = operation(stream, left, &replaced);
    }
    else if (status == PS_SUCCESS) {
        WITHOUT_GIL(status = operation(stream, left, &replaced));
    }
    stream_release(state, replaced);
    return status;
}

PyObject *
Stream_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct module_state *state = state_of(self);
    struct ps_runtime *runtime = ((StreamObject *)self)->device->runtime;
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    ps_status status = make_current(state, use.stream, ps_current_enter);
    stream_use_end(self, &use);
    if (status != PS_SUCCESS) {
        return raise_status(state, runtime, "entering a stream", status);
    }
    return Py_NewRef(self);
}

PyObject *
Stream_exit(PyObject *self, PyObject *const *Py_UNUSED(args),
            Py_ssize_t Py_UNUSED(nargs))
{
    struct ps_stream *stream = ((StreamObject *)self)->stream;
    if (stream != NULL && stream->generation != ps_generation()) {
        /* Entered before a fork, which has forgotten what to restore. */
        Py_RETURN_NONE;
    }
    struct module_state *state = state_of(self);
    struct ps_stream *dropped[PS_EXIT_DROPS] = {NULL};
    ps_status status =
        ps_current_exit(((StreamObject *)self)->device,
                        ((StreamObject *)self)->handle, dropped);
    for (int i = 0; i < PS_EXIT_DROPS; i++) {
        stream_release(state, dropped[i]);
    }
    if (status == PS_ERROR_INVALID_VALUE) {
        return PyErr_Format(PyExc_RuntimeError,
                            "%R was not entered by this thread", self);
    }
    return none_or_raise(state, ((StreamObject *)self)->device->runtime,
                         "leaving a stream", status);
}

/* A type, a device and a class for the stream, which is one of the module's
 * two; -1 with an exception. */
static int
parse_stream_query(PyObject *module, const char *function,
                   PyObject *const *args, Py_ssize_t nargs,
                   struct ps_device **device, PyTypeObject **class)
{
    struct module_state *state = state_of_module(module);
    if (nargs < 1 || nargs > 3 || !PyLong_Check(args[0])) {
        PyErr_Format(PyExc_TypeError,
                     "%s(type, device=None, cls=None) expects a device "
                     "type number and at most two more arguments",
                     function);
        return -1;
    }
    *class = nargs > 2 && args[2] != Py_None ? (PyTypeObject *)args[2]
                                             : state->stream_type;
    if (*class != state->stream_type && *class != state->cuda_stream_type) {
        PyErr_Format(PyExc_TypeError,
                     "%s() expects Stream or cuda.Stream as cls, got %R",
                     function, args[2]);
        return -1;
    }
    long type = PyLong_AsLong(args[0]);
    if ((type == -1 && PyErr_Occurred()) || find_runtime(type) == NULL) {
        return -1;
    }
    *device = device_argument(state, (int)type, nargs > 1 ? args[1] : NULL);
    return *device != NULL ? 0 : -1;
}

static PyObject *
current_stream(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    struct ps_device *device;
    PyTypeObject *class;
    if (parse_stream_query(module, "current_stream", args, nargs, &device,
                           &class) < 0) {
        return NULL;
    }
    return stream_wrap(state_of_module(module), class,
                       ps_stream_ref(ps_current_stream(device)));
}

/* cuda.current_stream, which programs call before every launch. */
static PyObject *
cuda_current_stream(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    struct module_state *state = state_of_module(module);
    PyObject *argument;
    if (parse_optional("current_stream", "device", args, nargs, kwnames,
                       &argument) < 0) {
        return NULL;
    }
    struct ps_device *device =
        device_argument(state, PS_DEVICE_CUDA, argument);
    return device != NULL
               ? stream_wrap(state, state->cuda_stream_type,
                             ps_stream_ref(ps_current_stream(device)))
               : NULL;
}

static PyObject *
default_stream(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    struct ps_device *device;
    PyTypeObject *class;
    if (parse_stream_query(module, "default_stream", args, nargs, &device,
                           &class) < 0) {
        return NULL;
    }
    return stream_wrap(state_of_module(module), class,
                       ps_stream_ref(&device->default_stream));
}

static PyObject *
set_stream(PyObject *module, PyObject *argument)
{
    struct module_state *state = state_of_module(module);
    struct ps_stream *stream = required_stream_argument(state, -1, argument);
    if (stream == NULL) {
        return NULL;
    }
    struct ps_runtime *runtime = stream->device->runtime;
    ps_status status = make_current(state, stream, ps_current_set);
    stream_release(state, stream);
    return none_or_raise(state, runtime, "setting the current stream", status);
}

PyObject *
as_stream_object(struct module_state *state, int type, PyObject *argument)
{
    if (is_stream(argument)) {
        return Py_NewRef(argument);
    }
    struct ps_stream *stream = required_stream_argument(state, type, argument);
    return stream != NULL ? stream_wrap(state, NULL, stream) : NULL;
}

static PyObject *
as_stream(PyObject *module, PyObject *args)
{
    int type;
    PyObject *argument;
    return PyArg_ParseTuple(args, "iO:as_stream", &type, &argument)
               ? as_stream_object(state_of_module(module), type, argument)
               : NULL;
}

PyMethodDef cuda_current_stream_function = FUNCTION(
    "current_stream", cuda_current_stream, METH_FASTCALL | METH_KEYWORDS,
    "device=None", "Return the calling thread's current stream of a device.");

PyMethodDef current_functions[] = {
    FUNCTION(
        "current_stream", current_stream, METH_FASTCALL,
        "type, device=None, cls=None, /",
        "Return this thread's current stream of the device, as a Stream or "
        "the class given."),
    FUNCTION(
        "default_stream", default_stream, METH_FASTCALL,
        "type, device=None, cls=None, /",
        "Return the device's default stream, handle 0, as a Stream or the "
        "class given."),
    FUNCTION("set_stream", set_stream, METH_O, "stream, /",
             "Make the stream current on its device, and its device current, "
             "in this thread."),
    FUNCTION("as_stream", as_stream, METH_VARARGS, "type, stream, /",
             "Return a Stream as it is, and any object with __cuda_stream__ "
             "as a Stream."),
    {NULL},
};
