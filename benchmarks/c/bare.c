/* Methods whose calls take the least time that a call from Python can take.
 * They have no arguments, release the GIL around the driver's functions, and
 * do nothing else. */
#include <Python.h>

/* Each ROW() of driver.c becomes a method that runs the statements once. */
#define ROW(name, ...)                                  \
    static PyObject *name(PyObject *Py_UNUSED(self),    \
                          PyObject *Py_UNUSED(ignored)) \
    {                                                   \
        int failed = 0;                                 \
        Py_BEGIN_ALLOW_THREADS                          \
        __VA_ARGS__;                                    \
        Py_END_ALLOW_THREADS                            \
        if (failed) {                                   \
            PyErr_SetString(PyExc_RuntimeError, #name); \
            return NULL;                                \
        }                                               \
        Py_RETURN_NONE;                                 \
    }

#include "driver.c"

ROW(all_done, failed |= settle())

static PyMethodDef methods[] = {
    {"record", record, METH_NOARGS, NULL},
    {"record_current", record_current, METH_NOARGS, NULL},
    {"record_timed", record_timed, METH_NOARGS, NULL},
    {"event_query", event_query, METH_NOARGS, NULL},
    {"event_synchronize", event_synchronize, METH_NOARGS, NULL},
    {"stream_query", stream_query, METH_NOARGS, NULL},
    {"stream_synchronize", stream_synchronize, METH_NOARGS, NULL},
    {"wait_stream", wait_stream, METH_NOARGS, NULL},
    {"elapsed", elapsed, METH_NOARGS, NULL},
    {"all_done", all_done, METH_NOARGS, NULL},
    {NULL},
};

static struct PyModuleDef bare = {
    PyModuleDef_HEAD_INIT,
    .m_name = "bare",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit_bare(void)
{
    if (prepare() != 0) {
        return PyErr_Format(PyExc_RuntimeError, "there is nothing to measure");
    }
    PyObject *module = PyModule_Create(&bare);
#ifdef Py_GIL_DISABLED
    if (module != NULL) {
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
    }
#endif
    return module;
}
