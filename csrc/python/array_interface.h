/* The CUDA array interface, both ways. */
#ifndef PYSTREAMS_PYTHON_ARRAY_INTERFACE_H
#define PYSTREAMS_PYTHON_ARRAY_INTERFACE_H

#include "buffer.h"

/* As dlpack_hold, for an object with __cuda_array_interface__; device: the one
 * it is of where the backend cannot tell. */
int array_interface_hold(PyObject *object, struct ps_device *device,
                         struct ps_stream *stream, struct span *span);

PyObject *Buffer_get_array_interface(PyObject *self, void *closure);

#endif
