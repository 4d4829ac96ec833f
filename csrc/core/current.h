/* The current stream: per thread and per device, the default stream until
 * one is set.
 *
 * A thread's choices are a `struct ps_thread` that holds a reference to each
 * stream.  Whoever makes it for a thread destroys it; core has no thread-local
 * destructor, since dropping a stream may call the device. */
#ifndef PYSTREAMS_CORE_CURRENT_H
#define PYSTREAMS_CORE_CURRENT_H

#include <pystreams/backend.h>

struct ps_device;
struct ps_stream;
struct ps_thread;

/* The calling thread's, or NULL. */
struct ps_thread *ps_thread_self(void);

/* Make the calling thread's; it must have none. */
ps_status ps_thread_create(struct ps_thread **thread);

/* Free it, with each stream that it held given to drop, after it is no more
 * the calling thread's.  Any thread may call it once the owner has ended. */
void ps_thread_destroy(struct ps_thread *thread,
                       void (*drop)(struct ps_stream *stream, void *context),
                       void *context);

/* Borrowed: valid until the calling thread sets another. */
struct ps_stream *ps_current_stream(struct ps_device *device);

/* The functions below need ps_thread_self() != NULL.  References that a change
 * leaves without a place are handed to the caller, who drops them. */

/* Make the stream current on its device, and its device current in place of
 * the one left.  After a failure nothing has changed.  May block, unless the
 * two are the same. */
ps_status ps_current_set(struct ps_stream *stream, struct ps_device *left,
                         struct ps_stream **replaced);

/* As ps_current_set, remembering what was current on the device left and on
 * the device entered. */
ps_status ps_current_enter(struct ps_stream *stream, struct ps_device *left,
                           struct ps_stream **replaced);

/* Restore what the latest ps_current_enter of a stream with this handle found;
 * the stream itself may be gone.  PS_ERROR_INVALID_VALUE, and nothing dropped,
 * when this thread has not entered it. */
enum { PS_EXIT_DROPS = 3 };
ps_status ps_current_exit(struct ps_device *device, ps_handle handle,
                          struct ps_stream *dropped[PS_EXIT_DROPS]);

#endif
