/* Functions that queue work on streams.  Each calls an optional member of the
 * backend; backend.h says whether it may block.  Each returns
 * PS_ERROR_NOT_SUPPORTED if the backend lacks that member, and
 * PS_ERROR_FOREIGN if a parent process created the stream. */
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

/* *capturing becomes whether the stream is being captured; 0 if the backend
 * cannot capture. */
ps_status ps_stream_capturing(struct ps_stream *stream, int *capturing);

#endif
