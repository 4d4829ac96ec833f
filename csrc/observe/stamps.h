/* Stamps measure when an operation begins and ends, if the backend does not
 * report these times.  They are two timed events: one is recorded before the
 * operation, the other after it.
 *
 * To get the time of an event on the host's clock, event_elapsed compares the
 * event with a base.  A base is an event whose time on the host's clock was
 * measured, with a known error.  A new base is made every second, because the
 * host's and the device's clocks drift apart, and because event_elapsed
 * returns a float, which is less precise for events that are further apart. */
#ifndef PYSTREAMS_OBSERVE_STAMPS_H
#define PYSTREAMS_OBSERVE_STAMPS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_stamps;

/* Returns whether the backend has the members that these functions need. */
bool ps_stamps_are_possible(const struct ps_backend *backend);

/* Returns whether the stream is being captured.  Also returns true if this
 * cannot be determined, because the query fails or because the stream is
 * another thread's default stream. */
bool ps_is_capturing(const struct ps_backend *backend,
                     const struct ps_actor_name *stream);

/* Record the first event.  Call this before an operation is queued on the
 * stream.  Returns NULL if the stream is being captured, or if recording
 * failed. */
struct ps_stamps *ps_stamps_begin(const struct ps_backend *backend,
                                  const struct ps_actor_name *stream);

/* Record the second event.  Call this after the operation was queued.  After
 * the operation has ended, a later call to ps_stamps_begin, ps_stamps_collect
 * or ps_stamps_release stores its times in *times.  If recording fails or
 * stamps is NULL, returns false, and *times is never written. */
bool ps_stamps_end(struct ps_stamps *stamps, struct ps_times *times);
/* Call this instead of ps_stamps_end if the operation was not queued. */
void ps_stamps_drop(struct ps_stamps *stamps);

/* Store the times of all operations that have ended since the last call. */
void ps_stamps_collect(void);

/* Returns the time of CLOCK_MONOTONIC, in nanoseconds. */
int64_t ps_stamps_now(void);

/* ps_stamps_reset forgets the bases, so that new ones are measured, and sets
 * the greatest error to 0.  ps_stamps_error returns the greatest error, in
 * nanoseconds, of any time measured since then.  Call ps_stamps_note_error to
 * include the error of a time that was measured elsewhere. */
void ps_stamps_reset(void);
int64_t ps_stamps_error(void);
void ps_stamps_note_error(int64_t error);

/* Drop the bases, and destroy the events that were kept for reuse.  The events
 * of operations that have not ended are not destroyed. */
void ps_stamps_release(void);

/* Called in a forked child.  Forgets the events, because they belong to the
 * parent. */
void ps_stamps_forget(void);

#endif
