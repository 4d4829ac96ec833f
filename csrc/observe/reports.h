/* Activity reports.  The devices report when each operation began and ended,
 * and which call queued it.  They also report operations that other libraries
 * queue.  The reports are kept here until the timeline takes them. */
#ifndef PYSTREAMS_OBSERVE_REPORTS_H
#define PYSTREAMS_OBSERVE_REPORTS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_report {
    struct ps_activity activity; /* activity.name is not set; see `name` */
    int runtime;
    uint32_t name;   /* the number of the name (see names.h), or 0 */
    uint64_t source; /* the result of source(); see ps_reports_begin */
};

struct ps_reports {
    struct ps_report *items;
    size_t count;
};

/* Begin to observe the runtime's devices.  source() is called when a thread is
 * about to queue work or to wait for work.  It must return a number that
 * identifies this call, or 0 if no reports about the call are wanted.  A
 * driver's locks are held when source() is called.  Statuses: those of
 * activities_begin. */
ps_status
ps_reports_begin(int runtime, const struct ps_backend *backend,
                 uint64_t (*source)(void), char *reason, size_t size);
bool ps_reports_are_on(int runtime);

/* Stop observing calls, for all runtimes.  Reports about calls that were
 * observed before may still arrive. */
void ps_reports_end(void);

/* Forget all calls that were observed, and their reports.  Called when no
 * remaining log (see timeline.h) could need them. */
void ps_reports_reset(void);

/* Return the reports that have arrived since the last call to this function.
 * The caller frees the items. */
struct ps_reports ps_reports_take(void);

/* Get the number that reports use for the stream.  Returns false if the stream
 * has no such number. */
bool ps_reports_stream(const struct ps_actor_name *stream, uint64_t *number);

/* Called before and after a fork, so that the child does not see a change that
 * another thread had only half made. */
void ps_reports_lock(void);
void ps_reports_unlock(void);

/* Called in a forked child.  Stops observing all runtimes, because the devices
 * report to the parent. */
void ps_reports_forget(void);

#endif
