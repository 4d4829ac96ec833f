/* The current streams of the calling thread, or of the asyncio task that it is
 * running.  All functions are called with the GIL held. */
#ifndef PYSTREAMS_PYTHON_CURRENT_H
#define PYSTREAMS_PYTHON_CURRENT_H

#include "../core/current.h"

#include "module.h"

/* Returns the current streams of the calling thread or its task.  Returns NULL
 * if no stream was ever set; each device's current stream is then its
 * first_current (see core/current.h).  The result is borrowed, and valid until
 * a stream is set. */
struct ps_currents *currents_in_use(void);

/* current_stream_of returns a new reference to the device's current stream.
 * thread_stream returns a new reference to the calling thread's default
 * stream, and creates the stream if there is none.  On failure, they return
 * NULL with an exception. */
struct ps_stream *current_stream_of(struct ps_device *device);
__attribute__((cold)) struct ps_stream *
thread_stream(struct ps_device *device);

/* Undo every change of a current stream that the calling thread or its task
 * has made on the runtime's devices.  After this, the current stream of each
 * of these devices is its first_current. */
void leave_current_streams(struct ps_runtime *runtime);

/* __enter__ and __exit__ of every type of Stream. */
PyObject *Stream_enter(PyObject *self, PyObject *ignored);
PyObject *Stream_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Returns a new reference to the current stream of the current device of this
 * type; NULL with an exception. */
struct ps_stream *current_stream_at(int type);

/* Returns a new reference to the argument if it is a Stream.  Otherwise
 * returns a new Stream for the stream that the argument names; see
 * stream_named.  type: the device type that the stream must have, or -1 if it
 * may have any.  On failure, returns NULL with an exception. */
PyObject *as_stream_object(const char *function, int type, PyObject *argument);

#endif
