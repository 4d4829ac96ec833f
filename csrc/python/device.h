/* Devices, and the names that arguments give them. */
#ifndef PYSTREAMS_PYTHON_DEVICE_H
#define PYSTREAMS_PYTHON_DEVICE_H

#include "module.h"

/* A device as users name it; index is -1 if they give none. */
struct device_name {
    int type;
    int index;
};

PyObject *device_new(int type, int index);

/* The name of a device type, or "unknown". */
const char *device_type_name(int type);

/* The device that a function's argument `device` names; NULL for none given.
 * type: the device type that an integer and None mean, and the only one
 * allowed; -1 for the default and any.  NULL with an exception. */
struct ps_device *
device_argument(const char *function, int type, PyObject *argument);

/* As device_argument, for a parameter of another name, and without using the
 * device: sets its type and its index, -1 for the current device.  -1 with an
 * exception. */
int device_name_argument(const char *function, const char *parameter, int type,
                         PyObject *argument, struct device_name *name);

/* The device of a type and an index, -1 for the current one, for a call of the
 * function; NULL with an exception. */
struct ps_device *device_at(const char *function, struct device_name name);

/* The index of a device; -1 with an exception. */
int index_argument(const char *function, const char *name, PyObject *argument,
                   int *index);

/* Parse the arguments (type, device=None), with the function's name as a third
 * one if the format has one; otherwise the format names the function.  Returns
 * the device; NULL with an exception. */
struct ps_device *parse_device(PyObject *args, const char *format);

/* Make the device current.  Returns the index of the previous one, or -1 with
 * an exception. */
int device_switch(struct ps_device *device);

#endif
