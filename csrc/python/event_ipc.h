/* Events between processes: methods of Event. */
#ifndef PYSTREAMS_PYTHON_EVENT_IPC_H
#define PYSTREAMS_PYTHON_EVENT_IPC_H

#include "module.h"

PyObject *Event_ipc_handle(PyObject *self, PyObject *ignored);
PyObject *Event_from_ipc_handle(PyObject *cls, PyObject *const *args,
                                Py_ssize_t nargs, PyObject *kwnames);
PyObject *Event_reduce(PyObject *self, PyObject *ignored);
PyObject *Event_setstate(PyObject *self, PyObject *blocking);

#endif
