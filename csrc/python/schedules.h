/* What calls that query, wait or use memory must do while a schedule is
 * explored. */
#ifndef PYSTREAMS_PYTHON_SCHEDULES_H
#define PYSTREAMS_PYTHON_SCHEDULES_H

#include "../backends/backends.h"
#include "../core/mailbox.h"

#include "module.h"

/* Call after a query has found that work is pending: the schedule may run some
 * work, since the program may poll.  Releases the GIL. */
static inline void
poll_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.poll());
    }
}

/* If the schedule keeps notes, note that the program uses this memory. */
static inline void
note_memory(enum ps_note_kind kind, const void *data, size_t nbytes)
{
    if (ps_cpu_schedules.is_noted()) {
        ps_cpu_schedules.note(kind, (uintptr_t)data, nbytes);
    }
}

/* Call after a wait by advance_schedule is over: the calling thread continues
 * when the schedule gives it a turn.  Releases the GIL. */
static inline void
arrive_in_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.arrived());
    }
}

/* While a schedule is explored, run its work until is_done(object) is true, or
 * no virtual time is left, or nothing can run.  *left_ns is the virtual time
 * that the wait has left.  Returns PS_SUCCESS (if the object is not done, wait
 * on), PS_ERROR_TIMED_OUT or PS_ERROR_DEADLOCK.  Releases the GIL. */
ps_status advance_schedule(bool (*is_done)(void *object), void *object,
                           int64_t *left_ns);

/* Raise RuntimeError that lists the waits of a deadlock.  Always returns
 * NULL. */
PyObject *raise_deadlock(const char *operation);

#endif
