/* A table that observes the calls of another one for the race detector. */
#ifndef PYSTREAMS_OBSERVE_TABLE_H
#define PYSTREAMS_OBSERVE_TABLE_H

#include <pystreams/backend.h>

/* The table for a runtime, by its number, that calls the given one and has its
 * flags.  It lives as long as the process.  Called by one thread at a time. */
const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend);

#endif
