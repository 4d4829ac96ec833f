/* Interprocess Buffers: their handles, and how they are opened and pickled. */
#ifndef PYSTREAMS_PYTHON_SHARE_H
#define PYSTREAMS_PYTHON_SHARE_H

#include "buffer.h"

PyObject *Buffer_ipc_handle(PyObject *self, PyObject *ignored);
PyObject *Buffer_from_ipc_handle(PyObject *type, PyObject *const *args,
                                 Py_ssize_t nargs, PyObject *kwnames);
PyObject *Buffer_reduce(PyObject *self, PyObject *ignored);

#endif
