/* The default streams of threads.  PS_STREAM_PER_THREAD names a different
 * stream on each thread, so a thread's stream, a PS_STREAM_THREADS, is used on
 * that thread alone.  Other threads rely on events that were recorded on
 * it. */
#ifndef PYSTREAMS_CORE_THREAD_STREAM_H
#define PYSTREAMS_CORE_THREAD_STREAM_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "stream.h"

struct ps_device;
struct ps_runtime;

/* A new reference to the calling thread's stream; NULL if it has none. */
struct ps_stream *ps_thread_stream(struct ps_device *device);

/* Likewise, made if it has none, with a name for people that is copied.  The
 * caller sees to it that ps_thread_streams_end is called on the thread.
 * Statuses: PS_ERROR_NOT_SUPPORTED, PS_ERROR_OUT_OF_MEMORY, PS_ERROR_FOREIGN
 * in a child that may not use the device. */
ps_status ps_thread_stream_create(struct ps_device *device, const char *name,
                                  struct ps_stream **stream);

/* End the capture of the calling thread's stream whose graph another thread
 * has dropped, if there is one.  May block. */
void ps_thread_stream_recover(struct ps_stream *stream);

/* The calling thread ends, or will use no stream of the runtime any more
 * (NULL: of any).  Call ps_memory_sweep first: nobody else frees memory in the
 * streams' order.  Waits for the work with PS_BACKEND_THREADS_FINISH.  A
 * failure is stored for ps_runtime_take_failure.  May block. */
void ps_thread_streams_end(struct ps_runtime *runtime);

/* Whether housekeeping has to leave the stream alone: it is being captured, or
 * is another thread's whose work is not known to be over. */
bool ps_stream_is_out_of_reach(struct ps_stream *stream);

/* The calling thread has queued work with a block on its stream: record the
 * event by which other threads wait for that. */
void ps_thread_stream_mark(struct ps_stream *stream);

/* That event, if the stream is remote; NULL if the calling thread waits for
 * the stream itself.
 * Statuses: PS_ERROR_LAGS if the event does not cover the latest work: there
 * was no room to record it, or the thread ended in a capture. */
ps_status
ps_thread_stream_latest(struct ps_stream *stream, struct ps_event **latest);

#endif
