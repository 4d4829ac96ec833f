/* Interprocess handles: the arguments and errors of from_ipc_handle(), and how
 * objects are pickled by their handles. */
#ifndef PYSTREAMS_PYTHON_IPC_H
#define PYSTREAMS_PYTHON_IPC_H

#include "device.h"
#include "module.h"

struct ps_device;

/* The texts and the handle size for one kind of object that processes
 * share. */
struct shared_kind {
    const char *type;    /* "Event" */
    const char *noun;    /* "event" */
    const char *feature; /* for raise_absent */
    Py_ssize_t bytes;    /* the size of a handle */
};

/* Parse the arguments (device, handle) of from_ipc_handle().  On success,
 * *handle is a view of the handle, which has kind->bytes bytes, and the caller
 * must release the view.  only: the allowed device type, like `type` in
 * device_argument.  *indexed becomes true if the first argument gives the
 * index of the device, otherwise false.  On failure, returns -1 with an
 * exception. */
int ipc_arguments(const struct shared_kind *kind, int only,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                  struct ps_device **device, bool *indexed, Py_buffer *handle);

/* Raise the exception for a handle that could not be opened.  Always returns
 * NULL. */
PyObject *raise_not_opened(const struct shared_kind *kind,
                           struct ps_device *device, ps_status status);

/* Returns the result of __reduce__.  Unpickling calls the type's
 * from_ipc_handle and then, if state is not NULL, sets the state. */
PyObject *
ipc_reduce(PyObject *self, struct device_name device,
           const unsigned char *handle, Py_ssize_t nbytes, PyObject *state);

#endif
