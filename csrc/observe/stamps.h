/* Measures the times of operations whose backend does not report them: a timed
 * event is recorded before each operation, and another one after it.
 *
 * To get the host's time of an event, the event is compared with a base: an
 * event whose time on the host's clock was measured, with a known error.  A
 * new base is made every second, because the clocks of host and device drift,
 * and because event_elapsed returns a float, which gets less precise with the
 * distance. */
#ifndef PYSTREAMS_OBSERVE_STAMPS_H
#define PYSTREAMS_OBSERVE_STAMPS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_stamps;

/* Returns whether the backend has the members that these functions need. */
bool ps_stamps_are_possible(const struct ps_backend *backend);

/* Returns whether the stream is being captured; true also if the backend
 * cannot tell. */
bool ps_is_capturing(const struct ps_backend *backend,
                     const struct ps_actor_name *stream);

/* Call this before an operation is queued on the stream: records an event.
 * Returns NULL if the stream is being captured, or if recording failed. */
struct ps_stamps *ps_stamps_begin(const struct ps_backend *backend,
                                  const struct ps_actor_name *stream);

/* Call this after the operation was queued: records the second event.  *times
 * will be written by a later call of this file, when the operation is done.
 * Returns false, and never writes *times, if recording failed or stamps is
 * NULL. */
bool ps_stamps_end(struct ps_stamps *stamps, struct ps_times *times);
/* Call this instead if the operation was not queued. */
void ps_stamps_drop(struct ps_stamps *stamps);

/* Write the times of all operations that have ended since the last call. */
void ps_stamps_collect(void);

/* Returns the time of CLOCK_MONOTONIC, in nanoseconds. */
int64_t ps_stamps_now(void);

/* ps_stamps_reset forgets the bases, so that new ones are measured.
 * ps_stamps_error returns the greatest error of a time since then, in
 * nanoseconds.  ps_stamps_note_error adds the error of times that were
 * measured elsewhere. */
void ps_stamps_reset(void);
int64_t ps_stamps_error(void);
void ps_stamps_note_error(int64_t error);

/* Destroy the events that are kept for reuse and not needed any more. */
void ps_stamps_release(void);

/* Called in a forked child: forgets the events, because they belong to the
 * parent. */
void ps_stamps_forget(void);

#endif
