/* The type `cuda.Event`: an Event whose devices are CUDA's, under torch's
 * names and with torch's defaults. */
#include "module.h"

/* Of the constructor. */
static char *keywords[] = {"enable_timing", "blocking", "interprocess",
                           "external", NULL};

static PyObject *
construct(PyTypeObject *type, PyObject **values)
{
    unsigned flags;
    if (event_flags(values, &flags) < 0) {
        return NULL;
    }
    /* As torch's, it may be made where there is no GPU. */
    struct ps_runtime *runtime = find_runtime(PS_DEVICE_CUDA);
    return runtime != NULL
               ? event_new(state_of_type(type), type, runtime, flags)
               : NULL;
}

static PyObject *
CudaEvent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *v[Py_ARRAY_LENGTH(keywords)] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOO:Event", keywords,
                                       &v[0], &v[1], &v[2], &v[3])
               ? construct(type, v)
               : NULL;
}

static PyObject *
call(PyObject *type, PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    static const struct constructor constructor = {
        CudaEvent_new,
        NULL,
        {"Event", 0, 4, (const char *const *)keywords},
        construct,
    };
    return call_constructor(&constructor, type, args, nargs, kwnames);
}

const vectorcallfunc cuda_event_call = call;

static PyObject *
CudaEvent_get_device(PyObject *self, void *Py_UNUSED(closure))
{
    struct ps_event *event = ((EventObject *)self)->event;
    struct ps_device *device = atomic_load(&event->device);
    if (device == NULL) {
        Py_RETURN_NONE;
    }
    return device_new(state_of(self), PS_DEVICE_CUDA, device->index);
}

static PyObject *
CudaEvent_get_handle(PyObject *self, void *Py_UNUSED(closure))
{
    struct ps_event *event = ((EventObject *)self)->event;
    return PyLong_FromUnsignedLongLong(atomic_load(&event->handle));
}

static PyObject *
CudaEvent_get_as_parameter(PyObject *self, void *Py_UNUSED(closure))
{
    return ctypes_pointer(atomic_load(&((EventObject *)self)->event->handle));
}

static PyGetSetDef cuda_event_getset[] = {
    {"device", CudaEvent_get_device, NULL,
     PyDoc_STR("The event's device; None until it is created at the first "
               "record.")},
    {"cuda_event", CudaEvent_get_handle, NULL,
     PyDoc_STR("The cudaEvent_t as an int; 0 until the first record.")},
    {"_as_parameter_", CudaEvent_get_as_parameter, NULL,
     PyDoc_STR("The cudaEvent_t as ctypes passes it to a foreign "
               "function.")},
    {NULL},
};

PyDoc_STRVAR(
    cuda_event_doc,
    "Event(enable_timing=False, blocking=False, "
    "interprocess=False, external=False)\n--\n\n"
    "A CUDA event (cudaEventCreateWithFlags), created at its first "
    "record.\n\n"
    "external: where a record or a wait is captured, each replay "
    "does it (cudaEventRecordExternal,\ncudaEventWaitExternal); else "
    "it only orders what is captured.\n\n"
    "Raises TypeError for a switch that is no bool, ValueError for an "
    "interprocess event\nthat is timed.");

static PyType_Slot cuda_event_slots[] = {
    {Py_tp_new, CudaEvent_new},
    {Py_tp_dealloc, Event_dealloc},
    {Py_tp_getset, cuda_event_getset},
    {Py_tp_doc, (void *)cuda_event_doc},
    {0, NULL},
};

PyType_Spec cuda_event_spec = {
    .name = "pystreams.cuda.Event",
    .basicsize = sizeof(EventObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = cuda_event_slots,
};
