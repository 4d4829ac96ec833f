/* Keeps threads apart whose calls of the driver crash if they are made at the
 * same time.  The driver crashes if a capture ends while another thread calls
 * cuStreamGetCaptureInfo or cuStreamWriteValue32 for a stream of the
 * capture. */
#ifndef PYSTREAMS_CUDA_CAPTURES_H
#define PYSTREAMS_CUDA_CAPTURES_H

#include <stdbool.h>

#include <pystreams/backend.h>

/* ---- All captures ---- */

/* Between these two calls, no other thread is between them.  They enclose each
 * begin and end of a capture, and the calls that must not come at the same
 * time.  None of these calls may wait for room in the queue of a stream: the
 * room may come only after a callable has ended, and the callable may be
 * waiting for the other thread. */
void cuda_captures_hold(void);
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

/* Between these two calls, no other thread is between them for the same
 * stream.  They enclose each call that queues a gate on the stream, begins a
 * capture on it, or may join it to a capture.  So if the stream is not being
 * captured when a gate is about to be queued, it is not captured until the
 * gate has been queued.
 *
 * cuda_stream_enter waits for the other thread, but no longer than 100 ms.
 * That thread may be waiting for room in the stream's queue until a callable
 * has ended, and the callable may be waiting for the calling thread. */
void cuda_stream_enter(struct cuda_entered *entered, ps_handle stream);
void cuda_stream_leave(struct cuda_entered *entered);

#endif
