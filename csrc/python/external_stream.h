/* Streams that another library owns. */
#ifndef PYSTREAMS_PYTHON_EXTERNAL_STREAM_H
#define PYSTREAMS_PYTHON_EXTERNAL_STREAM_H

#include "../core/stream.h"

#include "module.h"

/* A new reference to a stream that owner (may be NULL) owns and that keeps it
 * alive.  Where the backend can tell the handle's device it is that one;
 * strict: ValueError where that is not the device given. */
struct ps_stream *
stream_from_handle(struct module_state *state, struct ps_device *device,
                   bool strict, ps_handle handle, PyObject *owner);

/* What __cuda_stream__ of an object says: 1 with a handle, 0 where it has
 * none, -1 with an exception. */
int cuda_stream_protocol(struct module_state *state, PyObject *object,
                         ps_handle *handle);

#endif
