/* The registered backends, and the choice of the default one. */
#ifndef PYSTREAMS_PYTHON_BACKENDS_H
#define PYSTREAMS_PYTHON_BACKENDS_H

#include "module.h"

/* The reason that an error message gives if a CUDA device is wanted and this
 * build has no CUDA backend. */
#define NO_CUDA_BACKEND "this build of pystreams has no CUDA backend"

/* Returns the runtime that has this device type and is not hidden by an
 * emulation (see core/emulation.h).  Returns NULL with an exception if no
 * backend is registered for the type. */
struct ps_runtime *find_runtime(long type);

/* Load the backend with this name, if an installed distribution has one.
 * `length` is the length of the name in bytes.  *type becomes the backend's
 * device type, or -1 if there is no such backend.  On failure, returns -1 with
 * an exception. */
int load_backend(const char *name, size_t length, int *type);

/* Choose for each backend the table that core calls.  This is the backend's
 * own table, unless a schedule is being explored (see schedules.h), or the
 * timeline or the race detector is on.  In these cases, it is a table that
 * observes the calls. */
void install_tables(void);

/* Like ps_runtime_devices.  Releases the GIL if the call may block. */
ps_status count_devices(struct ps_runtime *runtime, int *count);

/* The slow path of use_runtime, for a runtime's first use in this process. */
__attribute__((cold)) struct ps_runtime *begin_runtime(int type);

/* Like find_runtime, but also makes sure that the runtime has devices and may
 * be used in this process.  Otherwise returns NULL with an exception that
 * gives the reason. */
static inline struct ps_runtime *
use_runtime(int type)
{
    struct ps_runtime *runtime = ps_runtime_find(type);
    return runtime != NULL && ps_runtime_is_used(runtime)
               ? runtime
               : begin_runtime(type);
}

/* Returns the runtime to use if the program specifies no device; NULL with an
 * exception. */
struct ps_runtime *default_runtime(void);

/* Set the device type to use if the program specifies none, and return the
 * previous value.  If `type` is below 0, the next call to default_runtime
 * determines the type again.  If another thread is determining the type
 * meanwhile, its result may be out of date and is not stored. */
int replace_default_type(int type);

#endif
