/* The type `device`.  Its objects hold a device type and an index, and cannot
 * be changed.  Also has the names of device types, and the rules by which
 * arguments name devices. */
#include "device.h"

#include <limits.h>
#include <string.h>

#include "args.h"
#include "backends.h"
#include "errors.h"

typedef struct {
    PyObject ob_base;
    struct device_name name;
} DeviceObject;

/* torch's names for device types.  Registered backends add other names. */
static const struct {
    const char *name;
    int type;
} device_types[] = {
    {"cpu", PS_DEVICE_CPU},
    {"cuda", PS_DEVICE_CUDA},
    {"mtia", PS_DEVICE_MTIA},
    {"privateuseone", PS_DEVICE_PRIVATEUSEONE},
};

static const char letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

const char *
device_type_name(int type)
{
    struct ps_runtime *runtime = ps_runtime_find(type);
    if (runtime != NULL) {
        return runtime->backend->name;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(device_types); i++) {
        if (device_types[i].type == type) {
            return device_types[i].name;
        }
    }
    return "unknown";
}

static bool
same(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

/* Returns the device type with this name; -1 if there is none. */
static int
find_type(const char *text, size_t length)
{
    for (int i = 0; i < ps_runtime_count(); i++) {
        const struct ps_backend *backend = ps_runtime_at(i)->backend;
        if (!ps_runtime_at(i)->hidden && same(backend->name, text, length)) {
            return backend->device_type;
        }
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(device_types); i++) {
        if (same(device_types[i].name, text, length)) {
            return device_types[i].type;
        }
    }
    return -1;
}

/* Parse a decimal index without sign or leading zeros.  Returns -1 for
 * anything else. */
static int
parse_index(const char *text)
{
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1])) {
        return -1;
    }
    long index = 0;
    for (; *text >= '0' && *text <= '9' && index < INT_MAX / 10; text++) {
        index = 10 * index + (*text - '0');
    }
    return *text == '\0' ? (int)index : -1;
}

/* Raise the exception for a well-formed name that no device type has. */
static void
raise_unknown_type(const char *text, size_t length)
{
    PyObject *others = PyList_New(0);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(device_types); i++) {
        if (ps_runtime_find(device_types[i].type) == NULL) {
            others =
                list_with(others, PyUnicode_FromString(device_types[i].name));
        }
    }
    drop_result(import_call("pystreams._backends", "refuse", "(s#N)", text,
                            (Py_ssize_t)length, others));
}

/* Parse a device string such as "cuda:1".  On failure, returns -1 with
 * RuntimeError. */
static int
device_name_parse(PyObject *object, struct device_name *name)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == NULL) {
        return refuse(PyExc_RuntimeError, "Invalid device string: %R", object);
    }
    if (size == 0) {
        return refuse(PyExc_RuntimeError, "Device string must not be empty");
    }
    const char *colon = strchr(text, ':');
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    int type = find_type(text, length);
    int index = colon != NULL ? parse_index(colon + 1) : -1;
    bool named = type >= 0 || (length > 0 && strspn(text, letters) == length);
    if (strlen(text) != (size_t)size || !named ||
        (colon != NULL && index < 0)) {
        return refuse(PyExc_RuntimeError, "Invalid device string: %R", object);
    }
    bool known = type == PS_DEVICE_CPU || type == PS_DEVICE_CUDA ||
                 (type >= 0 && ps_runtime_find(type) != NULL);
    int loaded = -1;
    if (!known && load_backend(text, length, &loaded) < 0) {
        return -1;
    }
    type = loaded >= 0 ? loaded : type;
    if (type < 0) {
        raise_unknown_type(text, length);
        return -1;
    }
    name->type = type;
    name->index = index;
    return 0;
}

PyObject *
device_new(int type, int index)
{
    PyTypeObject *device_type = module_state.device_type;
    DeviceObject *self = (DeviceObject *)device_type->tp_alloc(device_type, 0);
    if (self != NULL) {
        self->name.type = type;
        self->name.index = index;
    }
    return (PyObject *)self;
}

static struct device_name
device_name_of(PyObject *device)
{
    return ((DeviceObject *)device)->name;
}

/* Raise TypeError for an attribute of the wrong type.  Returns -1. */
static int
refuse_attribute(const char *function, const char *parameter,
                 const char *attribute, const char *expected, PyObject *value)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%s", parameter, attribute);
    return refuse_type(function, expected, name, value);
}

/* Get the type and index of an object such as torch.device.  Returns 1 on
 * success; 0 if the object lacks the type or the index; -1 with an
 * exception. */
static int
typed_object(const char *function, const char *parameter, PyObject *object,
             struct device_name *name)
{
    PyObject *type, *index = NULL;
    int found = optional_attribute(object, module_state.str_type, &type);
    if (found == 1) {
        found = optional_attribute(object, module_state.str_index, &index);
    }
    if (found == 1 && !PyUnicode_Check(type)) {
        found = refuse_attribute(function, parameter, "type", "a str", type);
    }
    if (found == 1 && index != Py_None && !PyIndex_Check(index)) {
        found = refuse_attribute(function, parameter, "index",
                                 "an int or None", index);
    }
    if (found == 1 && device_name_parse(type, name) < 0) {
        found = -1;
    }
    if (found == 1 && index != Py_None &&
        index_argument("device", "index", index, &name->index) < 0) {
        found = -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(index);
    return found;
}

/* Get the index of an object such as cuda.device.  Returns 1 on success, 0 if
 * the object has no index, -1 with an exception. */
static int
indexed_object(PyObject *object, int *index)
{
    PyObject *idx;
    int found = optional_attribute(object, module_state.str_idx, &idx);
    if (found != 1) {
        return found;
    }
    long value = PyIndex_Check(idx) ? PyLong_AsLong(idx) : -1;
    Py_DECREF(idx);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < 0 || value > INT_MAX) {
        return 0;
    }
    *index = (int)value;
    return 1;
}

int
index_argument(const char *function, const char *name, PyObject *argument,
               int *index)
{
    Py_ssize_t value;
    if (int_argument(function, name, argument, &value) < 0) {
        return -1;
    }
    if (value < 0) {
        return refuse(PyExc_RuntimeError, "Device index must not be negative");
    }
    if (value > INT_MAX) {
        return refuse(PyExc_OverflowError,
                      "Device index must be at most %d, got %zd", INT_MAX,
                      value);
    }
    *index = (int)value;
    return 0;
}

int
device_name_argument(const char *function, const char *parameter, int type,
                     PyObject *argument, struct device_name *name)
{
    int expected = type;
    if (type < 0) {
        struct ps_runtime *runtime =
            argument != NULL &&
                    (PyObject_TypeCheck(argument, module_state.device_type) ||
                     PyUnicode_Check(argument))
                ? NULL
                : default_runtime();
        if (PyErr_Occurred()) {
            return -1;
        }
        type = runtime != NULL ? runtime->backend->device_type : -1;
    }
    name->type = type;
    name->index = -1;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    if (PyIndex_Check(argument) && !PyBool_Check(argument)) {
        if (expected >= 0 && PyNumber_AsSsize_t(argument, NULL) < 0) {
            return PyErr_Occurred() ? -1 : 0;
        }
        return index_argument(function, parameter, argument, &name->index);
    }
    if (PyObject_TypeCheck(argument, module_state.device_type)) {
        *name = device_name_of(argument);
    }
    else if (PyUnicode_Check(argument)) {
        if (device_name_parse(argument, name) < 0) {
            return -1;
        }
    }
    else {
        int found = indexed_object(argument, &name->index);
        if (found != 0) {
            return found == 1 ? 0 : -1;
        }
        found = typed_object(function, parameter, argument, name);
        if (found == 0) {
            raise_expected(function, "a device (int, str, device or None)",
                           parameter, argument);
        }
        if (found != 1) {
            return -1;
        }
    }
    if (expected >= 0 && name->type != expected) {
        return refuse(PyExc_ValueError, "Expected a %s device, but got: %S",
                      device_type_name(expected), argument);
    }
    return 0;
}

__attribute__((cold, noinline)) static struct ps_device *
raise_choice(const char *function, struct ps_runtime *runtime, int index,
             ps_status status)
{
    const char *name = runtime->backend->name;
    int last = atomic_load(&runtime->device_count) - 1;
    char operation[192], range[48] = "";
    if (last > 0) {
        snprintf(range, sizeof(range), " to %.29s:%d", name, last);
    }
    snprintf(operation, sizeof(operation),
             "%.32s() of %.29s:%d, but there is only %.29s:0%s,", function,
             name, index, name, range);
    raise_status(runtime,
                 index < 0 ? "asking for the current device" : operation,
                 status);
    return NULL;
}

struct ps_device *
device_at(const char *function, struct device_name name)
{
    struct ps_device *device;
    struct ps_runtime *runtime = use_runtime(name.type);
    if (runtime == NULL) {
        return NULL;
    }
    ps_status status = name.index < 0
                           ? ps_runtime_current_device(runtime, &device)
                           : ps_runtime_device(runtime, name.index, &device);
    return status == PS_SUCCESS
               ? device
               : raise_choice(function, runtime, name.index, status);
}

struct ps_device *
device_argument(const char *function, int type, PyObject *argument)
{
    struct device_name name = {type, -1};
    if ((type < 0 || argument != NULL) &&
        device_name_argument(function, "device", type, argument, &name) < 0) {
        return NULL;
    }
    return device_at(function, name);
}

struct ps_device *
parse_device(PyObject *args, const char *format)
{
    const char *function = strchr(format, ':') + 1;
    int type;
    PyObject *argument = NULL;
    return PyArg_ParseTuple(args, format, &type, &argument, &function) &&
                   find_runtime(type) != NULL
               ? device_argument(function, type, argument)
               : NULL;
}

int
device_switch(struct ps_device *device)
{
    struct ps_runtime *runtime = device->runtime;
    struct ps_device *previous;
    ps_status status = ps_runtime_current_device(runtime, &previous);
    if (status == PS_SUCCESS && previous != device) {
        const struct ps_backend *backend = runtime->backend;
        WITHOUT_GIL(status = backend->device_set(backend, device->index));
    }
    if (status != PS_SUCCESS) {
        return zero_or_raise(runtime, "setting the device", status);
    }
    return previous->index;
}

static PyObject *
Device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "device", 1, 2, {"type", "index"}};
    PyObject *values[2];
    struct device_name name;

    if (parse_tuple(&signature, args, kwargs, values) < 0) {
        return NULL;
    }
    PyObject *named = values[0], *index = values[1];
    if (named == Py_None) {
        return raise_expected("device", "a device (int, str or device)",
                              "type", named);
    }
    if (device_name_argument("device", "type", -1, named, &name) < 0) {
        return NULL;
    }
    if (index != NULL && index != Py_None) {
        if (!PyUnicode_Check(named)) {
            return raise_expected("device", "a str with an index", "type",
                                  named);
        }
        if (name.index >= 0) {
            return PyErr_Format(PyExc_RuntimeError,
                                "type (string) must not include an index "
                                "because index was passed explicitly: %S",
                                named);
        }
        if (index_argument("device", "index", index, &name.index) < 0) {
            return NULL;
        }
    }
    DeviceObject *self = (DeviceObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->name = name;
    }
    return (PyObject *)self;
}

static void
Device_dealloc(PyObject *self)
{
    object_free(self);
}

static PyObject *
Device_str(PyObject *self)
{
    struct device_name name = device_name_of(self);
    if (name.index < 0) {
        return PyUnicode_FromString(device_type_name(name.type));
    }
    return PyUnicode_FromFormat("%s:%d", device_type_name(name.type),
                                name.index);
}

static PyObject *
Device_repr(PyObject *self)
{
    struct device_name name = device_name_of(self);
    if (name.index < 0) {
        return PyUnicode_FromFormat("device(type='%s')",
                                    device_type_name(name.type));
    }
    return PyUnicode_FromFormat("device(type='%s', index=%d)",
                                device_type_name(name.type), name.index);
}

static PyObject *
Device_richcompare(PyObject *self, PyObject *other, int operation)
{
    if ((operation != Py_EQ && operation != Py_NE) ||
        !PyObject_TypeCheck(other, module_state.device_type)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    struct device_name a = device_name_of(self), b = device_name_of(other);
    bool equal = a.type == b.type && a.index == b.index;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t
Device_hash(PyObject *self)
{
    struct device_name name = device_name_of(self);
    return ((Py_hash_t)name.type << 16) ^ (name.index + 1);
}

static PyObject *
Device_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct device_name name = device_name_of(self);
    if (name.index < 0) {
        return Py_BuildValue("O(s)", Py_TYPE(self),
                             device_type_name(name.type));
    }
    return Py_BuildValue("O(si)", Py_TYPE(self), device_type_name(name.type),
                         name.index);
}

static PyObject *
Device_get_type(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(device_type_name(device_name_of(self).type));
}

static PyObject *
Device_get_index(PyObject *self, void *Py_UNUSED(closure))
{
    int index = device_name_of(self).index;
    if (index < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(index);
}

static PyMethodDef device_methods[] = {
    METHOD(
        "__reduce__", Device_reduce, METH_NOARGS, ", /",
        "Return a constructor call that makes an equal device, for pickle."),
    {NULL},
};

static PyGetSetDef device_getset[] = {
    {"type", Device_get_type, NULL,
     PyDoc_STR("The name of the device type, such as 'cuda'.")},
    {"index", Device_get_index, NULL,
     PyDoc_STR("The index, or None if none was given.")},
    {NULL},
};

PyDoc_STRVAR(
    device_doc,
    "device(type, index=None)\n--\n\n"
    "Name a device: device('cuda:1'), device('cuda'), device('cuda', 1), or "
    "device(1)\nfor an index on the default accelerator.\n\n"
    "Immutable and hashable; equal to a device of the same type and index.  "
    "The device need\nnot exist.\n\n"
    "Raises RuntimeError for a malformed string or a negative index.");

static PyType_Slot device_slots[] = {
    {Py_tp_new, Device_new},
    {Py_tp_dealloc, Device_dealloc},
    {Py_tp_str, Device_str},
    {Py_tp_repr, Device_repr},
    {Py_tp_richcompare, Device_richcompare},
    {Py_tp_hash, Device_hash},
    {Py_tp_methods, device_methods},
    {Py_tp_getset, device_getset},
    {Py_tp_doc, (void *)device_doc},
    {0, NULL},
};

PyType_Spec device_spec =
    TYPE_SPEC("pystreams.device", DeviceObject, 0, device_slots);
