/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* Returns a new reference to a stream for the handle.  It keeps its owner
 * alive; owner may be NULL.  The stream's device is the one that the backend
 * knows for the handle, else `device`.  With `strict`, raises ValueError if
 * the backend knows another device.  On failure, returns NULL with an
 * exception, which names the function. */
struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner);

/* Returns a new reference to the stream of an object with __cuda_stream__,
 * which is an argument of the function.  NULL with an exception. */
struct ps_stream *foreign_stream(const char *function, PyObject *object);

#endif
