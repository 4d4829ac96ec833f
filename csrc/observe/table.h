/* The table that observes the calls of another table for the race detector. */
#ifndef PYSTREAMS_OBSERVE_TABLE_H
#define PYSTREAMS_OBSERVE_TABLE_H

#include <pystreams/backend.h>

/* Returns the table for the runtime with this number.  It forwards calls to
 * `backend`, and has the same flags.  It lives until the process ends.  One
 * thread at a time calls this. */
const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend);

#endif
