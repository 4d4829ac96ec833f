/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* A new reference to a stream that keeps its owner (may be NULL) alive.  Its
 * device is that of the handle if the backend knows it; strict: ValueError if
 * that is not the given device.  NULL with an exception, which
 * names the function. */
struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner);

/* A new reference to the stream of an object with __cuda_stream__, which is an
 * argument of the function; NULL with an exception. */
struct ps_stream *foreign_stream(const char *function, PyObject *object);

#endif
