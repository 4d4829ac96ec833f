/* Keeps threads from making calls of the driver at the same time as a capture
 * begins or ends.  The driver crashes if a capture ends while another thread
 * calls cuStreamGetCaptureInfo or cuStreamWriteValue32 for a stream of the
 * capture. */
#ifndef PYSTREAMS_CUDA_CAPTURES_H
#define PYSTREAMS_CUDA_CAPTURES_H

#include <stdbool.h>

/* Between cuda_captures_hold and cuda_captures_release, no other thread is
 * between these two calls, or between cuda_captures_share and
 * cuda_captures_release. */
void cuda_captures_hold(void);
/* As cuda_captures_hold, but while there is no capture, several threads may
 * share at once. */
void cuda_captures_share(void);
void cuda_captures_release(void);

/* Count a capture before it begins, and uncount it after it has ended.  Call
 * these between cuda_captures_hold and cuda_captures_release. */
void cuda_captures_count(void);
void cuda_captures_uncount(void);

/* Returns whether any capture is counted.  This may be called at any time. */
bool cuda_captures_exist(void);

#endif
