/* Functions that queue work on streams, and ps_stream_capturing.  Each calls
 * an optional member of the backend.  backend.h and faults.h say whether the
 * member may block.  Each returns PS_ERROR_FOREIGN if a parent process created
 * the stream.  All except ps_stream_capturing return PS_ERROR_NOT_SUPPORTED if
 * the backend lacks the member. */
#ifndef PYSTREAMS_CORE_WORK_H
#define PYSTREAMS_CORE_WORK_H

#include <pystreams/backend.h>

#include <stdbool.h>

struct ps_stream;

/* Queue a copy.  nbytes may be 0. */
ps_status ps_stream_copy(struct ps_stream *stream, void *destination,
                         const void *source, size_t nbytes);

/* Queue a fill with a value of `size` bytes: 1, 2 or 4.  nbytes is a multiple
 * of size. */
ps_status ps_stream_fill(struct ps_stream *stream, void *destination,
                         uint32_t value, size_t size, size_t nbytes);
ps_status ps_stream_host_function(struct ps_stream *stream,
                                  ps_host_function function, void *argument);
ps_status ps_stream_sleep(struct ps_stream *stream, uint64_t cycles);
ps_status ps_stream_fail(struct ps_stream *stream, ps_status failure);

/* *capturing becomes 1 if the stream is being captured, and otherwise 0.  It
 * becomes 0, too, if the backend cannot capture. */
ps_status ps_stream_capturing(struct ps_stream *stream, int *capturing);

#endif
