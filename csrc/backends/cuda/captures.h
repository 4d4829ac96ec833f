/* Locks for calls of the driver that must not run at the same time, because
 * one of them begins, joins or ends a capture.  The driver crashes if a
 * capture ends while another thread calls cuStreamGetCaptureInfo or
 * cuStreamWriteValue32 for a stream of the capture. */
#ifndef PYSTREAMS_CUDA_CAPTURES_H
#define PYSTREAMS_CUDA_CAPTURES_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* ---- All captures ---- */

/* One thread at a time holds the captures.  It does so for each begin and end
 * of a capture, and for the calls that must not run during these.  None of
 * these calls may wait for room in the queue of a stream: there may be room
 * only after a callable has ended, and the callable may be waiting to hold the
 * captures. */
void cuda_captures_hold(void);
/* As cuda_captures_hold, but gives up after 100 ms, and then returns false. */
bool cuda_captures_try_hold(void);
void cuda_captures_release(void);

/* Count a capture before it begins, and uncount it after it has ended.  Call
 * these between cuda_captures_hold and cuda_captures_release. */
void cuda_captures_count(void);
void cuda_captures_uncount(void);

/* Returns whether any capture is counted.  This may be called at any time. */
bool cuda_captures_exist(void);

/* ---- One stream ---- */

/* A stream that a thread has entered. */
struct cuda_entered {
    ps_handle stream;
    struct cuda_entered *next;
};

/* One thread at a time enters a stream.  It does so to queue a gate on the
 * stream, to begin a capture on it or, while there is a capture, to make it
 * wait for an event, which may join it to the capture.  So a stream that is
 * not captured when a gate is about to be queued is not captured until the
 * gate has been queued.
 *
 * If another thread has entered the stream, cuda_stream_enter waits until that
 * thread leaves it, but at most 100 ms.  Without a limit, both might wait for
 * ever: that thread may be waiting for room in the stream's queue until a
 * callable has ended, and the callable may be waiting for the calling thread.
 * When the limit is reached, both threads have entered the stream. */
void cuda_stream_enter(struct cuda_entered *entered, ps_handle stream);
void cuda_stream_leave(struct cuda_entered *entered);

#endif
