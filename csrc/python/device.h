/* Devices, and how arguments name them. */
#ifndef PYSTREAMS_PYTHON_DEVICE_H
#define PYSTREAMS_PYTHON_DEVICE_H

#include "module.h"

/* A device as the user named it.  index is -1 if the user gave no index. */
struct device_name {
    int type;
    int index;
};

PyObject *device_new(int type, int index);

/* Returns the name of a device type; "unknown" if neither a registered backend
 * nor torch has such a type. */
const char *device_type_name(int type);

/* Returns the device that a function's argument `device` names; NULL with an
 * exception.  An int or None means a device of the type `type`, and devices of
 * other types are refused.  If `type` is -1, devices of all types are
 * accepted, and an int or None means a device of the default type. */
struct ps_device *
device_argument(const char *function, int type, PyObject *argument);

/* Determine which device an argument means, by the same rules as
 * device_argument.  `parameter` is the name of the parameter, for error
 * messages.  The device need not exist, and is not initialized.  Sets
 * name->type and name->index.  The index becomes -1 if the argument means the
 * current device.  On failure, returns -1 with an exception. */
int device_name_argument(const char *function, const char *parameter, int type,
                         PyObject *argument, struct device_name *name);

/* Returns the device with this type and index; NULL with an exception.  The
 * index -1 means the current device of the type.  `function` is for error
 * messages. */
struct ps_device *device_at(const char *function, struct device_name name);

/* Get the index of a device from an int.  On failure, returns -1 with an
 * exception. */
int index_argument(const char *function, const char *name, PyObject *argument,
                   int *index);

/* Parse the arguments (type, device=None) of a function.  `format` is a format
 * of PyArg_ParseTuple that ends with the name of the function, for error
 * messages.  If the format has a third item, the third argument is the
 * function name to use in error messages instead.  Returns the device; NULL
 * with an exception. */
struct ps_device *parse_device(PyObject *args, const char *format);

/* Make the device current.  Returns the index of the device that was current
 * before; -1 with an exception. */
int device_switch(struct ps_device *device);

#endif
