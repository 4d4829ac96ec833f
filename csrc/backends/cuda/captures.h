/* Locks for driver calls that must not run at the same time, because one of
 * them begins, joins or ends a capture.  The driver crashes if a capture ends
 * while another thread calls cuStreamGetCaptureInfo or cuStreamWriteValue32
 * for a stream of the capture. */
#ifndef PYSTREAMS_CUDA_CAPTURES_H
#define PYSTREAMS_CUDA_CAPTURES_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* ---- All captures ---- */

/* One thread at a time holds the captures.  A thread does so while it begins
 * or ends a capture, and while it makes a call that must not run at such a
 * time.  None of these calls may wait for room in a stream's queue: there may
 * be room only after a callable has ended, and the callable may be waiting to
 * hold the captures. */
void cuda_captures_hold(void);
/* Like cuda_captures_hold, but gives up after 100 ms, and then returns
 * false. */
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

/* One thread at a time enters a stream.  A thread does so to queue a gate on
 * the stream, to begin a capture on the stream or, while there is a capture,
 * to make the stream wait for an event, which may join the stream to the
 * capture.  So if a stream is not captured when a thread is about to queue a
 * gate, it stays uncaptured until the gate has been queued.
 *
 * If another thread has entered the stream, cuda_stream_enter waits until that
 * thread leaves it, but at most 100 ms.  Without a limit, both might wait for
 * ever: that thread may be waiting for room in the stream's queue until a
 * callable has ended, and the callable may be waiting for the calling thread.
 * When the limit is reached, both threads have entered the stream. */
void cuda_stream_enter(struct cuda_entered *entered, ps_handle stream);
void cuda_stream_leave(struct cuda_entered *entered);

#endif
