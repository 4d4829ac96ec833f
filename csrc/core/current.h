/* Current streams: one for each device, its first_current until another is
 * set.
 *
 * A `struct ps_currents` holds a reference to each stream that was set.  It
 * belongs to a thread or a task, and one thread at a time may use it.  NULL
 * stands for the first ones. */
#ifndef PYSTREAMS_CORE_CURRENT_H
#define PYSTREAMS_CORE_CURRENT_H

#include <pystreams/backend.h>

struct ps_currents;
struct ps_device;
struct ps_stream;

/* A copy of others, which may be NULL.  Returns NULL if out of memory. */
struct ps_currents *ps_currents_create(struct ps_currents *others);

/* Free it, and call drop for each stream that it held.  Any thread may call
 * this. */
void ps_currents_destroy(struct ps_currents *currents,
                         void (*drop)(struct ps_stream *stream));

/* The device's current stream, borrowed until another is set.  currents may be
 * NULL. */
struct ps_stream *
ps_current_stream(struct ps_currents *currents, struct ps_device *device);

/* The functions below return the references to the streams that they replace;
 * the caller drops them. */

/* Make the stream current on its device, and its device current in place of
 * `left`.  After a failure nothing has changed.  May block, unless the two
 * devices are the same. */
ps_status
ps_current_set(struct ps_currents *currents, struct ps_stream *stream,
               struct ps_device *left, struct ps_stream **replaced);

/* As ps_current_set, and remember the streams that were current on the device
 * left and on the device entered. */
ps_status
ps_current_enter(struct ps_currents *currents, struct ps_stream *stream,
                 struct ps_device *left, struct ps_stream **replaced);

/* Restore the state before the latest ps_current_enter of a stream with this
 * handle; the stream itself may be gone.  PS_ERROR_INVALID_VALUE, with nothing
 * dropped, if no such stream was entered.  currents may be NULL. */
enum { PS_EXIT_DROPS = 3 };
ps_status
ps_current_exit(struct ps_currents *currents, struct ps_device *device,
                ps_handle handle, struct ps_stream *dropped[PS_EXIT_DROPS]);

#endif
