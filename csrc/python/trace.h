/* The package's end of core's trace points. */
#ifndef PYSTREAMS_PYTHON_TRACE_H
#define PYSTREAMS_PYTHON_TRACE_H

#include "../core/trace.h"

#include "module.h"

/* The hook for ps_trace_set_hook. */
void trace_hook(enum ps_trace_kind kind, struct ps_device *device,
                uintptr_t first, uintptr_t second);

/* Whether the race detector is to know which streams are made, and what is
 * waited for. */
void trace_races(bool streams, bool waits);

/* Whether the timeline is to know of records, waits, streams and memory. */
void trace_timeline(bool on);

#endif
