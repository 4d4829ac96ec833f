/* Matches the arguments of calls to parameters, and reads numbers, flags and
 * handles from arguments. */
#include "args.h"

#include <limits.h>
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

/* Store the value of a keyword argument.  On failure, returns -1 with
 * TypeError. */
static int
set_keyword(const struct signature *signature, PyObject *name, PyObject *value,
            PyObject **values)
{
    int i = 0;
    while (signature->names[i] != NULL &&
           PyUnicode_CompareWithASCIIString(name, signature->names[i]) != 0) {
        i++;
    }
    if (signature->names[i] == NULL) {
        return refuse(PyExc_TypeError,
                      "%s() got an unexpected keyword argument '%U'",
                      signature->function, name);
    }
    if (values[i] != NULL) {
        return refuse(PyExc_TypeError,
                      "%s() got multiple values for argument '%U'",
                      signature->function, name);
    }
    values[i] = value;
    return 0;
}

/* Store the positional arguments.  On failure, returns -1 with TypeError. */
static int
set_positional(const struct signature *signature, PyObject *const *args,
               Py_ssize_t nargs, PyObject **values)
{
    if (nargs > signature->positional) {
        if (signature->positional == 0) {
            return refuse(PyExc_TypeError,
                          "%s() takes no positional arguments (%zd given)",
                          signature->function, nargs);
        }
        return refuse(
            PyExc_TypeError,
            "%s() takes at most %d positional argument%s (%zd given)",
            signature->function, signature->positional,
            signature->positional == 1 ? "" : "s", nargs);
    }
    for (int i = 0; signature->names[i] != NULL; i++) {
        values[i] = i < nargs ? args[i] : NULL;
    }
    return 0;
}

static int
check_required(const struct signature *signature, PyObject *const *values)
{
    for (int i = 0; i < signature->required; i++) {
        if (values[i] == NULL) {
            return refuse(PyExc_TypeError,
                          "%s() missing required argument '%s'",
                          signature->function, signature->names[i]);
        }
    }
    return 0;
}

int
parse_arguments(const struct signature *signature, PyObject *const *args,
                Py_ssize_t nargs, PyObject *kwnames, PyObject **values)
{
    Py_ssize_t keywords = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    if (set_positional(signature, args, nargs, values) < 0) {
        return -1;
    }
    for (Py_ssize_t k = 0; k < keywords; k++) {
        if (set_keyword(signature, PyTuple_GET_ITEM(kwnames, k),
                        args[nargs + k], values) < 0) {
            return -1;
        }
    }
    return check_required(signature, values);
}

int
parse_tuple(const struct signature *signature, PyObject *args,
            PyObject *kwargs, PyObject **values)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (set_positional(signature, PySequence_Fast_ITEMS(args),
                       PyTuple_GET_SIZE(args), values) < 0 ||
        (kwargs != NULL && !PyArg_ValidateKeywordArguments(kwargs))) {
        return -1;
    }
    while (kwargs != NULL && PyDict_Next(kwargs, &at, &name, &value)) {
        if (set_keyword(signature, name, value, values) < 0) {
            return -1;
        }
    }
    return check_required(signature, values);
}

PyObject *
construct_from_tuple(const struct constructor *constructor, PyTypeObject *type,
                     PyObject *args, PyObject *kwargs)
{
    PyObject *values[8];
    return parse_tuple(constructor->signature, args, kwargs, values) == 0
               ? constructor->construct(type, values)
               : NULL;
}

PyObject *
call_constructor(const struct constructor *constructor, PyObject *op,
                 PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    PyObject *values[8];
    return parse_arguments(constructor->signature, args,
                           PyVectorcall_NARGS(nargs), kwnames, values) == 0
               ? constructor->construct((PyTypeObject *)op, values)
               : NULL;
}

int
parse_named(const char *function, const char *name, int required,
            PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
            PyObject **value)
{
    struct signature signature = {function, required, 1, {name}};
    return parse_arguments(&signature, args, nargs, kwnames, value);
}

__attribute__((cold)) PyObject *
raise_expected(const char *function, const char *expected, const char *name,
               PyObject *argument)
{
    return PyErr_Format(PyExc_TypeError, "%s() expects %s for %s, but got %s",
                        function, expected, name, Py_TYPE(argument)->tp_name);
}

int
refuse_type(const char *function, const char *expected, const char *name,
            PyObject *argument)
{
    raise_expected(function, expected, name, argument);
    return -1;
}

int
int_argument(const char *function, const char *name, PyObject *argument,
             Py_ssize_t *value)
{
    if (!PyIndex_Check(argument)) {
        return refuse_type(function, "an int", name, argument);
    }
    *value = PyNumber_AsSsize_t(argument, PyExc_OverflowError);
    if (*value != -1 || !PyErr_Occurred()) {
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Format(PyExc_OverflowError,
                     "%s() expects a signed int of 64 bits for %s, but got %S",
                     function, name, argument);
    }
    return -1;
}

int
nbytes_argument(const char *function, PyObject *argument, Py_ssize_t *nbytes)
{
    if (int_argument(function, "nbytes", argument, nbytes) < 0) {
        return -1;
    }
    if (*nbytes < 0) {
        return refuse(
            PyExc_ValueError,
            "%s() expects an int of at least 0 for nbytes, but got %zd",
            function, *nbytes);
    }
    return 0;
}

int
clamped_argument(const char *function, const char *name, PyObject *argument,
                 int *value)
{
    if (!PyIndex_Check(argument)) {
        return refuse_type(function, "an int", name, argument);
    }
    Py_ssize_t wide = PyNumber_AsSsize_t(argument, NULL);
    *value = (int)Py_MAX(INT_MIN, Py_MIN(wide, INT_MAX));
    return wide == -1 && PyErr_Occurred() ? -1 : 0;
}

int
truth_argument(PyObject *argument, bool *value)
{
    int truth = argument != NULL ? PyObject_IsTrue(argument) : 0;
    *value = truth > 0;
    return truth < 0 ? -1 : 0;
}

int
switch_argument(const char *function, const char *name, PyObject *argument,
                bool *value)
{
    if (argument != NULL && argument != Py_None && !PyLong_Check(argument)) {
        return refuse_type(function, "a bool", name, argument);
    }
    return truth_argument(argument, value);
}

int
name_argument(const char *function, const char *name, PyObject *argument,
              const char **text)
{
    Py_ssize_t size = 0;
    *text = NULL;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (!PyUnicode_Check(argument)) {
        return refuse_type(function, "a str or None", name, argument);
    }
    *text = PyUnicode_AsUTF8AndSize(argument, &size);
    if (*text == NULL) {
        return -1;
    }
    return strlen(*text) == (size_t)size
               ? 0
               : refuse(PyExc_ValueError,
                        "%s() expects a str without null characters for %s, "
                        "but got %R",
                        function, name, argument);
}

int
handle_argument(const char *function, const char *name, PyObject *argument,
                ps_handle *handle)
{
    if (!PyLong_Check(argument)) {
        return refuse_type(function, "an int", name, argument);
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(argument);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(
                PyExc_ValueError,
                "%s() expects an int from 0 to %llu for %s, but got %S",
                function, (unsigned long long)UINTPTR_MAX, name, argument);
        }
        return -1;
    }
    *handle = (ps_handle)value;
    return 0;
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
    return import_call("ctypes", "c_void_p", "(K)",
                       (unsigned long long)handle);
}
