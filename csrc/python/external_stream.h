/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* Returns a new reference to a stream for the handle, or NULL with an
 * exception that names the function.  A stream other than a default stream
 * keeps `owner` alive; `owner` may be NULL.  The stream's device is the one
 * that the backend finds for the handle, or `device` if the backend cannot
 * tell.  If `strict` is true and the backend finds a device other than
 * `device`, raises ValueError. */
struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner);

/* Returns a new reference to the stream that the object's __cuda_stream__
 * returns; NULL with an exception.  The object is an argument of the function
 * named `function`. */
struct ps_stream *foreign_stream(const char *function, PyObject *object);

#endif
