/* Changing the current device. */
#ifndef PYSTREAMS_PYTHON_DEVICE_CONTEXT_H
#define PYSTREAMS_PYTHON_DEVICE_CONTEXT_H

#include "module.h"

/* Make the device current; its index before, or -1 with an exception. */
int device_switch(struct module_state *state, struct ps_device *device);

#endif
