/* The type `Partition`.  Objects are immutable, so that threads can share
 * them. */
#include "module.h"

#include "../core/memory.h"
#include "../core/partition.h"
#include "../core/stream.h"

#include "args.h"
#include "device.h"
#include "errors.h"
#include "stream.h"

typedef struct {
    PyObject ob_base;
    struct ps_partition *partition;
    PyObject *weakrefs;
} PartitionObject;

static struct ps_partition *
partition_of(PyObject *self)
{
    return ((PartitionObject *)self)->partition;
}

/* Raise RuntimeError because more multiprocessors were asked for than are
 * left. */
static PyObject *
raise_count(struct ps_device *device, int count, int taken)
{
    struct ps_device_properties properties;
    const struct ps_backend *backend = device->runtime->backend;
    ps_status status;
    WITHOUT_GIL(status = backend->device_properties(backend, device->index,
                                                    &properties));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "creating a partition", status);
    }
    return PyErr_Format(
        PyExc_RuntimeError,
        "%s:%d has %d multiprocessors, of which other partitions have %d, but "
        "%d were asked for; ask for fewer, or drop another partition first, "
        "with its streams, their Buffers and their graphs",
        backend->name, device->index, properties.multi_processor_count, taken,
        count);
}

static ps_status
create(struct ps_device *device, int count, struct ps_partition **partition,
       int *taken)
{
    /* A block or a stream that was dropped while it was busy keeps its
     * partition until it is released.  Release the blocks and streams whose
     * work is done, so that their multiprocessors can be given to the new
     * partition. */
    ps_memory_sweep(device->runtime);
    ps_device_give_up_deferred(device);
    return ps_partition_create(device, count, partition, taken);
}

static PyObject *
Partition_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {
        "Partition", 1, 2, {"count", "device"}};
    struct ps_partition *partition;
    PyObject *values[2];
    ps_status status;
    int count, taken;
    if (parse_tuple(&signature, args, kwargs, values) < 0 ||
        clamped_argument("Partition", "count", values[0], &count) < 0) {
        return NULL;
    }
    if (count < 1) {
        return PyErr_Format(PyExc_ValueError,
                            "Partition() expects an int of at least 1 for "
                            "count, but got %S",
                            values[0]);
    }
    struct ps_device *device = device_argument("Partition", -1, values[1]);
    if (device == NULL) {
        return NULL;
    }
    if (device->runtime->backend->partition_create == NULL) {
        return raise_absent(device->runtime, "partitions");
    }
    WITHOUT_GIL(status = create(device, count, &partition, &taken));
    if (status == PS_ERROR_INVALID_RESOURCE) {
        return raise_count(device, count, taken);
    }
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "partitions", status);
    }
    PyObject *self = type->tp_alloc(type, 0);
    if (self == NULL) {
        WITHOUT_GIL(status = ps_partition_unref(partition));
        report_cleanup(device->runtime, device, "dropping a partition",
                       status);
        return NULL;
    }
    ((PartitionObject *)self)->partition = partition;
    return self;
}

static void
Partition_dealloc(PyObject *self)
{
    struct ps_partition *partition = partition_of(self);
    clear_weakrefs(self, ((PartitionObject *)self)->weakrefs);
    if (!is_finalizing()) {
        struct ps_device *device = partition->device;
        ps_status status;
        WITHOUT_GIL(status = ps_partition_unref(partition));
        report_cleanup(device->runtime, device, "dropping a partition",
                       status);
    }
    object_free(self);
}

static PyObject *
Partition_repr(PyObject *self)
{
    const struct ps_partition *partition = partition_of(self);
    return PyUnicode_FromFormat("<%s device=%s:%d count=%d>",
                                Py_TYPE(self)->tp_name,
                                partition->device->runtime->backend->name,
                                partition->device->index, partition->count);
}

static PyObject *
Partition_stream(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    static const struct signature signature = {
        "Stream", 0, 1, {"priority", "name"}};
    struct ps_partition *partition = partition_of(self);
    struct ps_stream *stream;
    PyObject *values[2];
    const char *name;
    int priority = 0;
    ps_status status;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0 ||
        (values[0] != NULL &&
         clamped_argument("Stream", "priority", values[0], &priority) < 0) ||
        name_argument("Stream", "name", values[1], &name) < 0) {
        return NULL;
    }
    WITHOUT_GIL(status =
                    ps_partition_stream(partition, priority, name, &stream));
    return status != PS_SUCCESS ? raise_status(partition->device->runtime,
                                               "creating a stream", status)
                                : stream_wrap(NULL, stream);
}

static PyObject *
Partition_get_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(partition_of(self)->count);
}

static PyObject *
Partition_get_device(PyObject *self, void *Py_UNUSED(closure))
{
    const struct ps_device *device = partition_of(self)->device;
    return device_new(device->runtime->backend->device_type, device->index);
}

static PyMethodDef partition_methods[] = {
    METHOD("Stream", Partition_stream, METH_FASTCALL | METH_KEYWORDS,
           ", /, priority=0, *, name=None",
           "Return a new stream whose work runs on the partition's "
           "multiprocessors alone\n(cuGreenCtxStreamCreate).\n\n"
           "It is a cuda.Stream on CUDA, else a Stream, and is used like any "
           "other.  It keeps the\npartition alive.  May block, with the GIL "
           "released.  Raises RuntimeError in a forked\nchild."),
    {NULL},
};

static PyGetSetDef partition_getset[] = {
    {"count", Partition_get_count, NULL,
     PyDoc_STR("The number of multiprocessors that the partition has.")},
    {"device", Partition_get_device, NULL,
     PyDoc_STR("The device that the partition is a part of.")},
    {NULL},
};

static PyMemberDef partition_members[] = {
    WEAKREFS(PartitionObject),
    {NULL},
};

PyDoc_STRVAR(
    partition_doc,
    "Partition(count, device=None)\n--\n\n"
    "At least count of a device's multiprocessors, none of which belongs to "
    "another Partition\nof this process: a green context on CUDA "
    "(cuGreenCtxCreate).\n\n"
    "Work on its streams runs on these alone, but work on other streams runs "
    "on all of the\ndevice's multiprocessors.  CUDA assigns them in groups, "
    "of 8 on compute capability 9.0,\nso the attribute count may be more than "
    "was asked for.  On the CPU engine they are\nshares of its workers, which "
    "run copies, fills and host functions; callables of\nStream.submit belong "
    "to no partition.\n\n"
    "The partition lives as long as the object, its streams, their work, the "
    "Buffers used on\nthese streams and the graphs captured on them.  May "
    "block, with the GIL released.\nRaises ValueError for a count below 1, "
    "RuntimeError if fewer are left, and\nNotImplementedError if the backend "
    "or the driver (before CUDA 12.5) has no partitions.\nSafe to use from "
    "several threads.");

static PyType_Slot partition_slots[] = {
    {Py_tp_new, Partition_new},         {Py_tp_dealloc, Partition_dealloc},
    {Py_tp_repr, Partition_repr},       {Py_tp_methods, partition_methods},
    {Py_tp_getset, partition_getset},   {Py_tp_members, partition_members},
    {Py_tp_doc, (void *)partition_doc}, {0, NULL},
};

PyType_Spec partition_spec = TYPE_SPEC("pystreams.Partition", PartitionObject,
                                       Py_TPFLAGS_BASETYPE, partition_slots);
