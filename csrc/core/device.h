/* Functions for whole devices, and the handling of forks.  No other file of
 * core depends on this one. */
#ifndef PYSTREAMS_CORE_DEVICE_H
#define PYSTREAMS_CORE_DEVICE_H

#include <pystreams/backend.h>

struct ps_device;

/* Initialize core.  Call this before anything else of core, while no other
 * thread uses core.  May be called again after a failure, which is
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_core_init(void);

/* Wait for all work of the device through the member device_synchronize.  Not
 * traced. */
ps_status
ps_device_synchronize(struct ps_device *device, const struct ps_limit *limit);

#endif
