/* Times of operations on devices whose backend does not report them: a timed
 * event is recorded before each operation, and one after it.
 *
 * Events are compared with a base: an event whose time the host knows, within
 * an error that is measured.  There is a new base every second, as the clocks
 * of host and device drift, and as elapsed times are floats. */
#ifndef PYSTREAMS_OBSERVE_STAMPS_H
#define PYSTREAMS_OBSERVE_STAMPS_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

struct ps_stamps;

/* Whether the backend has the members that this needs. */
bool ps_stamps_are_possible(const struct ps_backend *backend);

/* Whether the stream is being captured; true if the backend cannot say. */
bool ps_is_capturing(const struct ps_backend *backend,
                     const struct ps_actor_name *stream);

/* An operation is about to be queued on the stream; NULL if that is being
 * captured, or something failed. */
struct ps_stamps *ps_stamps_begin(const struct ps_backend *backend,
                                  const struct ps_actor_name *stream);

/* It was queued: write its times, sooner or later.  Returns false, and writes
 * none, if that failed.  stamps may be NULL. */
bool ps_stamps_end(struct ps_stamps *stamps, struct ps_times *times);
/* It was not. */
void ps_stamps_drop(struct ps_stamps *stamps);

/* Write the times of all operations that have ended. */
void ps_stamps_collect(void);

/* CLOCK_MONOTONIC, in nanoseconds. */
int64_t ps_stamps_now(void);

/* Measure the clocks anew from here on; the greatest error since then, in
 * nanoseconds: of what is measured here, and of other times, which are noted.
 */
void ps_stamps_reset(void);
int64_t ps_stamps_error(void);
void ps_stamps_note_error(int64_t error);

/* Destroy the events that nothing needs any more. */
void ps_stamps_release(void);

/* In a forked child: the events are the parent's. */
void ps_stamps_forget(void);

#endif
