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

/* Any thread may call it once the owner has ended or calls it itself. */
void ps_thread_destroy(struct ps_thread *thread);

/* Borrowed: valid until the calling thread sets another. */
struct ps_stream *ps_current_stream(struct ps_device *device);

/* The functions below need ps_thread_self() != NULL. */

/* Make the stream current on its device, and its device current.  After a
 * failure nothing has changed.  May block. */
ps_status ps_current_set(struct ps_stream *stream);

/* As ps_current_set, remembering what was current on the device left and on
 * the device entered. */
ps_status ps_current_enter(struct ps_stream *stream);

/* Restore what the latest ps_current_enter of a stream with this handle found;
 * the stream itself may be gone.  PS_ERROR_INVALID_VALUE when this thread has
 * not entered it. */
ps_status ps_current_exit(struct ps_device *device, ps_handle handle);

#endif
