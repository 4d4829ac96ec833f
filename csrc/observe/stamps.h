/* The times of operations on devices whose backend does not report them.  A
 * timed event is recorded before each operation, and one after it.
 *
 * The events are compared with a base: an event whose time on the host's clock
 * was measured, with a known error.  A new base is made every second.  The
 * reason is that the clocks of host and device drift, and that elapsed times
 * are floats. */
#ifndef PYSTREAMS_OBSERVE_STAMPS_H
#define PYSTREAMS_OBSERVE_STAMPS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_stamps;

/* Returns whether the backend has the members that this needs. */
bool ps_stamps_are_possible(const struct ps_backend *backend);

/* Returns whether the stream is being captured.  Also true if the backend
 * cannot tell. */
bool ps_is_capturing(const struct ps_backend *backend,
                     const struct ps_actor_name *stream);

/* Call before an operation is queued on the stream.  Returns NULL if the
 * stream is being captured, or if recording failed. */
struct ps_stamps *ps_stamps_begin(const struct ps_backend *backend,
                                  const struct ps_actor_name *stream);

/* Call after the operation was queued: *times will be written sooner or later.
 * Returns false, and writes nothing, if recording failed.  stamps may be
 * NULL. */
bool ps_stamps_end(struct ps_stamps *stamps, struct ps_times *times);
/* Call if the operation was not queued. */
void ps_stamps_drop(struct ps_stamps *stamps);

/* Write the times of all operations that have ended. */
void ps_stamps_collect(void);

/* The time of CLOCK_MONOTONIC, in nanoseconds. */
int64_t ps_stamps_now(void);

/* ps_stamps_reset: from here on, measure new bases.  ps_stamps_error returns
 * the greatest error since then, in nanoseconds.  It includes the errors that
 * ps_stamps_note_error notes for times that are measured elsewhere. */
void ps_stamps_reset(void);
int64_t ps_stamps_error(void);
void ps_stamps_note_error(int64_t error);

/* Destroy the events that nothing needs any more. */
void ps_stamps_release(void);

/* Called in a forked child: forget the events, which are the parent's. */
void ps_stamps_forget(void);

#endif
