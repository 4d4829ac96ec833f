/* The CUDA array interface, as producer and as consumer. */
#ifndef PYSTREAMS_PYTHON_ARRAY_INTERFACE_H
#define PYSTREAMS_PYTHON_ARRAY_INTERFACE_H

#include "buffer.h"

/* As dlpack_hold, for an object with __cuda_array_interface__.  If the backend
 * cannot tell which device has the memory, `device` is used. */
int array_interface_hold(PyObject *object, struct ps_device *device,
                         struct ps_stream *stream, struct span *span);

/* Get the address range of an array, gaps between its items included.  The
 * object may have the CUDA array interface or NumPy's array interface.
 * Returns 1; 0 if it has neither; -1 with an exception. */
int array_interface_extent(const char *function, PyObject *object,
                           const char **begin, Py_ssize_t *nbytes);

PyObject *Buffer_get_array_interface(PyObject *self, void *closure);

#endif
