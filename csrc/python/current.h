/* The current streams of the calling thread, or of the asyncio task that it
 * runs.  Each call needs the GIL. */
#ifndef PYSTREAMS_PYTHON_CURRENT_H
#define PYSTREAMS_PYTHON_CURRENT_H

#include "../core/current.h"

#include "module.h"

/* The current streams; NULL if all are the first ones.  Borrowed until they
 * change. */
struct ps_currents *currents_in_use(void);

/* New references to the device's current stream, and to the calling thread's
 * default stream; NULL with an exception. */
struct ps_stream *current_stream_of(struct ps_device *device);
__attribute__((cold)) struct ps_stream *
thread_stream(struct ps_device *device);

/* `with stream:`, for any Stream. */
PyObject *Stream_enter(PyObject *self, PyObject *ignored);
PyObject *Stream_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* A new reference to the current stream of a device type's current device;
 * NULL with an exception. */
struct ps_stream *current_stream_at(int type);

/* The argument if it is a Stream, else a new Stream for the result of
 * stream_named.
 * type: the only device type that it may have; -1 for any. */
PyObject *as_stream_object(const char *function, int type, PyObject *argument);

#endif
