/* Current streams.  In each thread or asyncio task, each device has one
 * current stream.  This is the device's first_current (see runtime.h) until
 * another stream is set.
 *
 * A `struct ps_currents` has the current streams of one thread or asyncio
 * task.  Only one thread at a time may use it.  It holds a reference to each
 * stream that was set.  Some functions also accept NULL, which means that no
 * stream was set, so that every device's current stream is its
 * first_current. */
#ifndef PYSTREAMS_CORE_CURRENT_H
#define PYSTREAMS_CORE_CURRENT_H

#include <pystreams/backend.h>

struct ps_currents;
struct ps_device;
struct ps_stream;

/* Create a copy of `others`.  If `others` is NULL or was created before this
 * process was forked, no streams are set in the new object.  Returns NULL if
 * out of memory. */
struct ps_currents *ps_currents_create(struct ps_currents *others);

/* Free *currents.  For each of its stream references, call drop, which must
 * drop the reference.  Any thread may call this. */
void ps_currents_destroy(struct ps_currents *currents,
                         void (*drop)(struct ps_stream *stream));

/* Returns the device's current stream as a borrowed reference, which is valid
 * until another stream is set.  currents may be NULL. */
struct ps_stream *
ps_current_stream(struct ps_currents *currents, struct ps_device *device);

/* Search the devices of the runtime with this index for one on which a stream
 * was set.  Remove that stream, so that the device's current stream is its
 * first_current again.  Returns the removed stream, and the caller must drop
 * the reference to it.  Returns NULL if no stream was set on any of the
 * devices. */
struct ps_stream *ps_current_take(struct ps_currents *currents, int runtime);

/* The functions below replace current streams.  They return the references to
 * the replaced streams, and the caller must drop these. */

/* Make the stream current on its device, and make that device the thread's
 * current device.  `left` is the thread's current device before the call.  A
 * failure changes nothing.  May block, unless the two devices are the same. */
ps_status
ps_current_set(struct ps_currents *currents, struct ps_stream *stream,
               struct ps_device *left, struct ps_stream **replaced);

/* Like ps_current_set, but also remember which streams were current on the two
 * devices, so that ps_current_exit can restore them. */
ps_status
ps_current_enter(struct ps_currents *currents, struct ps_stream *stream,
                 struct ps_device *left, struct ps_stream **replaced);

/* Undo the latest ps_current_enter of the stream with this handle on this
 * device.  The caller need not hold a reference to the stream.  dropped
 * receives the references that the caller must drop.  Returns
 * PS_ERROR_INVALID_VALUE, and changes nothing, if no such stream was entered.
 * currents may be NULL. */
enum { PS_EXIT_DROPS = 3 };
ps_status
ps_current_exit(struct ps_currents *currents, struct ps_device *device,
                ps_handle handle, struct ps_stream *dropped[PS_EXIT_DROPS]);

#endif
