/* Activity reports: the devices report the begin and the end of each
 * operation, and the call that queued it, whichever library made that call.
 * The reports are kept here until the timeline takes them. */
#ifndef PYSTREAMS_OBSERVE_REPORTS_H
#define PYSTREAMS_OBSERVE_REPORTS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_report {
    struct ps_activity activity; /* activity.name is not set; see `name` */
    int runtime;
    uint32_t name;   /* the number of the name (see names.h), or 0 */
    uint64_t source; /* the number that source() returned for the call */
};

struct ps_reports {
    struct ps_report *items;
    size_t count;
};

/* Begin to observe the runtime's devices.  source() must return a number that
 * identifies the call that is being made on this thread, or 0 if no reports
 * about the call are wanted.  It is called with locks of a driver held.
 * Statuses: those of activities_begin. */
ps_status
ps_reports_begin(int runtime, const struct ps_backend *backend,
                 uint64_t (*source)(void), char *reason, size_t size);
bool ps_reports_are_on(int runtime);

/* Stop observing calls, for all runtimes.  Reports about calls that were
 * observed may still come. */
void ps_reports_end(void);

/* Forget all calls that were observed.  Called when no log is left that could
 * need their reports. */
void ps_reports_reset(void);

/* Return the reports since the last call.  The caller frees the items. */
struct ps_reports ps_reports_take(void);

/* Get the number that reports use for the stream.  Returns false if the stream
 * has no such number. */
bool ps_reports_stream(const struct ps_actor_name *stream, uint64_t *number);

/* Called before and after a fork, so that the child does not see a change that
 * another thread has half made. */
void ps_reports_lock(void);
void ps_reports_unlock(void);

/* Called in a forked child: forgets everything, because the devices report to
 * the parent. */
void ps_reports_forget(void);

#endif
