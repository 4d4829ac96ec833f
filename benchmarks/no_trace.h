/* core/trace.h, but with trace points that compile to nothing.  trace_cost.py
 * includes this before everything else, by the compiler's -include. */
#define ps_trace_wants present_trace_wants
#define ps_trace       present_trace
#include "../csrc/core/trace.h"
#undef ps_trace_wants
#undef ps_trace

#define ps_trace_wants(kind)                  false
#define ps_trace(kind, device, first, second) ((void)0)
