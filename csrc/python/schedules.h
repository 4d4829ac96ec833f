/* The interface of schedules for calls that wait. */
#ifndef PYSTREAMS_PYTHON_SCHEDULES_H
#define PYSTREAMS_PYTHON_SCHEDULES_H

#include "../backends/backends.h"
#include "../core/mailbox.h"

#include "module.h"

/* A query answered that work is pending: the schedule may run some.  Releases
 * the GIL. */
static inline void
poll_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.poll());
    }
}

/* Add the program's use of memory to the notes of the schedule, if it keeps
 * notes. */
static inline void
note_memory(enum ps_note_kind kind, const void *data, size_t nbytes)
{
    if (ps_cpu_schedules.is_noted()) {
        ps_cpu_schedules.note(kind, (uintptr_t)data, nbytes);
    }
}

/* The calling thread's wait by advance_schedule is over: it goes on at its
 * turn.  Releases the GIL. */
static inline void
arrive_in_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.arrived());
    }
}

/* While a schedule is explored, run work until is_done(object), or until no
 * virtual time is left or nothing can run; *left_ns is the time that is left
 * then.  Statuses: PS_SUCCESS: wait on, if it is not done; PS_ERROR_TIMED_OUT,
 * PS_ERROR_DEADLOCK.  Releases the GIL. */
ps_status advance_schedule(bool (*is_done)(void *object), void *object,
                           int64_t *left_ns);

/* Raise RuntimeError that lists the waits; always returns NULL. */
PyObject *raise_deadlock(const char *operation);

#endif
