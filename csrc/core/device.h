/* The initialization of core and of its fork handlers, and the synchronization
 * of a whole device.  No other file of core depends on this one. */
#ifndef PYSTREAMS_CORE_DEVICE_H
#define PYSTREAMS_CORE_DEVICE_H

#include <pystreams/backend.h>

struct ps_device;

/* Initialize core.  Call this before any other function of core, while no
 * other thread uses core.  Returns PS_ERROR_OUT_OF_MEMORY on failure; then it
 * may be called again. */
ps_status ps_core_init(void);

/* Wait for all work of the device, with the backend's device_synchronize.
 * Does not call the trace hook (see trace.h), so the caller must call it. */
ps_status
ps_device_synchronize(struct ps_device *device, const struct ps_limit *limit);

#endif
