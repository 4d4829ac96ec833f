/* Functions for methods that query, wait or use memory.  While a schedule is
 * explored (see "Schedules" in backends/backends.h), a method that queries or
 * waits must let the schedule run work, and a method that uses memory must
 * note the memory for the schedule. */
#ifndef PYSTREAMS_PYTHON_SCHEDULES_H
#define PYSTREAMS_PYTHON_SCHEDULES_H

#include "../backends/backends.h"
#include "../core/mailbox.h"

#include "module.h"
#include "wait.h"

/* Call the function in schedules.py that notes queued operations.  An
 * exception is reported, not raised. */
void schedules_note(PyObject *arguments);

/* Call this after a query has found that work is pending.  The program may be
 * polling in a loop, so this lets the schedule run some work.  Releases the
 * GIL. */
static inline void
poll_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.poll());
    }
}

/* Add a note about memory that the program uses, if the schedule keeps
 * notes. */
static inline void
note_memory(enum ps_note_kind kind, const void *data, size_t nbytes)
{
    if (ps_cpu_schedules.is_noted()) {
        ps_cpu_schedules.note(kind, (uintptr_t)data, nbytes);
    }
}

/* Wait until the schedule lets the calling thread continue.  Call this when a
 * wait that used advance_schedule is over.  Releases the GIL. */
static inline void
arrive_in_schedule(void)
{
    if (ps_cpu_schedules.is_on()) {
        WITHOUT_GIL(ps_cpu_schedules.arrived());
    }
}

/* While a schedule is explored, run its work until is_done(object) is true,
 * the wait's virtual time limit is reached, or nothing can run.  *left_ns is
 * the virtual time that the wait has left.  Returns PS_ERROR_TIMED_OUT if none
 * is left, PS_ERROR_DEADLOCK if the wait can never end, and PS_SUCCESS
 * otherwise.  Even after PS_SUCCESS, the object may not be done, because a
 * callable or another thread may first have to do something.  In that case,
 * the caller must wait longer.  Releases the GIL. */
ps_status advance_schedule(bool (*is_done)(void *object), void *object,
                           int64_t *left_ns);

/* Raise a RuntimeError for a wait that can never end.  The message says what
 * the work, or the object, waits for; see explanation_of.  Call this before
 * blocked_end, so that the message has the caller's wait, too.  Always returns
 * NULL. */
PyObject *raise_deadlock(const char *operation, const struct work *work,
                         PyObject *object);

#endif
