/* Arguments that functions of the module share. */
#ifndef PYSTREAMS_PYTHON_DEVICE_FUNCTIONS_H
#define PYSTREAMS_PYTHON_DEVICE_FUNCTIONS_H

#include "module.h"

/* The device of arguments that are a type and optionally a device, for a
 * function that the format names; NULL with an exception. */
struct ps_device *
parse_device(PyObject *module, PyObject *args, const char *format);

#endif
