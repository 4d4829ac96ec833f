/* Trace points: core reports its caller's operations to a hook.
 *
 * A point of a kind without subscribers costs a load and a branch.  A point is
 * reached with no lock held and core consistent, because the hook may do
 * anything, including calling core. */
#ifndef PYSTREAMS_CORE_TRACE_H
#define PYSTREAMS_CORE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ps_device;

/* Creations, records, waits and allocations are reported after the operation
 * has succeeded, the other kinds before it.  The comments name the arguments:
 * handles of an event and a stream, or an address and a number of bytes. */
enum ps_trace_kind {
    PS_TRACE_EVENT_CREATION,         /* event */
    PS_TRACE_EVENT_DELETION,         /* event */
    PS_TRACE_EVENT_RECORD,           /* event, stream */
    PS_TRACE_EVENT_WAIT,             /* event, stream */
    PS_TRACE_EVENT_SYNCHRONIZATION,  /* event */
    PS_TRACE_MEMORY_ALLOCATION,      /* address, bytes */
    PS_TRACE_MEMORY_DEALLOCATION,    /* address, bytes */
    PS_TRACE_STREAM_CREATION,        /* stream */
    PS_TRACE_STREAM_SYNCHRONIZATION, /* stream */
    PS_TRACE_DEVICE_SYNCHRONIZATION,
    PS_TRACE_KINDS,
};

/* device: the stream's, for kinds with a stream. */
typedef void (*ps_trace_hook)(enum ps_trace_kind kind,
                              struct ps_device *device, uintptr_t first,
                              uintptr_t second);

/* One bit for each kind with subscribers; 0 until a hook is set. */
extern atomic_uint ps_trace_kinds;

/* Set the hook: once, before any bit of ps_trace_kinds is set. */
void ps_trace_set_hook(ps_trace_hook hook);

static inline bool
ps_trace_wants(enum ps_trace_kind kind)
{
    unsigned kinds =
        atomic_load_explicit(&ps_trace_kinds, memory_order_relaxed);
    return __builtin_expect(kinds >> kind & 1, 0);
}

/* Call the hook. */
void ps_trace_fire(enum ps_trace_kind kind, struct ps_device *device,
                   uintptr_t first, uintptr_t second);

static inline void
ps_trace(enum ps_trace_kind kind, struct ps_device *device, uintptr_t first,
         uintptr_t second)
{
    if (ps_trace_wants(kind)) {
        ps_trace_fire(kind, device, first, second);
    }
}

#endif
