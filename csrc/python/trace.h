/* Passes core's trace points on to the package. */
#ifndef PYSTREAMS_PYTHON_TRACE_H
#define PYSTREAMS_PYTHON_TRACE_H

#include "../core/trace.h"

#include "module.h"

/* The hook for ps_trace_set_hook. */
void trace_hook(enum ps_trace_kind kind, struct ps_device *device,
                uintptr_t first, uintptr_t second);

/* Set whether the race detector gets the creations of streams, and the
 * waits. */
void trace_races(bool streams, bool waits);

/* Set whether the timeline gets records, waits, creations of streams, and
 * memory. */
void trace_timeline(bool on);

#endif
