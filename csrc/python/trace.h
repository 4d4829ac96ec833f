/* The package's end of core's trace points. */
#ifndef PYSTREAMS_PYTHON_TRACE_H
#define PYSTREAMS_PYTHON_TRACE_H

#include "../core/trace.h"

#include "module.h"

/* The hook for ps_trace_set_hook. */
void trace_hook(enum ps_trace_kind kind, struct ps_device *device,
                uintptr_t first, uintptr_t second);

/* Whether streams that are made begin a life for the race detector. */
void trace_streams(bool on);

#endif
