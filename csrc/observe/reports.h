/* Reports of devices: the begin and end of each operation, and the call that
 * queued it, of any library.  They are kept until the timeline takes them. */
#ifndef PYSTREAMS_OBSERVE_REPORTS_H
#define PYSTREAMS_OBSERVE_REPORTS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_report {
    struct ps_activity activity; /* without its name */
    int runtime;
    uint32_t name;   /* its number, or 0 */
    uint64_t source; /* of the call */
};

struct ps_reports {
    struct ps_report *items;
    size_t count;
};

/* source() returns the number that identifies a call.  It is called on the
 * call's thread, with locks of a driver held; 0 if the call is not wanted.
 * Statuses as of activities_begin. */
ps_status
ps_reports_begin(int runtime, const struct ps_backend *backend,
                 uint64_t (*source)(void), char *reason, size_t size);
bool ps_reports_are_on(int runtime);

/* Note no further calls, of any runtime. */
void ps_reports_end(void);

/* No log is left: forget all calls. */
void ps_reports_reset(void);

/* The reports since the last call; the items belong to the caller. */
struct ps_reports ps_reports_take(void);

/* The number of the stream in reports; false if it has none. */
bool ps_reports_stream(const struct ps_actor_name *stream, uint64_t *number);

/* Called around a fork, so that the child sees no partial change. */
void ps_reports_lock(void);
void ps_reports_unlock(void);

/* In the forked child: the parent's devices report to the parent. */
void ps_reports_forget(void);

#endif
