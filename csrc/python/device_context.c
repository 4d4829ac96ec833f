/* The types `DeviceContext` and `cuda.device`: context managers that make a
 * device current.
 *
 * Each object stores, for each thread, which device to restore.  So an object
 * can be entered again before it is left, and by several threads at once.
 * Methods access the fields only in critical sections. */
#include "module.h"

#include <limits.h>

#include "args.h"
#include "backends.h"
#include "device.h"
#include "errors.h"

/* A call to __enter__ that __exit__ has not undone yet. */
struct entry {
    struct entry *earlier;
    unsigned long thread;
    int previous;
};

typedef struct {
    PyObject ob_base;
    /* The device to make current.  Its index is -1 if __enter__ must change
     * nothing. */
    struct device_name name;
    /* The attribute `idx`: an int or None; NULL before __init__. */
    PyObject *idx;
    int prev_idx;
    /* A list of entries, the latest first. */
    struct entry *entries;
} ContextObject;

static ContextObject *
as_context(PyObject *self)
{
    return (ContextObject *)self;
}

/* Make the device current.  *previous becomes the index of the device that was
 * current before.  If name.index is negative, changes nothing, and *previous
 * becomes -1.  On failure, returns -1 with an exception. */
static int
exchange(struct device_name name, int *previous)
{
    *previous = -1;
    if (name.index < 0) {
        return 0;
    }
    struct ps_device *device = device_at("device", name);
    if (device == NULL) {
        return -1;
    }
    *previous = device_switch(device);
    return *previous < 0 ? -1 : 0;
}

/* Make the device `name`, which exchange() has replaced, current again.
 * Returns None; NULL with an exception. */
static PyObject *
restore(struct device_name name)
{
    if (name.index < 0) {
        Py_RETURN_NONE;
    }
    struct ps_device *device = device_at("device", name);
    if (device == NULL) {
        return NULL;
    }
    ps_status status = ps_runtime_restore_device(device->runtime, name.index);
    return none_or_raise(device->runtime, "restoring the device", status);
}

/* Set the fields from the arguments.  Takes over the reference to idx, even on
 * failure. */
static int
fill(PyObject *op, int type, PyObject *idx)
{
    ContextObject *self = as_context(op);
    if (idx == NULL) {
        return -1;
    }
    int overflow = 0;
    long index =
        idx != Py_None ? PyLong_AsLongAndOverflow(idx, &overflow) : -1;
    if (overflow > 0 || index > INT_MAX) {
        PyErr_Format(PyExc_OverflowError,
                     "Device index must be at most %d, got %R", INT_MAX, idx);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(idx);
        return -1;
    }
    PyObject *replaced;
    Py_BEGIN_CRITICAL_SECTION(op);
    self->name.type = type;
    self->name.index = index < 0 ? -1 : (int)index;
    self->prev_idx = -1;
    replaced = self->idx;
    self->idx = idx;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(replaced);
    return 0;
}

static int
DeviceContext_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "DeviceContext", 2, 2, {"type", "idx"}};
    PyObject *values[2];
    int type;
    if (parse_tuple(&signature, args, kwargs, values) < 0 ||
        clamped_argument("DeviceContext", "type", values[0], &type) < 0) {
        return -1;
    }
    return fill(self, type, Py_NewRef(values[1]));
}

/* Returns the index of the CUDA device that the argument names, as a Python
 * int.  The argument itself must not be an int. */
static PyObject *
index_of(PyObject *argument)
{
    if (find_runtime(PS_DEVICE_CUDA) == NULL) {
        return NULL;
    }
    struct ps_device *device =
        device_argument("device", PS_DEVICE_CUDA, argument);
    return device != NULL ? PyLong_FromLong(device->index) : NULL;
}

static int
fill_cuda(PyObject *self, PyObject *argument)
{
    bool is_index = PyLong_Check(argument) && !PyBool_Check(argument);
    return fill(self, PS_DEVICE_CUDA,
                is_index ? Py_NewRef(argument) : index_of(argument));
}

static PyObject *
construct(PyTypeObject *type, PyObject **values)
{
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && fill_cuda(self, values[0]) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

static const struct constructor cuda_constructor = {
    .signature = &(const struct signature){"device", 1, 1, {"device"}},
    .construct = construct,
};

static int
CudaDevice_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *argument;
    return parse_tuple(cuda_constructor.signature, args, kwargs, &argument) ==
                   0
               ? fill_cuda(self, argument)
               : -1;
}

static PyObject *
call(PyObject *type, PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    return call_constructor(&cuda_constructor, type, args, nargs, kwnames);
}

const vectorcallfunc cuda_device_call = call;

static void
DeviceContext_dealloc(PyObject *op)
{
    struct entry *entry = as_context(op)->entries;
    while (entry != NULL) {
        struct entry *earlier = entry->earlier;
        PyMem_Free(entry);
        entry = earlier;
    }
    Py_XDECREF(as_context(op)->idx);
    object_free(op);
}

static PyObject *
DeviceContext_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    ContextObject *self = as_context(op);
    struct device_name name = {.index = -1};
    struct entry *entry = PyMem_Malloc(sizeof(*entry));
    if (entry == NULL) {
        return PyErr_NoMemory();
    }
    entry->thread = PyThread_get_thread_ident();
    Py_BEGIN_CRITICAL_SECTION(op);
    if (self->idx != NULL) {
        name = self->name;
    }
    Py_END_CRITICAL_SECTION();
    if (exchange(name, &entry->previous) < 0) {
        PyMem_Free(entry);
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(op);
    self->prev_idx = entry->previous;
    entry->earlier = self->entries;
    self->entries = entry;
    Py_END_CRITICAL_SECTION();
    Py_RETURN_NONE;
}

/* Remove and return the calling thread's latest entry, and get its device's
 * type.  Returns NULL if there is none. */
static struct entry *
take_entry(PyObject *op, int *type)
{
    ContextObject *self = as_context(op);
    unsigned long thread = PyThread_get_thread_ident();
    struct entry *entry;
    Py_BEGIN_CRITICAL_SECTION(op);
    struct entry **place = &self->entries;
    while (*place != NULL && (*place)->thread != thread) {
        place = &(*place)->earlier;
    }
    entry = *place;
    if (entry != NULL) {
        *place = entry->earlier;
    }
    *type = self->name.type;
    Py_END_CRITICAL_SECTION();
    return entry;
}

static PyObject *
DeviceContext_exit(PyObject *op, PyObject *const *Py_UNUSED(args),
                   Py_ssize_t Py_UNUSED(nargs))
{
    struct device_name name;
    struct entry *entry = take_entry(op, &name.type);
    if (entry == NULL) {
        return PyErr_Format(PyExc_RuntimeError,
                            "This thread did not enter the device context");
    }
    name.index = entry->previous;
    PyMem_Free(entry);
    return restore(name);
}

static PyMethodDef context_methods[] = {
    METHOD("__enter__", DeviceContext_enter, METH_NOARGS, ", /",
           "Make the device current.  May block."),
    METHOD("__exit__", DeviceContext_exit, METH_FASTCALL, ", /, *exc_info",
           "Restore the device that __enter__ found.\n\n"
           "Raises RuntimeError if this thread has not entered."),
    {NULL},
};

static PyObject *
DeviceContext_get_idx(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *idx = reference_get(self, &as_context(self)->idx);
    return idx != NULL ? idx : Py_NewRef(Py_None);
}

static PyObject *
DeviceContext_get_prev_idx(PyObject *self, void *Py_UNUSED(closure))
{
    int prev_idx;
    Py_BEGIN_CRITICAL_SECTION(self);
    prev_idx = as_context(self)->prev_idx;
    Py_END_CRITICAL_SECTION();
    return PyLong_FromLong(prev_idx);
}

static PyGetSetDef context_getset[] = {
    {"idx", DeviceContext_get_idx, NULL,
     PyDoc_STR("The index of the device; None or negative if there is none.")},
    {"prev_idx", DeviceContext_get_prev_idx, NULL,
     PyDoc_STR("The index that the latest entry found; -1 before the first "
               "entry.")},
    {NULL},
};

PyDoc_STRVAR(context_doc,
             "DeviceContext(type, idx, /)\n--\n\n"
             "Make a device of one type current within a with block.");

static PyType_Slot context_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, DeviceContext_init},
    {Py_tp_dealloc, DeviceContext_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {Py_tp_doc, (void *)context_doc},
    {0, NULL},
};

PyType_Spec device_context_spec =
    TYPE_SPEC("pystreams._C.DeviceContext", ContextObject, Py_TPFLAGS_BASETYPE,
              context_slots);

PyDoc_STRVAR(
    cuda_device_doc,
    "device(device)\n--\n\n"
    "Make a device the calling thread's current one within a with block.\n\n"
    "The device that was current is restored on exit.  None means the device "
    "that is current\nnow; a negative index does nothing.  The object is "
    "reentrant, and several threads can\nenter it at once.  Entering may "
    "block.");

static PyType_Slot cuda_device_slots[] = {
    {Py_tp_init, CudaDevice_init},
    {Py_tp_doc, (void *)cuda_device_doc},
    {0, NULL},
};

PyType_Spec cuda_device_spec =
    TYPE_SPEC("pystreams.cuda.device", ContextObject, Py_TPFLAGS_BASETYPE,
              cuda_device_slots);
