/* Trace points.  Core calls a function, the hook, to report the operations
 * that core's callers request.
 *
 * While nothing subscribes to a kind of operation, its trace points cost a
 * load and a branch each.  No lock is held when the hook is called, and core's
 * state is consistent, so the hook may call any function of core. */
#ifndef PYSTREAMS_CORE_TRACE_H
#define PYSTREAMS_CORE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ps_device;

/* Creations, records, waits for events and allocations are reported after they
 * have succeeded.  The other kinds are reported before the operation.  The
 * comment of each kind says what the hook's arguments `first` and `second`
 * are.  There, "event" and "stream" mean handles. */
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

/* The hook.  For kinds with a stream, `device` is the stream's device.
 * `first` and `second` depend on the kind; an argument that a kind lacks is
 * 0. */
typedef void (*ps_trace_hook)(enum ps_trace_kind kind,
                              struct ps_device *device, uintptr_t first,
                              uintptr_t second);

/* A bit mask.  Bit `kind` is 1 if that kind has subscribers.  The mask is 0
 * until a hook is set. */
extern atomic_uint ps_trace_kinds;

/* Set the hook.  Call this once, before any bit of ps_trace_kinds is set. */
void ps_trace_set_hook(ps_trace_hook hook);

static inline bool
ps_trace_wants(enum ps_trace_kind kind)
{
    unsigned kinds =
        atomic_load_explicit(&ps_trace_kinds, memory_order_relaxed);
    return __builtin_expect(kinds >> kind & 1, 0);
}

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
