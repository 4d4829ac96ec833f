/* The module `pystreams._C`: its types, its exceptions and its functions.
 * Importing it starts no thread and touches no driver. */
#include "module.h"

#include "backends.h"
#include "trace.h"

/* name: NULL for a type that is not an attribute of the module. */
static PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base,
         const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    if (type != NULL && name != NULL &&
        PyModule_AddObjectRef(module, name, type) < 0) {
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

static int
add_types(PyObject *module, struct module_state *state)
{
    const struct {
        PyTypeObject **type;
        PyType_Spec *spec;
        PyTypeObject **base;
        const char *name;
    } types[] = {
        {&state->device_type, &device_spec, NULL, "device"},
        {&state->stream_type, &stream_spec, NULL, "Stream"},
        {&state->external_stream_type, &external_stream_spec,
         &state->stream_type, "ExternalStream"},
        {&state->cuda_stream_type, &cuda_stream_spec, &state->stream_type,
         "CudaStream"},
        {&state->cuda_external_stream_type, &cuda_external_stream_spec,
         &state->cuda_stream_type, "CudaExternalStream"},
        {&state->stream_context_type, &stream_context_spec, NULL,
         "StreamContext"},
        {&state->event_type, &event_spec, NULL, "Event"},
        {&state->cuda_event_type, &cuda_event_spec, &state->event_type,
         "CudaEvent"},
        {&state->buffer_type, &buffer_spec, NULL, "Buffer"},
        {&state->waiter_type, &waiter_spec, NULL, "Waiter"},
        {&state->future_base_type, &future_spec, NULL, "FutureBase"},
        {&state->future_lock_type, &future_lock_spec, NULL, NULL},
        {&state->graph_type, &graph_spec, NULL, "Graph"},
        {&state->graph_context_type, &graph_context_spec,
         &state->stream_context_type, "GraphContext"},
        {&state->device_context_type, &device_context_spec, NULL,
         "DeviceContext"},
        {&state->cuda_device_type, &cuda_device_spec,
         &state->device_context_type, "CudaDevice"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        *types[i].type =
            add_type(module, types[i].spec,
                     types[i].base ? *types[i].base : NULL, types[i].name);
        if (*types[i].type == NULL) {
            return -1;
        }
    }
    /* A slot for it exists only from Python 3.14 on. */
    state->event_type->tp_vectorcall = event_call;
    state->cuda_event_type->tp_vectorcall = cuda_event_call;
    state->cuda_device_type->tp_vectorcall = cuda_device_call;
    return 0;
}

static int
add_exceptions(PyObject *module, struct module_state *state)
{
    state->accelerator_error = PyErr_NewExceptionWithDoc(
        "pystreams.AcceleratorError",
        "A device operation failed; error_code is its status (cudaError_t), "
        "or None for an\nexception that no operation raised.",
        PyExc_RuntimeError, NULL);
    if (state->accelerator_error == NULL ||
        PyObject_SetAttrString(state->accelerator_error, "error_code",
                               Py_None) < 0) {
        return -1;
    }
    PyObject *bases =
        PyTuple_Pack(2, state->accelerator_error, PyExc_MemoryError);
    if (bases == NULL) {
        return -1;
    }
    state->out_of_memory_error = PyErr_NewExceptionWithDoc(
        "pystreams.OutOfMemoryError",
        "A device or the host does not have enough memory.", bases, NULL);
    Py_DECREF(bases);
    if (state->out_of_memory_error == NULL) {
        return -1;
    }
    if (PyModule_AddObjectRef(module, "AcceleratorError",
                              state->accelerator_error) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "OutOfMemoryError",
                                 state->out_of_memory_error);
}

/* The names of attributes that Python objects may have. */
static int
intern_names(struct module_state *state)
{
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&state->str_cuda_stream, "__cuda_stream__"},
        {&state->str_end, "_end"},
        {&state->str_idx, "idx"},
        {&state->str_dlpack, "__dlpack__"},
        {&state->str_dlpack_device, "__dlpack_device__"},
        {&state->str_array_interface, "__cuda_array_interface__"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Add a function of the package's cuda module, under another name. */
static int
add_cuda_function(PyObject *module, PyMethodDef *method, const char *name)
{
    PyObject *home = PyUnicode_FromString("pystreams.cuda");
    PyObject *function =
        home != NULL ? PyCFunction_NewEx(method, module, home) : NULL;
    int result = PyModule_AddObjectRef(module, name, function);
    Py_XDECREF(function);
    Py_XDECREF(home);
    return result;
}

/* Backends and their devices belong to the process, and callables are called
 * in the main interpreter. */
static int
check_interpreter(void)
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError,
                    "pystreams can be imported in the main interpreter only: "
                    "its streams, its memory and the threads that run "
                    "callables belong to the process; use it there, or in a "
                    "process of its own");
    return -1;
}

static int
module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    if (check_interpreter() < 0) {
        return -1;
    }
    state->default_type = -1;
    state->empty_tuple = PyTuple_New(0);
    state->future_states = Py_BuildValue("(ssss)", "PENDING", "RUNNING",
                                         "CANCELLED_AND_NOTIFIED", "FINISHED");
    if (state->empty_tuple == NULL || state->future_states == NULL ||
        intern_names(state) < 0 || add_types(module, state) < 0 ||
        add_exceptions(module, state) < 0 ||
        PyModule_AddFunctions(module, backend_functions) < 0 ||
        PyModule_AddFunctions(module, current_functions) < 0 ||
        add_cuda_function(module, &cuda_current_stream_function,
                          "cuda_current_stream") < 0 ||
        add_cuda_function(module, &cuda_stream_function, "cuda_stream") < 0 ||
        PyModule_AddFunctions(module, dlpack_functions) < 0 ||
        PyModule_AddFunctions(module, work_functions) < 0 ||
        PyModule_AddFunctions(module, trace_functions) < 0 ||
        PyModule_AddFunctions(module, races_functions) < 0) {
        return -1;
    }
    ps_trace_set_hook(trace_hook);
    return register_backends();
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = PyModule_GetState(module);
#define VISIT(name) Py_VISIT(state->name);
    MODULE_TYPES(VISIT)
    MODULE_OBJECTS(VISIT)
#undef VISIT
    return 0;
}

static int
module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
#define CLEAR(name) Py_CLEAR(state->name);
    MODULE_TYPES(CLEAR)
    MODULE_OBJECTS(CLEAR)
#undef CLEAR
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    /* The same check, before the module is created. */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    /* The GIL guards the fields of objects against close() on another thread,
     * and the counts of callables; importing the module enables it in a
     * free-threaded interpreter. */
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

PyDoc_STRVAR(module_doc,
             "The C types and functions that the package is built on.");

struct PyModuleDef pystreams_module = {
    PyModuleDef_HEAD_INIT,         .m_name = "pystreams._C",
    .m_doc = module_doc,           .m_size = sizeof(struct module_state),
    .m_methods = device_functions, .m_slots = module_slots,
    .m_traverse = module_traverse, .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__C(void)
{
    return PyModuleDef_Init(&pystreams_module);
}
