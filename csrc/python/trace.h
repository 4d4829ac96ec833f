/* Passes the reports from core's trace points to Python code. */
#ifndef PYSTREAMS_PYTHON_TRACE_H
#define PYSTREAMS_PYTHON_TRACE_H

#include "../core/trace.h"

#include "module.h"

/* The hook for ps_trace_set_hook. */
void trace_hook(enum ps_trace_kind kind, struct ps_device *device,
                uintptr_t first, uintptr_t second);

/* Set what the trace points report to the race detector.  streams: whether
 * they report creations of streams.  waits: whether they report waits. */
void trace_races(bool streams, bool waits);

/* Set whether the trace points report to the timeline.  They report records,
 * waits of streams, creations of streams, allocations and frees. */
void trace_timeline(bool on);

#endif
