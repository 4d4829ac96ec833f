/* The arguments of calls, and the errors of wrong ones: each names the
 * function and the parameter, as in "Stream() expects an int for priority, but
 * got str". */
#ifndef PYSTREAMS_PYTHON_ARGS_H
#define PYSTREAMS_PYTHON_ARGS_H

#include "errors.h"
#include "module.h"

/* A function's parameters, up to NULL: the first `positional` may be given by
 * position, and the first `required` must be given. */
struct signature {
    const char *function;
    int required;
    int positional;
    const char *names[10];
};

/* Set values[i] to the argument for names[i], borrowed; NULL if it was not
 * given.  The first is for METH_FASTCALL | METH_KEYWORDS functions, the second
 * for functions that get a tuple and a dict.  -1 with TypeError. */
int parse_arguments(const struct signature *signature, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames, PyObject **values);
int parse_tuple(const struct signature *signature, PyObject *args,
                PyObject *kwargs, PyObject **values);

/* A type's constructor, for tp_new (or tp_init), which parses a tuple and a
 * dict, and for tp_vectorcall, which needs neither. */
struct constructor {
    const struct signature *signature;
    PyObject *(*construct)(PyTypeObject *type, PyObject **values);
};
PyObject *
construct_from_tuple(const struct constructor *constructor, PyTypeObject *type,
                     PyObject *args, PyObject *kwargs);
PyObject *
call_constructor(const struct constructor *constructor, PyObject *type,
                 PyObject *const *args, size_t nargs, PyObject *kwnames);

/* For a function with one parameter, of this name. */
int parse_named(const char *function, const char *name, int required,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                PyObject **value);

/* The argument of a function with one required parameter, borrowed.  -1 with
 * TypeError. */
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

/* Likewise, of a function with one optional parameter: NULL if it is None or
 * was not given. */
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

/* Raise TypeError for an argument of the wrong type; always returns NULL, and
 * -1. */
PyObject *raise_expected(const char *function, const char *expected,
                         const char *name, PyObject *argument);
int refuse_type(const char *function, const char *expected, const char *name,
                PyObject *argument);

/* The value of an int.  If it does not fit, the first raises OverflowError,
 * and the second returns the nearest value that does.  -1 with an
 * exception. */
int int_argument(const char *function, const char *name, PyObject *argument,
                 Py_ssize_t *value);
int clamped_argument(const char *function, const char *name,
                     PyObject *argument, int *value);

/* A number of bytes; -1 with an exception. */
int
nbytes_argument(const char *function, PyObject *argument, Py_ssize_t *nbytes);

/* The truth of an object, false if it was not given; -1 with an exception. */
int truth_argument(PyObject *argument, bool *value);

/* A switch: a bool or an int; false for None and if it was not given.  -1 with
 * TypeError. */
int switch_argument(const char *function, const char *name, PyObject *argument,
                    bool *value);

/* A name: its UTF-8, borrowed from the argument; NULL if that is None or was
 * not given.  -1 with an exception. */
int name_argument(const char *function, const char *name, PyObject *argument,
                  const char **text);

/* The value of an int that is a handle or an address; -1 with an exception. */
int handle_argument(const char *function, const char *name, PyObject *argument,
                    ps_handle *handle);

/* A new reference to an attribute that an object may have: 1; 0 with NULL if
 * it has none; -1 with NULL and an exception. */
int optional_attribute(PyObject *object, PyObject *name, PyObject **value);

/* A handle as text: "0x7f01". */
struct handle_text {
    char chars[24];
};
struct handle_text handle_text(ps_handle handle);

/* A handle as a ctypes.c_void_p. */
PyObject *ctypes_pointer(ps_handle handle);

#endif
