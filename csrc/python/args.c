/* From Python arguments to runtimes, devices and streams.  Everything that a
 * user may pass is checked here, before anything changes. */
#include "module.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int
optional_attribute(PyObject *object, PyObject *name, PyObject **value)
{
    *value = PyObject_GetAttr(object, name);
    if (*value != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static int
find_name(const struct signature *signature, PyObject *name)
{
    for (int i = 0; signature->names[i] != NULL; i++) {
        if (PyUnicode_CompareWithASCIIString(name, signature->names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

int
parse_arguments(const struct signature *signature, PyObject *const *args,
                Py_ssize_t nargs, PyObject *kwnames, PyObject **values)
{
    if (nargs > signature->positional) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d positional argument%s (%zd given)",
                     signature->function, signature->positional,
                     signature->positional == 1 ? "" : "s", nargs);
        return -1;
    }
    for (int i = 0; signature->names[i] != NULL; i++) {
        values[i] = i < nargs ? args[i] : NULL;
    }
    Py_ssize_t keywords = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t k = 0; k < keywords; k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k);
        int i = find_name(signature, name);
        if (i < 0) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got an unexpected keyword argument '%U'",
                         signature->function, name);
            return -1;
        }
        if (values[i] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got multiple values for argument '%U'",
                         signature->function, name);
            return -1;
        }
        values[i] = args[nargs + k];
    }
    for (int i = 0; i < signature->required; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s() missing required argument '%s'",
                         signature->function, signature->names[i]);
            return -1;
        }
    }
    return 0;
}

PyObject *
call_constructor(const struct constructor *constructor, PyObject *op,
                 PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    PyTypeObject *type = (PyTypeObject *)op;
    PyObject *values[8];
    initproc init = constructor->init != NULL ? constructor->init
                                              : PyBaseObject_Type.tp_init;
    if (type->tp_new == constructor->own && type->tp_init == init) {
        return parse_arguments(&constructor->signature, args,
                               PyVectorcall_NARGS(nargs), kwnames, values) == 0
                   ? constructor->construct(type, values)
                   : NULL;
    }
    PyObject *call = PyObject_GetAttrString(op, "__call__");
    PyObject *result =
        call != NULL ? PyObject_Vectorcall(call, args, nargs, kwnames) : NULL;
    Py_XDECREF(call);
    return result;
}

int
parse_named(const char *function, const char *name, int required,
            PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
            PyObject **value)
{
    const char *names[] = {name, NULL};
    struct signature signature = {function, required, 1, names};
    return parse_arguments(&signature, args, nargs, kwnames, value);
}

struct ps_runtime *
find_runtime(long type)
{
    struct ps_runtime *runtime =
        type >= 0 && type <= INT_MAX ? ps_runtime_find((int)type) : NULL;
    if (runtime == NULL && type == PS_DEVICE_CUDA) {
        PyErr_SetString(PyExc_RuntimeError,
                        "No CUDA GPUs are available: " NO_CUDA_BACKEND);
    }
    else if (runtime == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "no backend is registered for the device type %ld (%s)",
                     type, device_type_name((int)type));
    }
    return runtime;
}

ps_status
count_devices(struct ps_runtime *runtime, int *count)
{
    ps_status status;
    if (atomic_load(&runtime->device_count) != 0) {
        return ps_runtime_devices(runtime, count);
    }
    WITHOUT_GIL(status = ps_runtime_devices(runtime, count));
    return status;
}

struct ps_runtime *
use_runtime(struct module_state *state, int type)
{
    struct ps_runtime *runtime = find_runtime(type);
    ps_status status;
    if (runtime == NULL || ps_runtime_is_used(runtime)) {
        return runtime;
    }
    WITHOUT_GIL(status = ps_runtime_use(runtime));
    switch (status) {
    case PS_SUCCESS:
        return runtime;
    case PS_ERROR_FOREIGN:
    case PS_ERROR_OUT_OF_MEMORY:
        raise_status(state, runtime, "initialization", status);
        return NULL;
    default:
        raise_unavailable(runtime, status);
        return NULL;
    }
}

static struct ps_runtime *
find_runtime_by_name(const char *name)
{
    for (int i = 0; i < ps_runtime_count(); i++) {
        if (strcmp(ps_runtime_at(i)->backend->name, name) == 0) {
            return ps_runtime_at(i);
        }
    }
    return NULL;
}

/* The accelerator that the environment asks for; NULL with an exception. */
static struct ps_runtime *
forced_runtime(const char *name)
{
    int count;
    struct ps_runtime *runtime = find_runtime_by_name(name);
    if (runtime == NULL && strcmp(name, "cuda") == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "PYSTREAMS_ACCELERATOR is 'cuda', which is not "
                        "available: " NO_CUDA_BACKEND);
        return NULL;
    }
    if (runtime == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "PYSTREAMS_ACCELERATOR names an unknown device type: "
                     "'%s'",
                     name);
        return NULL;
    }
    ps_status status = count_devices(runtime, &count);
    if (status != PS_SUCCESS) {
        PyErr_Format(PyExc_RuntimeError,
                     "PYSTREAMS_ACCELERATOR is '%s', which is not "
                     "available: %s",
                     name,
                     runtime->backend->status_text(runtime->backend, status));
        return NULL;
    }
    return runtime;
}

/* The CUDA device where there is a usable one, else the CPU. */
static struct ps_runtime *
preferred_runtime(void)
{
    int count;
    struct ps_runtime *cuda = ps_runtime_find(PS_DEVICE_CUDA);
    if (cuda != NULL && count_devices(cuda, &count) == PS_SUCCESS) {
        return cuda;
    }
    return find_runtime(PS_DEVICE_CPU);
}

struct ps_runtime *
default_runtime(struct module_state *state)
{
    if (state->default_type < 0) {
        const char *forced = getenv("PYSTREAMS_ACCELERATOR");
        struct ps_runtime *runtime = forced != NULL && *forced != '\0'
                                         ? forced_runtime(forced)
                                         : preferred_runtime();
        if (runtime == NULL) {
            return NULL;
        }
        state->default_type = runtime->backend->device_type;
    }
    return find_runtime(state->default_type);
}

/* The index of an object such as cuda.device: 1 where it has one, 0 where
 * not, -1 with an exception. */
static int
indexed_object(struct module_state *state, PyObject *object, int *index)
{
    PyObject *idx;
    int found = optional_attribute(object, state->str_idx, &idx);
    if (found != 1) {
        return found;
    }
    long value = PyLong_Check(idx) ? PyLong_AsLong(idx) : -1;
    Py_DECREF(idx);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < 0 || value > INT_MAX) {
        return 0;
    }
    *index = (int)value;
    return 1;
}

int
index_argument(PyObject *argument, int *index)
{
    Py_ssize_t value = PyNumber_AsSsize_t(argument, PyExc_OverflowError);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Device index must not be negative");
        return -1;
    }
    if (value > INT_MAX) {
        PyErr_Format(PyExc_OverflowError,
                     "Device index must be at most %d, got %zd", INT_MAX,
                     value);
        return -1;
    }
    *index = (int)value;
    return 0;
}

int
device_name_argument(struct module_state *state, int type, PyObject *argument,
                     struct device_name *name)
{
    int expected = type;
    if (type < 0) {
        struct ps_runtime *runtime =
            PyObject_TypeCheck(argument, state->device_type) ||
                    PyUnicode_Check(argument)
                ? NULL
                : default_runtime(state);
        if (PyErr_Occurred()) {
            return -1;
        }
        type = runtime != NULL ? runtime->backend->device_type : -1;
    }
    name->type = type;
    name->index = -1;
    if (argument == Py_None) {
        return 0;
    }
    if (PyIndex_Check(argument) && !PyBool_Check(argument)) {
        if (expected >= 0 && PyNumber_AsSsize_t(argument, NULL) < 0) {
            return PyErr_Occurred() ? -1 : 0;
        }
        return index_argument(argument, &name->index);
    }
    if (PyObject_TypeCheck(argument, state->device_type)) {
        *name = device_name_of(argument);
    }
    else if (PyUnicode_Check(argument)) {
        if (device_name_parse(argument, name) < 0) {
            return -1;
        }
    }
    else {
        int indexed = indexed_object(state, argument, &name->index);
        if (indexed == 0) {
            PyErr_Format(PyExc_TypeError,
                         "expected a device (int, str, device or None), "
                         "but got %s",
                         Py_TYPE(argument)->tp_name);
        }
        return indexed == 1 ? 0 : -1;
    }
    if (expected >= 0 && name->type != expected) {
        PyErr_Format(PyExc_ValueError, "Expected a %s device, but got: %S",
                     device_type_name(expected), argument);
        return -1;
    }
    return 0;
}

__attribute__((cold)) static struct ps_device *
raise_choice(struct module_state *state, struct ps_runtime *runtime, int index,
             ps_status status)
{
    int count = atomic_load(&runtime->device_count);
    char operation[96];
    snprintf(operation, sizeof(operation),
             "choosing %s:%d, where there %s %d device%s,",
             runtime->backend->name, index, count == 1 ? "is" : "are", count,
             count == 1 ? "" : "s");
    raise_status(state, runtime,
                 index < 0 ? "asking for the current device" : operation,
                 status);
    return NULL;
}

struct ps_device *
device_at(struct module_state *state, struct device_name name)
{
    struct ps_device *device;
    struct ps_runtime *runtime = use_runtime(state, name.type);
    if (runtime == NULL) {
        return NULL;
    }
    ps_status status = name.index < 0
                           ? ps_runtime_current_device(runtime, &device)
                           : ps_runtime_device(runtime, name.index, &device);
    return status == PS_SUCCESS
               ? device
               : raise_choice(state, runtime, name.index, status);
}

struct ps_device *
device_argument(struct module_state *state, int type, PyObject *argument)
{
    struct device_name name = {type, -1};
    if (type >= 0 && argument == NULL) {
        return device_at(state, name);
    }
    if (device_name_argument(
            state, type, argument != NULL ? argument : Py_None, &name) < 0) {
        return NULL;
    }
    return device_at(state, name);
}

static int
check_stream_given(PyObject *argument)
{
    if (argument != Py_None) {
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "expected a Stream or an object with "
                                     "__cuda_stream__, but got None");
    return -1;
}

struct ps_stream *
required_stream_argument(struct module_state *state, int type,
                         PyObject *argument)
{
    return check_stream_given(argument) == 0
               ? stream_argument(state, type, argument)
               : NULL;
}

int
stream_use_argument(PyObject *self, int type, PyObject *argument,
                    struct stream_use *use)
{
    if (argument != NULL && is_stream(argument)) {
        return stream_use(argument, use);
    }
    use->object = NULL;
    use->stream = stream_argument(state_of(self), type, argument);
    return use->stream != NULL ? 0 : -1;
}

int
required_stream_use(PyObject *self, PyObject *argument, struct stream_use *use)
{
    return check_stream_given(argument) == 0
               ? stream_use_argument(self, -1, argument, use)
               : -1;
}

int
handle_argument(const char *what, PyObject *argument, ps_handle *handle)
{
    if (!PyLong_Check(argument)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, not %s", what,
                     Py_TYPE(argument)->tp_name);
        return -1;
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(argument);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError, "%s must be from 0 to %llu, got %S",
                         what, (unsigned long long)UINTPTR_MAX, argument);
        }
        return -1;
    }
    *handle = (ps_handle)value;
    return 0;
}

struct ps_stream *
stream_argument(struct module_state *state, int type, PyObject *argument)
{
    if (argument == NULL || argument == Py_None) {
        struct ps_device *device = device_argument(state, type, NULL);
        return device != NULL ? ps_stream_ref(current_stream_of(device))
                              : NULL;
    }
    if (is_stream(argument)) {
        struct ps_stream *stream = stream_of(argument);
        return stream != NULL ? ps_stream_ref(stream) : NULL;
    }
    ps_handle handle;
    int found = cuda_stream_protocol(state, argument, &handle);
    if (found == 0) {
        PyErr_Format(PyExc_TypeError,
                     "expected a Stream or an object with __cuda_stream__, "
                     "but got %s",
                     Py_TYPE(argument)->tp_name);
    }
    if (found <= 0) {
        return NULL;
    }
    struct ps_device *device = device_argument(state, PS_DEVICE_CUDA, NULL);
    return device != NULL
               ? stream_from_handle(state, device, false, handle, argument)
               : NULL;
}

int
optional_stream_argument(struct module_state *state, PyObject *argument,
                         struct ps_stream **stream)
{
    *stream = NULL;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    *stream = stream_argument(state, -1, argument);
    return *stream != NULL ? 0 : -1;
}

struct handle_text
handle_text(ps_handle handle)
{
    struct handle_text text;
    snprintf(text.chars, sizeof(text.chars), "0x%zx", (size_t)handle);
    return text;
}

PyObject *
ctypes_pointer(ps_handle handle)
{
    PyObject *ctypes = PyImport_ImportModule("ctypes");
    if (ctypes == NULL) {
        return NULL;
    }
    PyObject *pointer = PyObject_CallMethod(ctypes, "c_void_p", "K",
                                            (unsigned long long)handle);
    Py_DECREF(ctypes);
    return pointer;
}

PyObject *
dict_of(PyObject *names, PyObject *const *values)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), values[i]) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

PyObject *
tuple_of(PyObject *const *values, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
    }
    return tuple;
}
