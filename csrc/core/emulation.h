/* Emulations: runtimes of emulated devices.  While an emulation is entered, it
 * takes the place of the runtime of its device type, which is hidden.
 *
 * Objects keep a pointer to their runtime.  So the objects of a hidden runtime
 * still work, and so do the objects of an emulation that was left.  An
 * emulation that was left is reused once it has no objects. */
#ifndef PYSTREAMS_CORE_EMULATION_H
#define PYSTREAMS_CORE_EMULATION_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

struct ps_runtime;

enum { PS_EMULATED_DEVICES = 16 };

/* Make an emulation over a table with PS_EMULATED_DEVICES devices.  It is
 * marked as entered, so that no other thread reuses it, and as hidden until
 * ps_emulation_show.  Returns PS_ERROR_OUT_OF_MEMORY also if there are too
 * many runtimes. */
ps_status ps_emulation_create(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_runtime **runtime);

/* Enter again an emulation that was left.  Returns false if core still has
 * objects of this emulation.  The caller must also check that the backend has
 * none. */
bool ps_emulation_reuse(struct ps_runtime *runtime);

/* Show the first `devices` devices of the emulation, in their initial state,
 * and hide `previous`, which may be NULL. */
void ps_emulation_show(struct ps_runtime *runtime, int devices,
                       struct ps_runtime *previous);

/* Hide the emulation and show `previous` again, which may be NULL.  Frees the
 * emulation's pooled memory, streams and events. */
void
ps_emulation_leave(struct ps_runtime *runtime, struct ps_runtime *previous);

/* End the calling thread's default streams of emulations that were left.
 * These streams would prevent the reuse of the emulations.  May block. */
void ps_emulations_leave_thread(void);

#endif
