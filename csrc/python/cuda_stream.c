/* The type `cuda.Stream`: a Stream whose devices are CUDA's, under torch's
 * names. */
#include "module.h"

static PyObject *
CudaStream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return stream_construct(type, args, kwargs, "|OO$OOO:Stream",
                            PS_DEVICE_CUDA);
}

static PyObject *
CudaStream_repr(PyObject *self)
{
    return stream_repr(self, "cuda_stream");
}

static PyGetSetDef cuda_stream_getset[] = {
    {"cuda_stream", Stream_get_handle, NULL,
     PyDoc_STR("The cudaStream_t as an int; 0 is the default stream.")},
    {NULL},
};

PyDoc_STRVAR(cuda_stream_doc,
             "Stream(device=None, priority=0)\n--\n\n"
             "A CUDA stream (cudaStreamCreateWithPriority, non-blocking).\n\n"
             "Without a device, on the current CUDA device.  Each stream is "
             "one of its own while\nit lives.  priority is clamped to "
             "priority_range(); a lower number is served\nfirst.\n\n"
             "Raises ValueError for a device of another type, RuntimeError "
             "where no GPU is\nusable, AcceleratorError where there is no "
             "such device.");

static PyType_Slot cuda_stream_slots[] = {
    {Py_tp_new, CudaStream_new},          {Py_tp_dealloc, Stream_dealloc},
    {Py_tp_repr, CudaStream_repr},        {Py_tp_getset, cuda_stream_getset},
    {Py_tp_doc, (void *)cuda_stream_doc}, {0, NULL},
};

PyType_Spec cuda_stream_spec = {
    .name = "pystreams.cuda.Stream",
    .basicsize = sizeof(StreamObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = cuda_stream_slots,
};
