/* Copies and fills of spans, queued on streams. */
#ifndef PYSTREAMS_PYTHON_TRANSFER_H
#define PYSTREAMS_PYTHON_TRANSFER_H

#include "../core/stream.h"

#include "buffer.h"

/* The value of a fill, which has 1, 2 or 4 bytes. */
struct pattern {
    uint32_t value;
    Py_ssize_t size;
};

/* Check that the stream belongs to the same backend as the span, unless the
 * stream is NULL.  If it does not, returns -1 with an exception that names the
 * method. */
int span_check_stream(const char *method, struct span *span,
                      struct ps_stream *stream);

/* Do what Buffer.copy_ and Buffer.fill_ do.  `method` is for error messages.
 * If `stream` is NULL, they do what these methods do for None.  On failure,
 * return -1 with an exception. */
int span_copy(const char *method, struct span *to, struct span *from,
              struct ps_stream *stream, bool non_blocking);
int span_fill(const char *method, struct span *span,
              const struct pattern *pattern, struct ps_stream *stream);

/* Make the stream wait for all work that is known to use the span's memory.
 * If the stream is NULL, the calling thread waits instead, with the GIL
 * released.  On failure, returns -1 with an exception. */
int span_settle(struct span *span, struct ps_stream *stream);

#endif
