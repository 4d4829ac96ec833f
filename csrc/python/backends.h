/* The registered backends, and the choice among them. */
#ifndef PYSTREAMS_PYTHON_BACKENDS_H
#define PYSTREAMS_PYTHON_BACKENDS_H

#include "module.h"

/* The text that explains why a build without the CUDA backend has no CUDA
 * devices. */
#define NO_CUDA_BACKEND "this build of pystreams has no CUDA backend"

/* The runtime of a device type; NULL with an exception if no backend is
 * registered for it. */
struct ps_runtime *find_runtime(long type);

/* Load the backend that a distribution offers under the name, which has
 * `length` characters.  *type is its device type, or -1 if there is none.  -1
 * with an exception. */
int load_backend(const char *name, size_t length, int *type);

/* Choose the table by which core calls each backend: its own, or one that
 * observes its calls for the schedule that is explored, the timeline or the
 * race detector. */
void install_tables(void);

/* ps_runtime_devices, with the GIL released if that may block. */
ps_status count_devices(struct ps_runtime *runtime, int *count);

/* use_runtime, for one that this process has not used. */
__attribute__((cold)) struct ps_runtime *begin_runtime(int type);

/* As find_runtime, but the runtime has devices and may be used in this
 * process; otherwise NULL with an exception that gives the reason. */
static inline struct ps_runtime *
use_runtime(int type)
{
    struct ps_runtime *runtime = ps_runtime_find(type);
    return runtime != NULL && ps_runtime_is_used(runtime)
               ? runtime
               : begin_runtime(type);
}

/* The runtime used when no device is given; NULL with an exception. */
struct ps_runtime *default_runtime(void);

#endif
