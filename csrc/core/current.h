/* Current streams: one for each device.  It is the device's first_current
 * until another stream is set.
 *
 * A `struct ps_currents` belongs to a thread or a task, and one thread at a
 * time may use it.  It holds a reference to each stream that was set.  Where a
 * function accepts NULL, every device's current stream is its
 * first_current. */
#ifndef PYSTREAMS_CORE_CURRENT_H
#define PYSTREAMS_CORE_CURRENT_H

#include <pystreams/backend.h>

struct ps_currents;
struct ps_device;
struct ps_stream;

/* Return a copy of others, which may be NULL.  Returns NULL if out of
 * memory. */
struct ps_currents *ps_currents_create(struct ps_currents *others);

/* Free *currents, and call drop for each stream of which it held a reference.
 * Any thread may call this. */
void ps_currents_destroy(struct ps_currents *currents,
                         void (*drop)(struct ps_stream *stream));

/* Return the device's current stream.  The reference is borrowed, and valid
 * until another stream is set.  currents may be NULL. */
struct ps_stream *
ps_current_stream(struct ps_currents *currents, struct ps_device *device);

/* The functions below replace streams, and hand the references to the replaced
 * streams to the caller, which drops them. */

/* Make the stream current on its device, and switch from `left`, the thread's
 * current device, to the stream's device.  A failure changes nothing.  May
 * block, unless the two devices are the same. */
ps_status
ps_current_set(struct ps_currents *currents, struct ps_stream *stream,
               struct ps_device *left, struct ps_stream **replaced);

/* As ps_current_set, and also remember which streams were current on both
 * devices, for ps_current_exit. */
ps_status
ps_current_enter(struct ps_currents *currents, struct ps_stream *stream,
                 struct ps_device *left, struct ps_stream **replaced);

/* Undo the latest ps_current_enter of the stream with this handle on this
 * device.  The stream itself may have been freed.  Returns
 * PS_ERROR_INVALID_VALUE, and drops nothing, if no such stream was entered.
 * currents may be NULL. */
enum { PS_EXIT_DROPS = 3 };
ps_status
ps_current_exit(struct ps_currents *currents, struct ps_device *device,
                ps_handle handle, struct ps_stream *dropped[PS_EXIT_DROPS]);

#endif
