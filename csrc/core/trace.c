/* The trace hook.  It is set once, before any trace point reads it.  So a
 * trace point needs no lock to read it. */
#include "trace.h"

atomic_uint ps_trace_kinds;

static ps_trace_hook the_hook;

void
ps_trace_set_hook(ps_trace_hook hook)
{
    the_hook = hook;
}

void
ps_trace_fire(enum ps_trace_kind kind, struct ps_device *device,
              uintptr_t first, uintptr_t second)
{
    the_hook(kind, device, first, second);
}
