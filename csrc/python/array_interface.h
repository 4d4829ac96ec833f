/* The CUDA array interface.  Buffers support it, and can be copied to and from
 * any other library's arrays that support it. */
#ifndef PYSTREAMS_PYTHON_ARRAY_INTERFACE_H
#define PYSTREAMS_PYTHON_ARRAY_INTERFACE_H

#include "buffer.h"

/* Like dlpack_hold, but for an object with __cuda_array_interface__.  If the
 * backend cannot tell from the address which device has the memory, that
 * device is assumed to be `device` or, if `device` is not a CUDA device, the
 * current CUDA device. */
int array_interface_hold(PyObject *object, struct ps_device *device,
                         struct ps_stream *stream, struct span *span);

/* Get the address range of an array, including gaps between its items, through
 * the CUDA array interface or NumPy's array interface.  Returns 1 on success;
 * 0 if the object has neither interface; -1 with an exception. */
int array_interface_extent(const char *function, PyObject *object,
                           const char **begin, Py_ssize_t *nbytes);

PyObject *Buffer_get_array_interface(PyObject *self, void *closure);

#endif
