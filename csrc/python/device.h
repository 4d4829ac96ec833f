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
 * exception.  `type` is the device type that an int or None means, and the
 * only type allowed.  If it is -1, any type is allowed, and an int or None
 * means the default type. */
struct ps_device *
device_argument(const char *function, int type, PyObject *argument);

/* As device_argument, but for a parameter of any name, and without using a
 * device.  Sets name->type and name->index, which is -1 if the argument means
 * the current device.  On failure, returns -1 with an exception. */
int device_name_argument(const char *function, const char *parameter, int type,
                         PyObject *argument, struct device_name *name);

/* Returns the device of a type and an index; index -1 means the current
 * device.  `function` is for error messages.  NULL with an exception. */
struct ps_device *device_at(const char *function, struct device_name name);

/* Get the index of a device from an int.  On failure, returns -1 with an
 * exception. */
int index_argument(const char *function, const char *name, PyObject *argument,
                   int *index);

/* Parse the arguments (type, device=None) of a function, with a format of
 * PyArg_ParseTuple.  The function's name for error messages is the third
 * argument if the format has a third item, else it is the name in the format.
 * Returns the device; NULL with an exception. */
struct ps_device *parse_device(PyObject *args, const char *format);

/* Make the device current.  Returns the index of the device that was current
 * before; -1 with an exception. */
int device_switch(struct ps_device *device);

#endif
