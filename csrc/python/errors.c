/* From statuses to exceptions: the one place where a failed operation gets
 * its exception type and its words. */
#include "module.h"

#include <ctype.h>

struct shouted_name
shout(struct ps_runtime *runtime)
{
    struct shouted_name name;
    size_t i = 0;
    for (; i < sizeof(name.chars) - 1 && runtime->backend->name[i]; i++) {
        name.chars[i] =
            (char)toupper((unsigned char)runtime->backend->name[i]);
    }
    name.chars[i] = '\0';
    return name;
}

static void
raise_forked(struct ps_runtime *runtime)
{
    struct shouted_name name = shout(runtime);
    if (runtime->backend->flags & PS_BACKEND_FORKABLE) {
        PyErr_Format(PyExc_RuntimeError,
                     "a %s object made before a fork cannot be used in the "
                     "child; make a new one there, or use the 'spawn' start "
                     "method",
                     name.chars);
    }
    else {
        PyErr_Format(PyExc_RuntimeError,
                     "Cannot re-initialize %s in forked subprocess. To use "
                     "%s with multiprocessing, you must use the 'spawn' "
                     "start method",
                     name.chars, name.chars);
    }
}

void
raise_unavailable(struct ps_runtime *runtime, ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    struct shouted_name name = shout(runtime);
    PyErr_Format(PyExc_RuntimeError, "No %s %s are available: %s", name.chars,
                 backend->device_type == PS_DEVICE_CUDA ? "GPUs" : "devices",
                 backend->status_text(backend, status));
}

static void
raise_device_error(PyObject *type, struct ps_runtime *runtime,
                   const char *operation, ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    struct shouted_name name = shout(runtime);
    PyObject *message = PyUnicode_FromFormat(
        "%s error: %s\n%s failed with %s (%d).", name.chars,
        backend->status_text(backend, status), operation,
        backend->status_name(backend, status), status);
    if (message == NULL) {
        return;
    }
    PyObject *exception = PyObject_CallOneArg(type, message);
    Py_DECREF(message);
    if (exception == NULL) {
        return;
    }
    PyObject *code = PyLong_FromLong(status);
    if (code != NULL &&
        PyObject_SetAttrString(exception, "error_code", code) == 0) {
        PyErr_SetObject(type, exception);
    }
    Py_XDECREF(code);
    Py_DECREF(exception);
}

PyObject *
raise_status(struct module_state *state, struct ps_runtime *runtime,
             const char *operation, ps_status status)
{
    switch (status) {
    case PS_SUCCESS:
    case PS_RAISED:
        break;
    case PS_ERROR_FOREIGN:
        raise_forked(runtime);
        break;
    case PS_ERROR_NOT_SUPPORTED:
        raise_absent(runtime, operation);
        break;
    case PS_ERROR_OUT_OF_MEMORY:
        raise_device_error(state->out_of_memory_error, runtime, operation,
                           status);
        break;
    default:
        raise_device_error(state->accelerator_error, runtime, operation,
                           status);
    }
    return NULL;
}

PyObject *
none_or_raise(struct module_state *state, struct ps_runtime *runtime,
              const char *operation, ps_status status)
{
    if (status != PS_SUCCESS) {
        return raise_status(state, runtime, operation, status);
    }
    Py_RETURN_NONE;
}

PyObject *
raise_absent(struct ps_runtime *runtime, const char *feature)
{
    return PyErr_Format(PyExc_NotImplementedError,
                        "the %s backend does not support %s",
                        runtime->backend->name, feature);
}

void
report_cleanup(struct module_state *state, struct ps_runtime *runtime,
               const char *operation, ps_status status)
{
    if (status == PS_SUCCESS) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    raise_status(state, runtime, operation, status);
    PyErr_WriteUnraisable(NULL);
    PyErr_Restore(type, value, traceback);
}
