/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* Returns a new reference to a stream for the handle, or NULL with an
 * exception that names the function.  The stream keeps `owner` alive, which
 * may be NULL; a default stream does not.  The stream's device is the one that
 * the backend finds for the handle, or `device` if the backend cannot tell.
 * If `strict` is true and the backend finds another device than `device`,
 * raises ValueError. */
struct ps_stream *
stream_from_handle(const char *function, struct ps_device *device, bool strict,
                   ps_handle handle, PyObject *owner);

/* Returns a new reference to the stream of an object with __cuda_stream__,
 * which is an argument of the function.  NULL with an exception. */
struct ps_stream *foreign_stream(const char *function, PyObject *object);

#endif
