/* The constructors of `Stream` and `cuda.Stream`: a new stream, or another
 * object for one that exists. */
#include "module.h"

#include <limits.h>

/* Stream(stream_id=, device_index=, device_type=): another object for a
 * stream that exists. */
static PyObject *
stream_from_ids(struct module_state *state, PyTypeObject *type, PyObject *id,
                PyObject *index, PyObject *device_type)
{
    ps_handle handle;
    if (id == NULL || index == NULL || device_type == NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "stream_id, device_index and device_type must be "
                        "given together");
        return NULL;
    }
    if (handle_argument("stream_id", id, &handle) < 0) {
        return NULL;
    }
    long number = PyLong_AsLong(device_type);
    if ((number == -1 && PyErr_Occurred()) || find_runtime(number) == NULL) {
        return NULL;
    }
    if (PyType_IsSubtype(type, state->cuda_stream_type) &&
        number != PS_DEVICE_CUDA) {
        PyErr_Format(PyExc_ValueError, "Expected a cuda device, but got: %s",
                     device_type_name((int)number));
        return NULL;
    }
    struct device_name name = {.type = (int)number};
    struct ps_device *device = index_argument(index, &name.index) == 0
                                   ? device_at(state, name)
                                   : NULL;
    if (device == NULL) {
        return NULL;
    }
    struct ps_stream *stream =
        stream_from_handle(state, device, true, handle, NULL);
    return stream != NULL ? stream_wrap(state, type, stream) : NULL;
}

static PyObject *
stream_create(struct module_state *state, PyTypeObject *type,
              struct ps_device *device, int priority)
{
    struct ps_stream *stream;
    ps_status status;
    WITHOUT_GIL(status = ps_stream_create(device, priority, &stream));
    if (status != PS_SUCCESS) {
        return raise_status(state, device->runtime, "creating a stream",
                            status);
    }
    return stream_wrap(state, type, stream);
}

/* A priority, made to fit an int; what the device has is up to core. */
static int
priority_argument(PyObject *argument, int *priority)
{
    int overflow = 0;
    *priority = 0;
    if (argument == NULL) {
        return 0;
    }
    long value = PyLong_AsLongAndOverflow(argument, &overflow);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow != 0) {
        value = overflow < 0 ? INT_MIN : INT_MAX;
    }
    *priority = (int)Py_MAX(INT_MIN, Py_MIN(value, INT_MAX));
    return 0;
}

PyObject *
stream_construct(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                 const char *format, int device_type)
{
    static char *keywords[] = {"device",       "priority",    "stream_id",
                               "device_index", "device_type", NULL};
    struct module_state *state = state_of_type(type);
    PyObject *argument = NULL, *level = NULL;
    PyObject *id = NULL, *index = NULL, *number = NULL;
    int priority;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, keywords, &argument,
                                     &level, &id, &index, &number) ||
        priority_argument(level, &priority) < 0) {
        return NULL;
    }
    if (id == NULL && index == NULL && number == NULL) {
        struct ps_device *device =
            device_argument(state, device_type, argument);
        return device != NULL ? stream_create(state, type, device, priority)
                              : NULL;
    }
    if (argument != NULL || level != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "device and priority cannot be given with "
                        "stream_id, device_index and device_type");
        return NULL;
    }
    return stream_from_ids(state, type, id, index, number);
}
