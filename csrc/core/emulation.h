/* Emulations: runtimes of emulated devices, each of which takes the place of
 * the runtime of its device type for a time.
 *
 * Objects know their runtime, so those of the runtime that is hidden meanwhile
 * work as ever, and so do those of an emulation that was left.  An emulation
 * that was left and has no objects any more is used again. */
#ifndef PYSTREAMS_CORE_EMULATION_H
#define PYSTREAMS_CORE_EMULATION_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

struct ps_runtime;

enum { PS_EMULATED_DEVICES = 16 };

/* Make an emulation over a table that shows PS_EMULATED_DEVICES devices; it is
 * entered and hidden.  PS_ERROR_OUT_OF_MEMORY, also if there are too many
 * runtimes. */
ps_status ps_emulation_create(const struct ps_backend *backend,
                              const struct ps_faults *faults,
                              struct ps_runtime **runtime);

/* Enter an emulation that was left; false if it has objects, which are all
 * that core knows of: the backend is to be asked, too. */
bool ps_emulation_reuse(struct ps_runtime *runtime);

/* Show so many of its devices, unused, in place of `previous`, which may be
 * NULL. */
void ps_emulation_show(struct ps_runtime *runtime, int devices,
                       struct ps_runtime *previous);

/* Put previous back in its place.  Gives up what pools hold. */
void
ps_emulation_leave(struct ps_runtime *runtime, struct ps_runtime *previous);

#endif
