/* The current streams of the calling thread, or of the asyncio task that it
 * runs.  All functions are called with the GIL held. */
#ifndef PYSTREAMS_PYTHON_CURRENT_H
#define PYSTREAMS_PYTHON_CURRENT_H

#include "../core/current.h"

#include "module.h"

/* Returns the calling context's current streams; NULL if it never set another
 * stream than the default one.  Borrowed until a stream is set. */
struct ps_currents *currents_in_use(void);

/* Returns a new reference to the device's current stream, or to the calling
 * thread's default stream.  NULL with an exception. */
struct ps_stream *current_stream_of(struct ps_device *device);
__attribute__((cold)) struct ps_stream *
thread_stream(struct ps_device *device);

/* `with stream:`, for any Stream. */
PyObject *Stream_enter(PyObject *self, PyObject *ignored);
PyObject *Stream_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Returns a new reference to the current stream of the current device of this
 * type; NULL with an exception. */
struct ps_stream *current_stream_at(int type);

/* Returns the argument if it is a Stream.  Otherwise returns a new Stream for
 * the result of stream_named.  type: the device type that the stream must
 * have; -1 for any. */
PyObject *as_stream_object(const char *function, int type, PyObject *argument);

#endif
