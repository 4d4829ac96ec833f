/* Emulations: runtimes whose devices are emulated.  A program enters an
 * emulation and later leaves it.  In between, the emulation replaces the
 * runtime that had its device type before, and that runtime is hidden.
 *
 * A hidden runtime cannot be found by its device type.  Its objects still
 * work, because each object has a pointer to its runtime.  The objects of an
 * emulation that was left also still work.  When all of them are gone, the
 * emulation can be reused. */
#ifndef PYSTREAMS_CORE_EMULATION_H
#define PYSTREAMS_CORE_EMULATION_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

struct ps_runtime;

enum { PS_EMULATED_DEVICES = 16 };

/* Make an emulation from a backend that has PS_EMULATED_DEVICES devices.  The
 * emulation is marked as entered, so that no other thread reuses it.  It is
 * hidden until ps_emulation_show.  Returns PS_ERROR_OUT_OF_MEMORY also if
 * PS_MAX_RUNTIMES runtimes exist already. */
ps_status ps_emulation_create(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_runtime **runtime);

/* Enter an emulation that was left earlier.  Returns false, and does not enter
 * it, if the runtime is not an emulation, is still entered, or still has
 * objects in core.  After success, the caller must also check that the backend
 * has no objects, and then call ps_emulation_reset. */
bool ps_emulation_reuse(struct ps_runtime *runtime);

/* Reset an emulation without objects to its initial state.  Its devices'
 * default streams remain as they are, because threads that used the emulation
 * before may still use them. */
void ps_emulation_reset(struct ps_runtime *runtime);

/* Unhide the emulation, and let programs see only its first `devices` devices.
 * Hide the runtime `previous`, which the emulation replaces, unless `previous`
 * is NULL. */
void ps_emulation_show(struct ps_runtime *runtime, int devices,
                       struct ps_runtime *previous);

/* Hide the emulation, and unhide the runtime `previous`, unless it is NULL. */
void
ps_emulation_hide(struct ps_runtime *runtime, struct ps_runtime *previous);

/* Leave the emulation, which must be hidden.  Frees its pooled memory, streams
 * and events.  May block. */
void ps_emulation_leave(struct ps_runtime *runtime);

/* In every emulation that was left, end the default streams of the calling
 * thread.  As long as such a stream exists, its emulation cannot be reused.
 * May block. */
void ps_emulations_leave_thread(void);

#endif
