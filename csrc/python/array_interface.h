/* The CUDA array interface, both ways. */
#ifndef PYSTREAMS_PYTHON_ARRAY_INTERFACE_H
#define PYSTREAMS_PYTHON_ARRAY_INTERFACE_H

#include "buffer.h"

/* As dlpack_hold, for an object with __cuda_array_interface__.  device is used
 * if the backend cannot tell which device has the memory. */
int array_interface_hold(PyObject *object, struct ps_device *device,
                         struct ps_stream *stream, struct span *span);

/* The bytes, gaps included, of an object with that interface or with NumPy's:
 * 1; 0 if it has neither; -1 with an exception. */
int array_interface_extent(const char *function, PyObject *object,
                           const char **begin, Py_ssize_t *nbytes);

PyObject *Buffer_get_array_interface(PyObject *self, void *closure);

#endif
