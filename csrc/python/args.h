/* The arguments of calls. */
#ifndef PYSTREAMS_PYTHON_ARGS_H
#define PYSTREAMS_PYTHON_ARGS_H

#include "module.h"

/* A new reference to an attribute that an object may have: 1, 0 with NULL
 * where it has none, -1 with NULL and an exception. */
int optional_attribute(PyObject *object, PyObject *name, PyObject **value);

/* Arguments of a METH_FASTCALL | METH_KEYWORDS function: fill values[i] for
 * names[i], NULL where not given.  The first `positional` may be given by
 * position and the first `required` must be given.  -1 with TypeError. */
struct signature {
    const char *function;
    int required;
    int positional;
    const char *const *names;
};
int parse_arguments(const struct signature *signature, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames, PyObject **values);

/* A type's call without a tuple and a dict of arguments, unless somebody has
 * patched its __new__ or __init__; init: NULL for object's. */
struct constructor {
    newfunc own;
    initproc init;
    struct signature signature;
    PyObject *(*construct)(PyTypeObject *type, PyObject **values);
};
PyObject *
call_constructor(const struct constructor *constructor, PyObject *type,
                 PyObject *const *args, size_t nargs, PyObject *kwnames);

/* Of a function with one argument, which has the name. */
int parse_named(const char *function, const char *name, int required,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                PyObject **value);

/* An argument that is one value, most often given by position: borrowed.  -1
 * with TypeError. */
static inline int
parse_required(const char *function, const char *name, PyObject *const *args,
               Py_ssize_t nargs, PyObject *kwnames, PyObject **value)
{
    if (nargs == 1 && kwnames == NULL) {
        *value = args[0];
        return 0;
    }
    return parse_named(function, name, 1, args, nargs, kwnames, value);
}

/* Likewise, an optional one, which may be None: NULL where it is None or not
 * given. */
static inline int
parse_optional(const char *function, const char *name, PyObject *const *args,
               Py_ssize_t nargs, PyObject *kwnames, PyObject **value)
{
    *value = nargs == 1 ? args[0] : NULL;
    if ((nargs > 1 || kwnames != NULL) &&
        parse_named(function, name, 0, args, nargs, kwnames, value) < 0) {
        return -1;
    }
    if (*value == Py_None) {
        *value = NULL;
    }
    return 0;
}

/* The arguments of a METH_FASTCALL | METH_KEYWORDS function for a call; NULL
 * with an exception. */
PyObject *tuple_of(PyObject *const *values, Py_ssize_t count);
PyObject *dict_of(PyObject *names, PyObject *const *values);

/* A handle as people read it: "0x7f01". */
struct handle_text {
    char chars[24];
};
struct handle_text handle_text(ps_handle handle);

/* A handle as a ctypes.c_void_p. */
PyObject *ctypes_pointer(ps_handle handle);

/* An integer that may be a handle; -1 with an exception. */
int handle_argument(const char *what, PyObject *argument, ps_handle *handle);

#endif
