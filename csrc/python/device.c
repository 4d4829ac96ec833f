/* The type `device`: an immutable device type and index, and the names of
 * device types. */
#include "module.h"

#include <limits.h>
#include <string.h>

typedef struct {
    PyObject ob_base;
    struct device_name name;
} DeviceObject;

/* torch's names for the types that people give to new devices; any other
 * name comes from a registered backend. */
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

/* -1 where no device type has the name. */
static int
find_type(const char *text, size_t length)
{
    for (int i = 0; i < ps_runtime_count(); i++) {
        const struct ps_backend *backend = ps_runtime_at(i)->backend;
        if (same(backend->name, text, length)) {
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

/* A decimal index without sign or leading zeros; -1 for anything else. */
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

/* Raise for a name that could be a device type's, but is of none. */
static void
raise_unknown_type(const char *text, size_t length)
{
    enum { LONGEST = 32 };
    char names[(PS_MAX_RUNTIMES + Py_ARRAY_LENGTH(device_types)) * LONGEST];
    char *end = names;
    for (int i = 0; i < ps_runtime_count(); i++) {
        end += snprintf(end, LONGEST, "%s%.29s", i > 0 ? ", " : "",
                        ps_runtime_at(i)->backend->name);
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(device_types); i++) {
        if (ps_runtime_find(device_types[i].type) == NULL) {
            end += snprintf(end, LONGEST, ", %s", device_types[i].name);
        }
    }
    PyObject *name = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    if (name != NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "Expected one of %s device type at start of device "
                     "string: %U",
                     names, name);
        Py_DECREF(name);
    }
}

int
device_name_parse(PyObject *object, struct device_name *name)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == NULL) {
        PyErr_Format(PyExc_RuntimeError, "Invalid device string: %R", object);
        return -1;
    }
    if (size == 0) {
        PyErr_SetString(PyExc_RuntimeError, "Device string must not be empty");
        return -1;
    }
    const char *colon = strchr(text, ':');
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    int type = find_type(text, length);
    int index = colon != NULL ? parse_index(colon + 1) : -1;
    bool named = type >= 0 || (length > 0 && strspn(text, letters) == length);
    if (strlen(text) != (size_t)size || !named ||
        (colon != NULL && index < 0)) {
        PyErr_Format(PyExc_RuntimeError, "Invalid device string: %R", object);
        return -1;
    }
    if (type < 0) {
        raise_unknown_type(text, length);
        return -1;
    }
    name->type = type;
    name->index = index;
    return 0;
}

PyObject *
device_new(struct module_state *state, int type, int index)
{
    PyTypeObject *device_type = state->device_type;
    DeviceObject *self = (DeviceObject *)device_type->tp_alloc(device_type, 0);
    if (self != NULL) {
        self->name.type = type;
        self->name.index = index;
    }
    return (PyObject *)self;
}

struct device_name
device_name_of(PyObject *device)
{
    return ((DeviceObject *)device)->name;
}

static PyObject *
Device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"type", "index", NULL};
    struct module_state *state = state_of_type(type);
    PyObject *named, *index = Py_None;
    struct device_name name;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:device", keywords,
                                     &named, &index)) {
        return NULL;
    }
    if (named == Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "device() expects a str, an int or a device, but got "
                        "None");
        return NULL;
    }
    if (device_name_argument(state, -1, named, &name) < 0) {
        return NULL;
    }
    if (index != Py_None) {
        if (!PyUnicode_Check(named)) {
            PyErr_Format(PyExc_TypeError,
                         "device() expects a str before an index, but got %s",
                         Py_TYPE(named)->tp_name);
            return NULL;
        }
        if (name.index >= 0) {
            PyErr_Format(PyExc_RuntimeError,
                         "type (string) must not include an index because "
                         "index was passed explicitly: %S",
                         named);
            return NULL;
        }
        if (index_argument(index, &name.index) < 0) {
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
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
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
    struct module_state *state = state_of(self);
    if ((operation != Py_EQ && operation != Py_NE) ||
        !PyObject_TypeCheck(other, state->device_type)) {
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
    {"__reduce__", Device_reduce, METH_NOARGS,
     PyDoc_STR("__reduce__($self, /)\n--\n\n"
               "Return what pickle needs to make an equal device.")},
    {NULL},
};

static PyGetSetDef device_getset[] = {
    {"type", Device_get_type, NULL,
     PyDoc_STR("The name of the device type, such as 'cuda'.")},
    {"index", Device_get_index, NULL,
     PyDoc_STR("The index, or None where none was given.")},
    {NULL},
};

PyDoc_STRVAR(device_doc,
             "device(type, index=None)\n--\n\n"
             "Name a device: device('cuda:1'), device('cuda'), "
             "device('cuda', 1), or device(1)\n"
             "for an index on the default accelerator.\n\n"
             "Immutable and hashable; equal to a device of the same type and "
             "index.  Says\n"
             "nothing of whether there is such a device.\n\n"
             "Raises RuntimeError for a malformed string or a negative "
             "index.");

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

PyType_Spec device_spec = {
    .name = "pystreams.device",
    .basicsize = sizeof(DeviceObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = device_slots,
};
