/* Current streams, as Python code meets them: those of the calling thread, or
 * of the task that it runs.  The GIL is held for each call. */
#ifndef PYSTREAMS_PYTHON_CURRENT_H
#define PYSTREAMS_PYTHON_CURRENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../core/current.h"

extern PyMethodDef current_functions[], cuda_current_stream_function;

/* What is current; NULL: the default streams.  Borrowed, until a change. */
struct ps_currents *currents_in_use(void);
struct ps_stream *current_stream_of(struct ps_device *device);

/* `with stream:`, for any Stream. */
PyObject *Stream_enter(PyObject *self, PyObject *ignored);
PyObject *Stream_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
