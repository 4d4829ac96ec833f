/* Handles for other processes: the arguments of from_ipc_handle(), its errors,
 * and how objects are pickled by their handles. */
#ifndef PYSTREAMS_PYTHON_IPC_H
#define PYSTREAMS_PYTHON_IPC_H

#include "device.h"
#include "module.h"

struct ps_device;

/* The kind of shared object, for error messages. */
struct shared_kind {
    const char *type;    /* "Event" */
    const char *noun;    /* "event" */
    const char *feature; /* as raise_absent wants it */
    Py_ssize_t bytes;    /* of a handle */
};

/* Parse from_ipc_handle(device, handle) and hold the handle's bytes, of the
 * kind's length; only: as device_argument; indexed: whether the device was
 * given by its index.  -1 with an exception. */
int ipc_arguments(const struct shared_kind *kind, int only,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                  struct ps_device **device, bool *indexed, Py_buffer *handle);

/* Raise the exception for a handle that could not be opened; NULL. */
PyObject *raise_not_opened(const struct shared_kind *kind,
                           struct ps_device *device, ps_status status);

/* The result of __reduce__: the type's from_ipc_handle opens the object anew
 * and then sets the state, unless it is NULL. */
PyObject *
ipc_reduce(PyObject *self, struct device_name device,
           const unsigned char *handle, Py_ssize_t nbytes, PyObject *state);

#endif
