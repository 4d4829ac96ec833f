/* Copies and fills of spans, in stream order. */
#ifndef PYSTREAMS_PYTHON_TRANSFER_H
#define PYSTREAMS_PYTHON_TRANSFER_H

#include "../core/stream.h"

#include "buffer.h"

/* The value of a fill: 1, 2 or 4 bytes. */
struct pattern {
    uint32_t value;
    Py_ssize_t size;
};

/* Check that the stream, unless it is NULL, belongs to the span's backend.  On
 * failure, returns -1 with ValueError, which names the method. */
int span_check_stream(const char *method, struct span *span,
                      struct ps_stream *stream);

/* Buffer.copy_ and Buffer.fill_.  `method` is for error messages.  If the
 * stream is NULL, they use the current stream of the device memory's device.
 * On failure, return -1 with an exception. */
int span_copy(const char *method, struct span *to, struct span *from,
              struct ps_stream *stream, bool non_blocking);
int span_fill(const char *method, struct span *span,
              const struct pattern *pattern, struct ps_stream *stream);

/* Wait for all work that is known to use the memory.  The stream waits or, if
 * it is NULL, the caller, with the GIL released.  On failure, returns -1 with
 * an exception. */
int span_settle(struct span *span, struct ps_stream *stream);

#endif
