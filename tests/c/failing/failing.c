/* An extension module that registers the device type "failing".  Its backend
 * is the CPU engine, but calls to some members fail when a test says so. */
#include <Python.h>

#include <pystreams/faults.h>

#include "../../../csrc/backends/backends.h"

/* ---- Members ---- */

enum { MEMORY = 64 << 20 };

static struct ps_backend engine;
static const char *member = "";
static ps_status failure;
static int times;
static int calls;

static int
member_fails(const char *name)
{
    if (strcmp(member, name) != 0) {
        return 0;
    }
    calls++;
    return times > 0 && times-- > 0;
}

#define FAILING(name, parameters, arguments)                          \
    static ps_status failing_##name parameters                        \
    {                                                                 \
        return member_fails(#name) ? failure : engine.name arguments; \
    }

FAILING(event_create,
        (const struct ps_backend *backend, int device, unsigned flags,
         ps_handle *event),
        (backend, device, flags, event))
FAILING(event_query,
        (const struct ps_backend *backend, int device, ps_handle event),
        (backend, device, event))
FAILING(memory_free,
        (const struct ps_backend *backend, int device, ps_handle stream,
         void *data),
        (backend, device, stream, data))
FAILING(stream_destroy,
        (const struct ps_backend *backend, int device, ps_handle stream),
        (backend, device, stream))
FAILING(event_destroy,
        (const struct ps_backend *backend, int device, ps_handle event),
        (backend, device, event))
FAILING(graph_destroy,
        (const struct ps_backend *backend, int device, ps_handle graph),
        (backend, device, graph))
FAILING(graph_instantiate,
        (const struct ps_backend *backend, int device, ps_handle graph,
         ps_handle *executable),
        (backend, device, graph, executable))
FAILING(executable_destroy,
        (const struct ps_backend *backend, int device, ps_handle executable),
        (backend, device, executable))

/* ---- The module ---- */

static PyObject *
fail(PyObject *module, PyObject *args)
{
    (void)module;
    calls = 0;
    return PyArg_ParseTuple(args, "sii", &member, &failure, &times)
               ? Py_NewRef(Py_None)
               : NULL;
}

/* Returns how often the member that was named in the last call to fail() has
 * been called since that call. */
static PyObject *
called(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyLong_FromLong(calls);
}

static PyMethodDef functions[] = {
    {"fail", fail, METH_VARARGS, NULL},
    {"called", called, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "failing",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_failing(void)
{
    struct ps_backend *table =
        (struct ps_backend *)ps_cpu_backend("failing", 20, 1, MEMORY);
    engine = *table;
    table->event_create = failing_event_create;
    table->event_query = failing_event_query;
    table->memory_free = failing_memory_free;
    table->stream_destroy = failing_stream_destroy;
    table->event_destroy = failing_event_destroy;
    table->graph_destroy = failing_graph_destroy;
    table->graph_instantiate = failing_graph_instantiate;
    table->executable_destroy = failing_executable_destroy;
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module != NULL) {
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
    }
#endif
    PyObject *capsule = PyCapsule_New(table, PS_CAPSULE_NAME, NULL);
    PyObject *faults =
        PyCapsule_New((void *)&ps_cpu_faults, PS_FAULTS_CAPSULE_NAME, NULL);
    PyObject *pystreams = PyImport_ImportModule("pystreams");
    PyObject *done = pystreams != NULL
                         ? PyObject_CallMethod(pystreams, "register_backend",
                                               "NN", capsule, faults)
                         : NULL;
    Py_XDECREF(pystreams);
    if (done == NULL) {
        Py_CLEAR(module);
    }
    Py_XDECREF(done);
    return module;
}
