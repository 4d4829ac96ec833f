/* Devices as a whole, and the handling of forks: the top of core. */
#ifndef PYSTREAMS_CORE_DEVICE_H
#define PYSTREAMS_CORE_DEVICE_H

#include <pystreams/backend.h>

struct ps_device;

/* Call before anything else of core, while no other thread uses core; again
 * after a failure.  PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_core_init(void);

/* The member device_synchronize, untraced. */
ps_status
ps_device_synchronize(struct ps_device *device, const struct ps_limit *limit);

#endif
