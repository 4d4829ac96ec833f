/* The race detector's table, which observes the calls to another table; see
 * forward.h. */
#ifndef PYSTREAMS_OBSERVE_TABLE_H
#define PYSTREAMS_OBSERVE_TABLE_H

#include <pystreams/backend.h>

/* Returns the race detector's table for the runtime with this index.  It
 * forwards calls to `backend`, has the same flags, and lives until the process
 * ends.  Only one thread at a time may call this. */
const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend);

#endif
