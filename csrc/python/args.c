/* The arguments of calls: which of them were given, and those that are plain
 * values. */
#include "args.h"

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
