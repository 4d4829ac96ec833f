/* The default streams of threads.  PS_STREAM_PER_THREAD is the handle of a
 * different stream on each thread.  So a stream of kind PS_STREAM_THREADS is
 * used on its own thread alone.  Other threads use events that were recorded
 * on it. */
#ifndef PYSTREAMS_CORE_THREAD_STREAM_H
#define PYSTREAMS_CORE_THREAD_STREAM_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "stream.h"

struct ps_device;
struct ps_runtime;

/* Returns a new reference to the calling thread's stream; NULL if it has
 * none. */
struct ps_stream *ps_thread_stream(struct ps_device *device);

/* As ps_thread_stream, but create the stream if the thread has none.  `name`,
 * for people, is copied.  The caller must make sure that ps_thread_streams_end
 * is called on this thread.  Statuses: PS_ERROR_NOT_SUPPORTED,
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_FOREIGN in a child that may not use the
 * device. */
ps_status ps_thread_stream_create(struct ps_device *device, const char *name,
                                  struct ps_stream **stream);

/* If another thread has freed the graph that was capturing the calling
 * thread's stream, end that capture.  May block. */
void ps_thread_stream_recover(struct ps_stream *stream);

/* Call when the calling thread ends, or will use its default streams of the
 * runtime no more (NULL: of all runtimes).  Call ps_memory_sweep first: no
 * other thread can free memory on these streams.  Waits for the streams' work
 * if the backend has PS_BACKEND_THREADS_FINISH.  A failure is stored for
 * ps_runtime_take_failure.  May block. */
void ps_thread_streams_end(struct ps_runtime *runtime);

/* Whether core's housekeeping must not use the stream: it is being captured,
 * or it belongs to another thread and its work may not be over. */
bool ps_stream_is_out_of_reach(struct ps_stream *stream);

/* The calling thread has queued work with a block on its own default stream.
 * Record the stream's latest event after it, for other threads to wait for. */
void ps_thread_stream_mark(struct ps_stream *stream);

/* *latest becomes the stream's latest event if the stream is remote, else
 * NULL: the calling thread can then wait for the stream itself.  Returns
 * PS_ERROR_LAGS if the event does not cover the latest work, because there was
 * no room to record it or the thread ended during a capture. */
ps_status
ps_thread_stream_latest(struct ps_stream *stream, struct ps_event **latest);

#endif
