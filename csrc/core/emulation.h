/* Emulations: runtimes of emulated devices, each of which takes the place of
 * the runtime of its device type for a time.
 *
 * Objects know their runtime, so objects of the hidden runtime still work, and
 * so do those of an emulation that was left.  An emulation that was left is
 * reused when it has no objects. */
#ifndef PYSTREAMS_CORE_EMULATION_H
#define PYSTREAMS_CORE_EMULATION_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

struct ps_runtime;

enum { PS_EMULATED_DEVICES = 16 };

/* Make an emulation, entered and hidden, over a table that shows
 * PS_EMULATED_DEVICES devices.  PS_ERROR_OUT_OF_MEMORY, also if there are too
 * many runtimes. */
ps_status ps_emulation_create(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_runtime **runtime);

/* Enter an emulation that was left; false if core knows of objects of it.  The
 * caller must also ask the backend. */
bool ps_emulation_reuse(struct ps_runtime *runtime);

/* Show `devices` of its devices, unused, in place of `previous`, which may be
 * NULL. */
void ps_emulation_show(struct ps_runtime *runtime, int devices,
                       struct ps_runtime *previous);

/* Put previous back in its place.  Frees the memory, streams and events in
 * pools. */
void
ps_emulation_leave(struct ps_runtime *runtime, struct ps_runtime *previous);

/* End the calling thread's default streams of emulations that were left, which
 * would keep them from being reused.  May block. */
void ps_emulations_leave_thread(void);

#endif
