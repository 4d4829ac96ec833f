/* The default streams of threads.  The handle PS_STREAM_PER_THREAD means a
 * different stream on each thread.  So the backend may be called with the
 * handle of a PS_STREAM_THREADS stream only on that stream's own thread.
 * Other threads use events that were recorded on the stream. */
#ifndef PYSTREAMS_CORE_THREAD_STREAM_H
#define PYSTREAMS_CORE_THREAD_STREAM_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "stream.h"

struct ps_device;
struct ps_runtime;

/* Returns a new reference to the calling thread's default stream of the
 * device; NULL if the thread has not created it. */
struct ps_stream *ps_thread_stream(struct ps_device *device);

/* Create the calling thread's default stream of the device; the thread must
 * not have one yet.  `name`, for people, is copied.  freed(stream) is called
 * before the stream is freed, but not in a forked child.  The caller must make
 * sure that ps_thread_streams_end is called on this thread when it ends.
 * Statuses: PS_ERROR_NOT_SUPPORTED, PS_ERROR_OUT_OF_MEMORY, PS_ERROR_FOREIGN
 * in a forked child that may not use the device. */
ps_status
ps_thread_stream_create(struct ps_device *device, const char *name,
                        void (*freed)(const struct ps_stream *stream),
                        struct ps_stream **stream);

/* If another thread has freed the graph that was capturing this stream, end
 * the capture.  The stream must be a default stream of the calling thread.
 * May block. */
void ps_thread_stream_recover(struct ps_stream *stream);

/* End the calling thread's default streams of the runtime, or of all runtimes
 * if `runtime` is NULL.  Call this when the thread ends, or will not use these
 * streams any more.  Call ps_memory_sweep first, because only this thread can
 * free memory on these streams.  Waits for the streams' work if the backend
 * has PS_BACKEND_THREADS_FINISH.  A failure is stored for
 * ps_runtime_take_failure.  May block. */
void ps_thread_streams_end(struct ps_runtime *runtime);

/* Returns true if core's housekeeping must not use the stream now: the stream
 * is being captured, or is another thread's default stream and may have
 * pending work. */
bool ps_stream_is_out_of_reach(struct ps_stream *stream);

/* Record the stream's event of_thread.latest, so that other threads can wait
 * for the stream's work.  A thread must call this after it has queued, on its
 * own default stream, work that uses a block of memory. */
void ps_thread_stream_mark(struct ps_stream *stream);

/* Find out how the calling thread can wait for the stream.  If the stream is
 * remote (see ps_stream_is_remote), the thread must wait for an event,
 * stream->of_thread.latest, and *latest becomes this event.  Otherwise *latest
 * becomes NULL, and the thread can wait for the stream itself.  Returns
 * PS_ERROR_LAGS if the event was not recorded after the stream's latest work,
 * because the stream's queue was full, or because the thread to which the
 * stream belongs ended during a capture. */
ps_status
ps_thread_stream_latest(struct ps_stream *stream, struct ps_event **latest);

#endif
