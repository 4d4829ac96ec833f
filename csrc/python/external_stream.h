/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* Returns a new reference to a stream for the handle, or NULL with an
 * exception that names the function.  A stream other than a default stream
 * keeps `owner` alive; `owner` may be NULL.  The stream's device is the one
 * that the backend finds for the handle, or `device` if the backend cannot
 * tell.  If `strict` is true and the backend finds another device than
 * `device`, raises ValueError. */
struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner);

/* Returns a new reference to the stream that the object's __cuda_stream__
 * gives; NULL with an exception.  The object is an argument of the function
 * with the name `function`. */
struct ps_stream *foreign_stream(const char *function, PyObject *object);

#endif
