/* What the files of the extension module share.  These files alone include
 * Python.h; each holds one type or one task, and the structs of the types
 * stand here where more than one file needs them. */
#ifndef PYSTREAMS_PYTHON_MODULE_H
#define PYSTREAMS_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "../core/capture.h"
#include "../core/event.h"
#include "../core/refs.h"
#include "../core/device.h"
#include "../core/runtime.h"
#include "../core/stream.h"
#include "../core/thread.h"
#include "../core/trace.h"
#include "../core/work.h"
#include "current.h"

struct module_state {
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
    PyTypeObject *cuda_graph_type;
    PyTypeObject *graph_context_type;
    PyTypeObject *device_context_type;
    PyTypeObject *cuda_device_type;
    /* The package's StreamFuture; NULL before it is needed. */
    PyObject *future_type;
    /* What a Future's _state may be, by its enum future_state. */
    PyObject *future_states;
    PyObject *empty_tuple;
    PyObject *accelerator_error;
    PyObject *out_of_memory_error;
    PyObject *str_cuda_stream;
    PyObject *str_idx;
    PyObject *str_dlpack;
    PyObject *str_dlpack_device;
    PyObject *str_array_interface;
    /* The device type chosen when none is given; -1 until first asked. */
    int default_type;
};

/* Why there is no CUDA where its backend is not registered. */
#define NO_CUDA_BACKEND "this build of pystreams has no CUDA backend"

/* Run a statement with the GIL released. */
#define WITHOUT_GIL(statement) \
    do {                       \
        Py_BEGIN_ALLOW_THREADS \
        statement;             \
        Py_END_ALLOW_THREADS   \
    } while (0)

/* Run a statement that calls a backend and does not block, unless it is a
 * shared one and another library makes it. */
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

extern struct PyModuleDef pystreams_module;

static inline struct module_state *
state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

/* The state for a type of the module's or a subclass.  By tp_base and not by
 * tp_mro, which is gone when a subclass dies in one cycle with an instance. */
static inline struct module_state *
state_of_type(PyTypeObject *type)
{
    for (;; type = type->tp_base) {
        PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
        if (module != NULL && PyModule_GetDef(module) == &pystreams_module) {
            return PyModule_GetState(module);
        }
    }
}

static inline struct module_state *
state_of(PyObject *self)
{
    return state_of_type(Py_TYPE(self));
}

/* Whether the object is of the type that has the methods, or a subclass. */
static inline bool
has_methods(PyObject *object, const PyMethodDef *methods)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type != NULL && type->tp_methods != methods) {
        type = type->tp_base;
    }
    return type != NULL;
}

extern PyMethodDef stream_methods[], event_methods[];
#define is_stream(object) has_methods((object), stream_methods)
#define is_event(object)  has_methods((object), event_methods)

/* Cleaning up calls no device any more: what is left is leaked. */
static inline bool
is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* ---- device.c ---- */

/* A device as users name it; index is -1 where none is given. */
struct device_name {
    int type;
    int index;
};

extern PyType_Spec device_spec;
PyObject *device_new(struct module_state *state, int type, int index);
struct device_name device_name_of(PyObject *device);

/* The name of a device type, or "unknown". */
const char *device_type_name(int type);

/* -1 with RuntimeError unless text is a device string such as "cuda:1". */
int device_name_parse(PyObject *text, struct device_name *name);

/* ---- device_context.c, stream_context.c ---- */

extern PyType_Spec device_context_spec, cuda_device_spec, stream_context_spec;
extern PyMethodDef cuda_stream_function;
extern const vectorcallfunc cuda_device_call;

/* Make the device current; its index before, or -1 with an exception. */
int device_switch(struct module_state *state, struct ps_device *device);

/* ---- errors.c ---- */

/* A status of ours: a Python exception is set already. */
enum { PS_RAISED = -1 };

/* A runtime's device type as torch's messages have it: "CUDA". */
struct shouted_name {
    char chars[32];
};
struct shouted_name shout(struct ps_runtime *runtime);

/* Raise what the status of the operation means, nothing for PS_SUCCESS; always
 * returns NULL. */
PyObject *raise_status(struct module_state *state, struct ps_runtime *runtime,
                       const char *operation, ps_status status);

/* What a query gives, once those who wait for the GIL had their turn where the
 * answer is no: who asks again may be waiting for them. */
PyObject *bool_or_raise(PyObject *self, struct ps_runtime *runtime,
                        const char *operation, ps_status status);

/* None for PS_SUCCESS, else as raise_status. */
PyObject *none_or_raise(struct module_state *state, struct ps_runtime *runtime,
                        const char *operation, ps_status status);

/* Raise RuntimeError for a runtime that shows no devices, with the reason. */
void raise_unavailable(struct ps_runtime *runtime, ps_status status);

/* Raise NotImplementedError for a member the backend lacks. */
PyObject *raise_absent(struct ps_runtime *runtime, const char *feature);

/* Report a clean-up that failed, "dropping an event", keeping the pending
 * exception.  A fault that an exception reported is not reported again. */
void report_cleanup(struct module_state *state, struct ps_runtime *runtime,
                    const char *operation, ps_status status);
void report_cleanup_on(struct module_state *state, struct ps_device *device,
                       const char *operation, ps_status status);
/* Give the exception to sys.unraisablehook, with what was being done. */
void report_ignored(const char *doing);

/* ---- args.c ---- */

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

/* The runtime of a device type; NULL with an exception where no backend is
 * registered for it. */
struct ps_runtime *find_runtime(long type);

/* ps_runtime_devices with the GIL released where that may block. */
ps_status count_devices(struct ps_runtime *runtime, int *count);

/* As find_runtime, for a runtime that shows devices and may be used; NULL with
 * an exception that tells why not. */
struct ps_runtime *use_runtime(struct module_state *state, int type);

/* The runtime used when no device is given; NULL with an exception. */
struct ps_runtime *default_runtime(struct module_state *state);

/* What a device argument names.  type: the device type that is meant by an
 * integer and by None, and the only one allowed; -1 for the default and any.
 * NULL with an exception. */
struct ps_device *
device_argument(struct module_state *state, int type, PyObject *argument);

/* The device of a type and an index, -1 for the current one; NULL with an
 * exception. */
struct ps_device *
device_at(struct module_state *state, struct device_name name);

/* As device_argument, without using the device: type and index, -1 for the
 * current one.  -1 with an exception. */
int device_name_argument(struct module_state *state, int type,
                         PyObject *argument, struct device_name *name);

/* A new reference to the stream an argument names: a Stream, an object with
 * __cuda_stream__, or for NULL and None the current stream of the type's
 * current device.  NULL with an exception. */
struct ps_stream *
stream_argument(struct module_state *state, int type, PyObject *argument);

/* As stream_argument, for an argument that must be given. */
struct ps_stream *required_stream_argument(struct module_state *state,
                                           int type, PyObject *argument);

struct stream_use;

/* Likewise, as uses of the streams, for a method of self; -1 with an
 * exception. */
int stream_use_argument(PyObject *self, int type, PyObject *argument,
                        struct stream_use *use);
int required_stream_use(PyObject *self, PyObject *argument,
                        struct stream_use *use);

/* As stream_argument; *stream is NULL for NULL and None.  -1 with an
 * exception. */
int optional_stream_argument(struct module_state *state, PyObject *argument,
                             struct ps_stream **stream);

/* The index of a device; -1 with an exception. */
int index_argument(PyObject *argument, int *index);

/* A handle as people read it: "0x7f01". */
struct handle_text {
    char chars[24];
};
struct handle_text handle_text(ps_handle handle);

/* A handle as a ctypes.c_void_p. */
PyObject *ctypes_pointer(ps_handle handle);

/* An integer that may be a handle; -1 with an exception. */
int handle_argument(const char *what, PyObject *argument, ps_handle *handle);

/* ---- stream.c ---- */

typedef struct {
    PyObject ob_base;
    /* NULL once closed. */
    struct ps_stream *stream;
    /* Of the stream, also when closed. */
    struct ps_device *device;
    ps_handle handle;
    /* Calls that are at work on the stream. */
    unsigned uses;
    PyObject *weakrefs;
} StreamObject;

extern PyType_Spec stream_spec;

/* An object of the type (NULL: the type for the device) for a stream whose
 * reference it takes over, also on failure. */
PyObject *stream_wrap(struct module_state *state, PyTypeObject *type,
                      struct ps_stream *stream);

/* The stream of an open Stream: borrowed; NULL with ValueError if closed. */
struct ps_stream *stream_of(PyObject *self);

/* A stream that a call works on, also while the GIL is released and another
 * thread closes the object.  The object counts its uses, under the GIL: a
 * reference of each call's own would be counted twice more, atomically. */
struct stream_use {
    struct ps_stream *stream;
    StreamObject *object; /* NULL where the use has a reference */
};

/* Of an open Stream, which the caller keeps alive; -1 with ValueError where it
 * is closed.  The end, for a method of self. */
int stream_use(PyObject *stream, struct stream_use *use);
void stream_use_end(PyObject *self, struct stream_use *use);

/* What Stream.query asks. */
ps_status stream_query(struct ps_stream *stream);

/* Drop a reference, or none, from Python code, reporting a failure. */
void stream_release(struct module_state *state, struct ps_stream *stream);

/* What Stream.wait_stream does, for streams the caller holds; -1 with an
 * exception. */
int stream_wait_stream(struct module_state *state, struct ps_stream *stream,
                       struct ps_stream *other);

/* Wait for room in a full queue, with the GIL released and open to signals.
 * PS_SUCCESS: try again; else a status to raise. */
ps_status wait_for_room(struct ps_stream *stream);

/* status = call, an enqueueing function of core, tried until there is room in
 * the stream's queue. */
#define ENQUEUE(status, stream, call)                             \
    do {                                                          \
        CALL_BACKEND((stream)->device->runtime, status = (call)); \
    } while (has_room_again(stream, &status))

/* Likewise, for a call that may block. */
#define ENQUEUE_WITHOUT_GIL(status, stream, call) \
    do {                                          \
        WITHOUT_GIL(status = (call));             \
    } while (has_room_again(stream, &status))

/* Whether the caller should retry, as a full queue has room again; otherwise
 * *status holds the error to raise. */
static inline bool
has_room_again(struct ps_stream *stream, ps_status *status)
{
    if (*status != PS_ERROR_QUEUE_FULL) {
        return false;
    }
    *status = wait_for_room(stream);
    return *status == PS_SUCCESS;
}

/* What repr gives, with the name of the handle there. */
PyObject *stream_repr(PyObject *self, const char *handle_name);

PyObject *Stream_get_handle(PyObject *self, void *closure);
/* Types derived of ours name it, too: Python's way there is longer. */
void Stream_dealloc(PyObject *self);

/* ---- stream_new.c ---- */

/* What the constructors of Stream and cuda.Stream do; format is that of
 * PyArg_ParseTupleAndKeywords, device_type as in device_argument. */
PyObject *
stream_construct(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                 const char *format, int device_type);

/* ---- external_stream.c, cuda_stream.c ---- */

extern PyType_Spec external_stream_spec, cuda_external_stream_spec;
extern PyType_Spec cuda_stream_spec;

/* A new reference to a stream that owner (may be NULL) owns and that keeps it
 * alive.  Where the backend can tell the handle's device it is that one;
 * strict: ValueError where that is not the device given. */
struct ps_stream *
stream_from_handle(struct module_state *state, struct ps_device *device,
                   bool strict, ps_handle handle, PyObject *owner);

/* What __cuda_stream__ of an object says: 1 with a handle, 0 where it has
 * none, -1 with an exception. */
int cuda_stream_protocol(struct module_state *state, PyObject *object,
                         ps_handle *handle);

/* ---- event.c, event_new.c, event_ipc.c, cuda_event.c ---- */

typedef struct {
    PyObject ob_base;
    struct ps_event *event;
    PyObject *weakrefs;
} EventObject;

extern PyType_Spec event_spec, cuda_event_spec;
extern const vectorcallfunc event_call, cuda_event_call;
PyObject *Event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void Event_dealloc(PyObject *self);

/* The flags that a constructor's four switches ask for, NULL for one that was
 * not given.  -1 with TypeError for what is no bool. */
int event_flags(PyObject *const *switches, unsigned *flags);

/* An event of the type for the runtime that was never recorded. */
PyObject *event_new(struct module_state *state, PyTypeObject *type,
                    struct ps_runtime *runtime, unsigned flags);

/* An object of the type for an event whose reference it takes over, also on
 * failure. */
PyObject *event_wrap(PyTypeObject *type, struct ps_event *event);

PyObject *Event_ipc_handle(PyObject *self, PyObject *ignored);
PyObject *
Event_from_ipc_handle(PyObject *cls, PyObject *args, PyObject *kwargs);
PyObject *Event_reduce(PyObject *self, PyObject *ignored);
PyObject *Event_setstate(PyObject *self, PyObject *blocking);

/* What Event.record and Event.wait do, for a stream the caller holds and for a
 * method of self; -1 with an exception. */
int event_record_on(PyObject *self, struct ps_event *event,
                    struct ps_stream *stream);
int event_wait_on(PyObject *self, struct ps_event *event,
                  struct ps_stream *stream);

/* ---- graph.c, graph_context.c ---- */

extern PyType_Spec graph_spec, cuda_graph_spec, graph_context_spec;
extern PyMethodDef graph_functions[];

/* ---- buffer_new.c ---- */

/* Give back what was in use by work that was waited for.  Keeps a pending
 * exception. */
void memory_settle(struct module_state *state, struct ps_runtime *runtime);

/* ---- submit.c ---- */

PyObject *Stream_submit(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* Whether the caller is a callable that the stream now waits for. */
bool is_own_stream(struct ps_stream *stream);

/* Before a wait, which after a callable's end lets another thread run those
 * behind it.  -1 with RuntimeError in one that would wait for itself. */
void let_others_run(void);
struct work;
int check_may_wait(const struct work *work);

/* Start no more callables, cancel those that have not started, and wait for
 * those that run: whether all ended. */
bool stop_jobs(int64_t timeout_ns);

/* ---- backends.c, device_functions.c, work_functions.c ---- */

/* Register the backends of this library, once in a process; -1 with an
 * exception. */
int register_backends(void);

#define FUNCTION(name, function, flags, signature, text)            \
    {                                                               \
        name, (PyCFunction)(void (*)(void))(function), flags,       \
            PyDoc_STR(name "($module, " signature ")\n--\n\n" text) \
    }

extern PyMethodDef backend_functions[], device_functions[], work_functions[];

/* The device of arguments that are a type and optionally a device; NULL with
 * an exception. */
struct ps_device *
parse_device(PyObject *module, PyObject *args, const char *format);

/* ---- trace.c ---- */

extern PyMethodDef trace_functions[];

/* The hook for ps_trace_set_hook. */
void trace_hook(enum ps_trace_kind kind, struct ps_device *device,
                uintptr_t first, uintptr_t second);

/* The argument if it is a Stream, else stream_argument's. */
PyObject *
as_stream_object(struct module_state *state, int type, PyObject *argument);

#include "waiting.h"

#endif
