/* What hooks leave for later.
 *
 * While core launches a graph or adds a child graph, it holds the graph's
 * mutex.  If a hook that is called then ran code of the program, and that code
 * used the graph, it would wait for ever. */
#ifndef PYSTREAMS_PYTHON_LATE_H
#define PYSTREAMS_PYTHON_LATE_H

#include <pystreams/backend.h>

#include "module.h"

struct ps_access;
struct ps_description;
struct ps_race;

/* Use it like this:
 *
 *     struct late late = {0};
 *     do {
 *         status = late_begin(&late);
 *         if (status == PS_SUCCESS) {
 *             WITHOUT_GIL(status = the call);
 *             late_end();
 *         }
 *     } while (late_run(&late, &status));
 *     late_free(&late);
 */
struct late {
    /* The arguments of the report of a race.  The race has made the call fail
     * with PS_RAISED, without an exception.  NULL if there is none. */
    PyObject *report;
    /* A list of the arguments of schedules_note; NULL if there are none. */
    PyObject *notes;
    /* The accesses of the call that were reported.  If the call is made again,
     * they do not make it fail. */
    struct ps_access *reported;
    size_t count;
    /* Descriptions of operations that are to be freed; see
     * ps_description.next. */
    struct ps_description *forgotten;
};

/* Between late_begin and late_end, no code of the program may run on this
 * thread. */
ps_status late_begin(struct late *late);
void late_end(void);

/* Run the notes, then the report.  Returns true if the call has failed only
 * because of the race that was reported: then the call must be made again.  If
 * the report raises an exception, *status becomes PS_RAISED. */
bool late_run(struct late *late, ps_status *status);

void late_free(struct late *late);

/* Returns whether a race of the same access was reported after an earlier
 * call. */
bool late_knows(const struct late *late, const struct ps_race *race);

/* Leave the report of the race for later; `arguments` is NULL with an
 * exception, or a reference that is taken over.  Returns PS_RAISED. */
ps_status late_report(struct late *late, const struct ps_race *race,
                      PyObject *arguments);

/* A hook holds the GIL between hook_begin and hook_end.  Before CPython 3.12,
 * an allocation may run the garbage collector, and so code of the program, so
 * the collector is off meanwhile if such code must not run now. */
struct hook {
    PyGILState_STATE gil;
    bool collects;
    struct late *late; /* NULL if code of the program may run now */
};

struct hook hook_begin(void);
void hook_end(struct hook hook);

#endif
