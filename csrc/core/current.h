/* Current streams: one for each device, the default stream until another is
 * set.
 *
 * A `struct ps_currents` holds a reference to each stream that was set.  Its
 * owner says whose they are, and lets one thread at a time use them.  NULL has
 * the default streams. */
#ifndef PYSTREAMS_CORE_CURRENT_H
#define PYSTREAMS_CORE_CURRENT_H

#include <pystreams/backend.h>

struct ps_currents;
struct ps_device;
struct ps_stream;

/* A copy of others, which may be NULL.  NULL: out of memory. */
struct ps_currents *ps_currents_create(struct ps_currents *others);

/* Free it, with each stream that it held given to drop.  Any thread may call
 * it. */
void ps_currents_destroy(struct ps_currents *currents,
                         void (*drop)(struct ps_stream *stream));

/* Borrowed: valid until another is set; currents: may be NULL. */
struct ps_stream *
ps_current_stream(struct ps_currents *currents, struct ps_device *device);

/* References that a change below leaves without a place are handed to the
 * caller, who drops them. */

/* Make the stream current on its device, and its device current in place of
 * the one left.  After a failure nothing has changed.  May block, unless the
 * two are the same. */
ps_status
ps_current_set(struct ps_currents *currents, struct ps_stream *stream,
               struct ps_device *left, struct ps_stream **replaced);

/* As ps_current_set, remembering what was current on the device left and on
 * the device entered. */
ps_status
ps_current_enter(struct ps_currents *currents, struct ps_stream *stream,
                 struct ps_device *left, struct ps_stream **replaced);

/* Restore what the latest ps_current_enter of a stream with this handle found;
 * the stream itself may be gone.  PS_ERROR_INVALID_VALUE, and nothing dropped,
 * if it was not entered here.  currents: may be NULL. */
enum { PS_EXIT_DROPS = 3 };
ps_status
ps_current_exit(struct ps_currents *currents, struct ps_device *device,
                ps_handle handle, struct ps_stream *dropped[PS_EXIT_DROPS]);

#endif
