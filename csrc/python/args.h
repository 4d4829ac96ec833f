/* The arguments of calls.  An error about a wrong argument names the function
 * and the parameter, as in "Stream() expects an int for priority, but got
 * str". */
#ifndef PYSTREAMS_PYTHON_ARGS_H
#define PYSTREAMS_PYTHON_ARGS_H

#include "errors.h"
#include "module.h"

/* A function's parameters.  `names` ends with NULL.  The first `positional`
 * parameters may be given by position; the first `required` ones must be
 * given. */
struct signature {
    const char *function;
    int required;
    int positional;
    const char *names[10];
};

/* Set values[i] to a borrowed reference to the argument for names[i], or to
 * NULL if it was not given.  parse_arguments is for functions that are
 * METH_FASTCALL | METH_KEYWORDS.  parse_tuple is for functions that get a
 * tuple and a dict.  On failure, return -1 with TypeError. */
int parse_arguments(const struct signature *signature, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames, PyObject **values);
int parse_tuple(const struct signature *signature, PyObject *args,
                PyObject *kwargs, PyObject **values);

/* A type's constructor.  construct_from_tuple calls it for tp_new, which gets
 * a tuple and a dict.  call_constructor calls it for tp_vectorcall, which gets
 * an array. */
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

/* Get a borrowed reference to the argument of a function whose only parameter
 * has this name.  *value becomes NULL if the argument is not required and was
 * not given.  On failure, returns -1 with TypeError. */
int parse_named(const char *function, const char *name, int required,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                PyObject **value);

/* Get a borrowed reference to the argument of a function that has exactly one
 * parameter, which is required.  On failure, returns -1 with TypeError. */
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

/* Like parse_required, but for a function whose only parameter is optional.
 * *value becomes NULL if the argument is None or was not given. */
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

/* Raise TypeError for an argument of the wrong type.  raise_expected always
 * returns NULL, and refuse_type always returns -1. */
PyObject *raise_expected(const char *function, const char *expected,
                         const char *name, PyObject *argument);
int refuse_type(const char *function, const char *expected, const char *name,
                PyObject *argument);

/* Get the value of an int.  If the value does not fit into *value,
 * int_argument raises OverflowError, and clamped_argument gives the nearest
 * value that fits.  On failure, return -1 with an exception. */
int int_argument(const char *function, const char *name, PyObject *argument,
                 Py_ssize_t *value);
int clamped_argument(const char *function, const char *name,
                     PyObject *argument, int *value);

/* Get a number of bytes.  On failure, returns -1 with an exception. */
int
nbytes_argument(const char *function, PyObject *argument, Py_ssize_t *nbytes);

/* Get the truth value of an argument.  If it was not given, and so is NULL,
 * the value is false.  On failure, returns -1 with an exception. */
int truth_argument(PyObject *argument, bool *value);

/* Get the value of a flag argument.  The argument must be a bool or an int.
 * If it is None or was not given, the value is false.  On failure, returns -1
 * with TypeError. */
int switch_argument(const char *function, const char *name, PyObject *argument,
                    bool *value);

/* Get the text of a str as UTF-8, which is valid while the argument is alive.
 * *text becomes NULL if the argument is None or was not given.  On failure,
 * returns -1 with an exception. */
int name_argument(const char *function, const char *name, PyObject *argument,
                  const char **text);

/* Get the value of an int that is a handle, an address or another unsigned
 * 64-bit number.  On failure, returns -1 with an exception. */
int handle_argument(const char *function, const char *name, PyObject *argument,
                    ps_handle *handle);

/* Get an optional attribute of the object.  Returns 1 with a new reference in
 * *value.  Returns 0 if the object has no such attribute, and -1 with an
 * exception on failure; in both cases, *value becomes NULL. */
int optional_attribute(PyObject *object, PyObject *name, PyObject **value);

/* Returns a handle as text, for example "0x7f01". */
struct handle_text {
    char chars[24];
};
struct handle_text handle_text(ps_handle handle);

/* Returns a new ctypes.c_void_p with the value of the handle; NULL with an
 * exception. */
PyObject *ctypes_pointer(ps_handle handle);

#endif
