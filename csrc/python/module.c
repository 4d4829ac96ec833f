/* The module `pystreams._C`: its types, its exceptions and its functions.
 * Importing it starts no thread and touches no driver. */
#include "module.h"

#include "dlpack.h"
#include "errors.h"
#include "trace.h"

struct module_state module_state = {.default_type = -1};

PyObject *
import_attribute(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *attribute =
        module != NULL ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return attribute;
}

PyObject *
set_once(PyObject *_Atomic *field, PyObject *made)
{
    PyObject *known = NULL;
    if (made != NULL && atomic_compare_exchange_strong(field, &known, made)) {
        return made;
    }
    Py_XDECREF(made);
    return known;
}

PyObject *
import_once(PyObject *_Atomic *field, const char *module, const char *name)
{
    PyObject *known = *field;
    return known != NULL ? known
                         : set_once(field, import_attribute(module, name));
}

PyObject *
import_call(const char *module, const char *name, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *result = import_call_with(module, name, format, values);
    va_end(values);
    return result;
}

PyObject *
import_call_with(const char *module, const char *name, const char *format,
                 va_list values)
{
    /* Build the arguments first: this takes over references in `values`, so it
     * must happen even if the import fails. */
    PyObject *args = Py_VaBuildValue(format, values), *result = NULL;
    PyObject *function = args != NULL ? import_attribute(module, name) : NULL;
    if (function != NULL) {
        result = PyObject_CallObject(function, args);
    }
    Py_XDECREF(args);
    Py_XDECREF(function);
    return result;
}

Py_ssize_t
number_in(PyObject *list, PyObject *numbers, PyObject *object)
{
    PyObject *known = PyDict_GetItemWithError(numbers, object);
    if (known != NULL || PyErr_Occurred()) {
        return known != NULL ? PyLong_AsSsize_t(known) : -1;
    }
    Py_ssize_t number = PyList_GET_SIZE(list);
    PyObject *made = PyLong_FromSsize_t(number);
    if (made == NULL || PyList_Append(list, object) < 0 ||
        PyDict_SetItem(numbers, object, made) < 0) {
        number = -1;
    }
    Py_XDECREF(made);
    return number;
}

PyObject *
list_with(PyObject *list, PyObject *item)
{
    if (list != NULL && (item == NULL || PyList_Append(list, item) < 0)) {
        Py_CLEAR(list);
    }
    Py_XDECREF(item);
    return list;
}

static int
add_types(PyObject *module)
{
    struct module_state *state = &module_state;
    /* In `name`, NULL means that the type is not an attribute of the
     * module. */
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
        {&state->partition_type, &partition_spec, NULL, "Partition"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        PyTypeObject **type = types[i].type, **base = types[i].base;
        if (*type == NULL) {
            *type = (PyTypeObject *)PyType_FromModuleAndSpec(
                module, types[i].spec,
                base != NULL ? (PyObject *)*base : NULL);
        }
        if (*type == NULL || (types[i].name != NULL &&
                              PyModule_AddObjectRef(module, types[i].name,
                                                    (PyObject *)*type) < 0)) {
            return -1;
        }
    }
    if (state->event_type->tp_vectorcall == NULL) {
        /* Before Python 3.14, a type's specification cannot set
         * tp_vectorcall. */
        state->event_type->tp_vectorcall = event_call;
        state->cuda_event_type->tp_vectorcall = cuda_event_call;
        state->cuda_device_type->tp_vectorcall = cuda_device_call;
    }
    return 0;
}

/* Add one of the package's exceptions to the module.  Creates it if it does
 * not exist yet.  On failure, returns -1 with an exception. */
static int
add_exception(PyObject *module, const char *name, const char *doc,
              PyObject *bases, PyObject **type)
{
    char full_name[64];
    snprintf(full_name, sizeof(full_name), "pystreams.%s", name);
    if (*type == NULL) {
        *type = PyErr_NewExceptionWithDoc(full_name, doc, bases, NULL);
    }
    return *type != NULL ? PyModule_AddObjectRef(module, name, *type) : -1;
}

static int
add_exceptions(PyObject *module)
{
    struct module_state *state = &module_state;
    if (add_exception(module, "AcceleratorError",
                      "A device operation failed; error_code is its status "
                      "(cudaError_t), or None for an\nexception that no "
                      "operation raised.",
                      PyExc_RuntimeError, &state->accelerator_error) < 0 ||
        PyObject_SetAttrString(state->accelerator_error, "error_code",
                               Py_None) < 0) {
        return -1;
    }
    PyObject *bases =
        PyTuple_Pack(2, state->accelerator_error, PyExc_MemoryError);
    int result =
        bases != NULL
            ? add_exception(module, "OutOfMemoryError",
                            "A device or the host does not have enough "
                            "memory.",
                            bases, &state->out_of_memory_error)
            : -1;
    Py_XDECREF(bases);
    return result;
}

/* Create the constants.  On failure, returns -1 with an exception. */
static int
make_constants(void)
{
    struct module_state *state = &module_state;
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&state->str_cuda_stream, "__cuda_stream__"},
        {&state->str_end, "_end"},
        {&state->str_idx, "idx"},
        {&state->str_type, "type"},
        {&state->str_index, "index"},
        {&state->str_dlpack, "__dlpack__"},
        {&state->str_dlpack_device, "__dlpack_device__"},
        {&state->str_dlpack_exchange, "__dlpack_c_exchange_api__"},
        {&state->str_array_interface, "__cuda_array_interface__"},
        {&state->str_host_array_interface, "__array_interface__"},
    };
    /* If an earlier import has created the constants, keep them, because its
     * objects still use them. */
    if (state->future_states != NULL) {
        return 0;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        Py_XSETREF(*names[i].name, PyUnicode_InternFromString(names[i].text));
        if (*names[i].name == NULL) {
            return -1;
        }
    }
    Py_XSETREF(state->empty_tuple, PyTuple_New(0));
    if (state->empty_tuple != NULL) {
        state->future_states =
            Py_BuildValue("(ssss)", "PENDING", "RUNNING",
                          "CANCELLED_AND_NOTIFIED", "FINISHED");
    }
    return state->future_states != NULL ? 0 : -1;
}

/* Add a function to the module under this name.  Programs access the function
 * through the package's module `cuda`, so its __module__ is
 * "pystreams.cuda". */
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

/* Refuse all interpreters except the main one, because backends and devices
 * belong to the process, and callables are called in the main interpreter. */
static int
check_interpreter(void)
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        return 0;
    }
    return refuse(
        PyExc_ImportError,
        "pystreams can be imported in the main interpreter only: its streams, "
        "its memory and the threads that run callables belong to the process; "
        "use it there, or in a process of its own");
}

static int
module_exec(PyObject *module)
{
    if (check_interpreter() < 0 || make_constants() < 0 ||
        add_types(module) < 0 ||
        dlpack_add_exchange(module_state.buffer_type) < 0 ||
        add_exceptions(module) < 0 ||
        PyModule_AddFunctions(module, backend_functions) < 0 ||
        PyModule_AddFunctions(module, current_functions) < 0 ||
        add_cuda_function(module, &cuda_current_stream_function,
                          "cuda_current_stream") < 0 ||
        add_cuda_function(module, &cuda_default_stream_function,
                          "cuda_default_stream") < 0 ||
        add_cuda_function(module, &cuda_stream_function, "cuda_stream") < 0 ||
        add_cuda_function(module, &get_stream_from_external_function,
                          "get_stream_from_external") < 0 ||
        PyModule_AddFunctions(module, buffer_functions) < 0 ||
        PyModule_AddFunctions(module, memory_functions) < 0 ||
        PyModule_AddFunctions(module, emulation_functions) < 0 ||
        PyModule_AddFunctions(module, attribute_functions) < 0 ||
        PyModule_AddFunctions(module, dlpack_functions) < 0 ||
        PyModule_AddFunctions(module, work_functions) < 0 ||
        PyModule_AddFunctions(module, trace_functions) < 0 ||
        PyModule_AddFunctions(module, races_functions) < 0 ||
        PyModule_AddFunctions(module, schedules_functions) < 0 ||
        PyModule_AddFunctions(module, timeline_functions) < 0 ||
        PyModule_AddFunctions(module, explain_functions) < 0 ||
        PyModule_AddFunctions(module, place_functions) < 0) {
        return -1;
    }
    ps_trace_set_hook(trace_hook);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    /* Declare that all interpreters are supported, so that check_interpreter
     * can refuse the others and give the reason.  If the import machinery
     * refused them, the error would not give it. */
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

PyDoc_STRVAR(module_doc,
             "The C types and functions that the package is built on.");

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,   .m_name = "pystreams._C",
    .m_doc = module_doc,     .m_methods = device_functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__C(void)
{
    return PyModuleDef_Init(&module_definition);
}
