/* Copies and fills in stream order. */
#ifndef PYSTREAMS_PYTHON_TRANSFER_H
#define PYSTREAMS_PYTHON_TRANSFER_H

#include "../core/stream.h"

#include "buffer.h"

/* The value of a fill, of 1, 2 or 4 bytes. */
struct pattern {
    uint32_t value;
    Py_ssize_t size;
};

/* -1 with ValueError that names the method unless the stream, or NULL, is of
 * the span's backend. */
int span_check_stream(const char *method, struct span *span,
                      struct ps_stream *stream);

/* Buffer.copy_ and Buffer.fill_, for a method; stream NULL: the current one of
 * the device memory.  -1 with an exception. */
int span_copy(const char *method, struct span *to, struct span *from,
              struct ps_stream *stream, bool non_blocking);
int span_fill(const char *method, struct span *span,
              const struct pattern *pattern, struct ps_stream *stream);

/* Make the stream (NULL: the caller, with the GIL released) wait for all work
 * known to use the memory; -1 with an exception. */
int span_settle(struct span *span, struct ps_stream *stream);

#endif
