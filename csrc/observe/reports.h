/* Activity reports of devices: the begin and end of each operation, and the
 * call that queued it, from any library.  The reports are kept until the
 * timeline takes them. */
#ifndef PYSTREAMS_OBSERVE_REPORTS_H
#define PYSTREAMS_OBSERVE_REPORTS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_report {
    struct ps_activity activity; /* its name is not set */
    int runtime;
    uint32_t name;   /* the name's number, or 0 */
    uint64_t source; /* identifies the call */
};

struct ps_reports {
    struct ps_report *items;
    size_t count;
};

/* Begin to observe.  source() returns a number that identifies the present
 * call, or 0 if the call is not wanted.  It is called on the call's thread,
 * with locks of a driver held.  Statuses: those of activities_begin. */
ps_status
ps_reports_begin(int runtime, const struct ps_backend *backend,
                 uint64_t (*source)(void), char *reason, size_t size);
bool ps_reports_are_on(int runtime);

/* Note no more calls, for all runtimes. */
void ps_reports_end(void);

/* Forget all calls, because no log is left that could need them. */
void ps_reports_reset(void);

/* Return the reports since the last call.  The caller frees the items. */
struct ps_reports ps_reports_take(void);

/* Get the number that reports use for the stream.  Returns false if it has
 * none. */
bool ps_reports_stream(const struct ps_actor_name *stream, uint64_t *number);

/* Called before and after a fork, so that the child does not see a partial
 * change of another thread. */
void ps_reports_lock(void);
void ps_reports_unlock(void);

/* Called in a forked child: the devices report to the parent. */
void ps_reports_forget(void);

#endif
