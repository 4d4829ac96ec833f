/* Included before everything else by trace_cost.py: core/trace.h with trace
 * points that are not there. */
#define ps_trace_wants present_trace_wants
#define ps_trace       present_trace
#include "../csrc/core/trace.h"
#undef ps_trace_wants
#undef ps_trace

#define ps_trace_wants(kind)                  false
#define ps_trace(kind, device, first, second) ((void)0)
