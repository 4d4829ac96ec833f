/* Declarations for all files of the extension module: the module's state, its
 * types and functions, and the GIL.  Only files in this folder include
 * Python.h.  Each file holds one type or one task, and the header of the same
 * name declares what other files use from it. */
#ifndef PYSTREAMS_PYTHON_MODULE_H
#define PYSTREAMS_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>

#include "../core/refs.h"
#include "../core/device.h"
#include "../core/runtime.h"

/* The module's objects.  Like backends, they belong to the process and are
 * never freed, so that a second import of the module finds the same types. */
extern struct module_state {
    PyTypeObject *device_type;
    PyTypeObject *stream_type;
    PyTypeObject *stream_context_type;
    PyTypeObject *external_stream_type;
    PyTypeObject *cuda_stream_type;
    PyTypeObject *cuda_external_stream_type;
    PyTypeObject *event_type;
    PyTypeObject *cuda_event_type;
    PyTypeObject *buffer_type;
    PyTypeObject *waiter_type;
    PyTypeObject *future_base_type;
    PyTypeObject *future_lock_type;
    PyTypeObject *graph_type;
    PyTypeObject *graph_context_type;
    PyTypeObject *device_context_type;
    PyTypeObject *cuda_device_type;
    PyTypeObject *partition_type;
    /* The package's class StreamFuture and its function read_array_interface.
     * NULL until they are first needed. */
    PyObject *_Atomic future_type;
    PyObject *_Atomic read_array_interface;
    /* The values of Future._state, in the order of enum future_state. */
    PyObject *future_states;
    PyObject *empty_tuple;
    PyObject *accelerator_error;
    PyObject *out_of_memory_error;
    /* Names of attributes. */
    PyObject *str_cuda_stream;
    PyObject *str_end;
    PyObject *str_idx;
    PyObject *str_type;
    PyObject *str_index;
    PyObject *str_dlpack;
    PyObject *str_dlpack_device;
    PyObject *str_dlpack_exchange;
    PyObject *str_array_interface;
    PyObject *str_host_array_interface;
    /* The device type to use if the program specifies none; below 0 until it
     * is first needed.  Changed by replace_default_type. */
    atomic_int default_type;
} module_state;

/* Between these two macros, only one thread at a time accesses the object's
 * fields.  On a free-threaded interpreter this is a critical section; on
 * others the GIL is enough.  The code between the macros must neither run
 * Python code nor release the GIL, because another thread could then access
 * the fields. */
#if PY_VERSION_HEX < 0x030D0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION()         }
#endif

/* Returns the object whose critical section guards the static variables of all
 * files. */
static inline PyObject *
variables_owner(void)
{
    return (PyObject *)module_state.device_type;
}

/* Returns a new reference to the object in a field of `owner`; NULL if the
 * field is NULL.  Another thread may replace the object at the same time. */
static inline PyObject *
reference_get(PyObject *owner, PyObject *const *field)
{
    PyObject *object;
    (void)owner;
    Py_BEGIN_CRITICAL_SECTION(owner);
    object = Py_XNewRef(*field);
    Py_END_CRITICAL_SECTION();
    return object;
}

/* Replace the object in a field of `owner`.  Takes over the caller's reference
 * to `object`. */
static inline void
reference_set(PyObject *owner, PyObject **field, PyObject *object)
{
    PyObject *replaced;
    (void)owner;
    Py_BEGIN_CRITICAL_SECTION(owner);
    replaced = *field;
    *field = object;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(replaced);
}

/* Run a statement with the GIL released. */
#define WITHOUT_GIL(statement) \
    do {                       \
        Py_BEGIN_ALLOW_THREADS \
        statement;             \
        Py_END_ALLOW_THREADS   \
    } while (0)

/* Run a statement that calls a backend and does not block.  `shared` says
 * whether other libraries use the same devices.  If so, they may delay the
 * call, so the GIL is released. */
#define CALL_WITH(shared, statement) \
    do {                             \
        if (shared) {                \
            WITHOUT_GIL(statement);  \
        }                            \
        else {                       \
            statement;               \
        }                            \
    } while (0)

#define CALL_BACKEND(runtime, statement) \
    CALL_WITH(((runtime)->backend->flags & PS_BACKEND_SHARED), statement)

/* A fast PyObject_TypeCheck, for a type whose instances have fields of their
 * own.  Such a type is in the tp_base chain of every subtype, and this chain
 * is shorter than the method resolution order. */
static inline bool
is_instance(PyObject *object, PyTypeObject *type)
{
    PyTypeObject *base = Py_TYPE(object);
    while (base != NULL && base != type) {
        base = base->tp_base;
    }
    return base != NULL;
}

/* Returns a new reference to an attribute of a Python module; NULL with an
 * exception. */
PyObject *import_attribute(const char *module, const char *name);

/* Set the field to `made`, unless another thread has set the field already.
 * Takes over the reference to `made`.  Returns the field's value, borrowed;
 * NULL if `made` is NULL. */
PyObject *set_once(PyObject *_Atomic *field, PyObject *made);

/* If the field is NULL, set it to an attribute of a Python module, as set_once
 * does.  Returns the field's value, borrowed; NULL with an exception. */
PyObject *
import_once(PyObject *_Atomic *field, const char *module, const char *name);

/* Call a function of a Python module.  `format` is a format of Py_BuildValue
 * that makes a tuple of the arguments.  Returns the result, a new reference;
 * NULL with an exception.  import_call_with takes the values as a va_list. */
PyObject *
import_call(const char *module, const char *name, const char *format, ...);
PyObject *import_call_with(const char *module, const char *name,
                           const char *format, va_list values);

/* Drop the result of a call.  Returns -1 if the result is NULL, which means
 * that the call has raised an exception; otherwise 0. */
static inline int
drop_result(PyObject *result)
{
    Py_XDECREF(result);
    return result != NULL ? 0 : -1;
}

/* Returns the object's index in the list, and appends the object first if the
 * list does not have it.  `numbers` is a dict that maps the list's objects to
 * their indices.  On failure, returns -1 with an exception.  Runs no Python
 * code. */
Py_ssize_t number_in(PyObject *list, PyObject *numbers, PyObject *object);

/* Append the item to the list, and return the list.  Takes over the references
 * to both.  If either is NULL or memory runs out, drops both and returns NULL
 * with an exception.  Runs no Python code, except by dropping references. */
PyObject *list_with(PyObject *list, PyObject *item);

/* Clear an object's weak references, in tp_dealloc.  If `list` is NULL, there
 * are none to clear.  But on a free-threaded interpreter another thread may be
 * changing the list, so there the interpreter's function is always called. */
static inline void
clear_weakrefs(PyObject *self, PyObject *list)
{
#ifdef Py_GIL_DISABLED
    (void)list;
#else
    if (list != NULL)
#endif
    {
        PyObject_ClearWeakRefs(self);
    }
}

/* The last step of every tp_dealloc. */
static inline void
object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Returns whether the interpreter is finalizing.  If so, clean-up code must
 * not call devices; it leaks native objects instead. */
static inline bool
is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* ---- Parts of the module ---- */

extern PyType_Spec device_spec, device_context_spec, cuda_device_spec;
extern PyType_Spec stream_spec, external_stream_spec, stream_context_spec;
extern PyType_Spec cuda_stream_spec, cuda_external_stream_spec;
extern PyType_Spec event_spec, cuda_event_spec;
extern PyType_Spec buffer_spec;
extern PyType_Spec waiter_spec, future_spec, future_lock_spec;
extern PyType_Spec graph_spec, graph_context_spec;
extern PyType_Spec partition_spec;

/* The tp_vectorcall functions of the types that have one. */
extern const vectorcallfunc event_call, cuda_event_call, cuda_device_call;

extern PyMethodDef backend_functions[], device_functions[], work_functions[];
extern PyMethodDef current_functions[], dlpack_functions[], trace_functions[];
extern PyMethodDef races_functions[], schedules_functions[];
extern PyMethodDef timeline_functions[], explain_functions[];
extern PyMethodDef buffer_functions[], memory_functions[];
extern PyMethodDef emulation_functions[], attribute_functions[];
extern PyMethodDef place_functions[];
extern PyMethodDef cuda_current_stream_function, cuda_default_stream_function;
extern PyMethodDef get_stream_from_external_function;
extern PyMethodDef cuda_stream_function;

/* A type's specification, for PyType_FromModuleAndSpec.  All types are
 * immutable from Python, so that the interpreter can look up methods without a
 * lock. */
#define TYPE_SPEC(type_name, object, type_flags, type_slots)              \
    {                                                                     \
        .name = (type_name), .basicsize = sizeof(object),                 \
        .flags =                                                          \
            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | (type_flags), \
        .slots = (type_slots),                                            \
    }

/* An entry for a type's table of members, which makes weak references to the
 * type's objects possible. */
#define WEAKREFS(object)                                              \
    {                                                                 \
        "__weaklistoffset__", T_PYSSIZET, offsetof(object, weakrefs), \
            READONLY, NULL                                            \
    }

/* An entry for a table of functions or methods.  `signature` and `text` are
 * for help().  The signature is the parameters, as in "type, /" for a function
 * and ", /, stream=None" for a method.  The text is the docstring. */
#define ENTRY(name, function, flags, signature, text)         \
    {                                                         \
        name, (PyCFunction)(void (*)(void))(function), flags, \
            PyDoc_STR(name "(" signature ")\n--\n\n" text)    \
    }
#define FUNCTION(name, function, flags, signature, text) \
    ENTRY(name, function, flags, "$module, " signature, text)
#define METHOD(name, function, flags, signature, text) \
    ENTRY(name, function, flags, "$self" signature, text)
#define CLASS_METHOD(name, function, flags, signature, text) \
    ENTRY(name, function, (flags) | METH_CLASS, "$type" signature, text)

#endif
