/* A table that observes the calls of another one. */
#ifndef PYSTREAMS_OBSERVE_TABLE_H
#define PYSTREAMS_OBSERVE_TABLE_H

#include <pystreams/backend.h>

/* The table for a runtime, by its number, whose backend is given, or stands
 * behind its other table, that of schedules: always the same, which lives as
 * long as the process.  Called by one thread at a time. */
const struct ps_backend *
ps_observed_table(int runtime, const struct ps_backend *backend);

#endif
