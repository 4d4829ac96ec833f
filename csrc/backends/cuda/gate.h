/* The words in pinned memory by which a stream and the host signal each other:
 * for gates on streams and gates in graphs. */
#ifndef PYSTREAMS_CUDA_GATE_H
#define PYSTREAMS_CUDA_GATE_H

#include <stdatomic.h>

#include <pystreams/backend.h>

/* A pair of words, and the gate that uses it.  The gates of a slot are
 * numbered.
 *
 * A gate on a stream makes the stream wait until `opened` is at least the
 * gate's number.  Opening the gate writes that number.  For such gates,
 * `opened` only grows.  So if the device evaluates a wait after the slot was
 * reused, the wait is still satisfied.  Therefore a slot is free as soon as
 * its gate was reached and opened, and no query of the device is needed.
 *
 * The device compares by the sign of the difference, so the numbers stay below
 * 2^31.  A slot that has used all numbers is never reused. */
struct cuda_slot {
    _Atomic uint32_t opened;
    _Atomic uint32_t reached; /* written by the device */
    uint32_t number;          /* the number of the latest gate */
    atomic_int holders;       /* how many still need the slot for this gate */
    struct cuda_slot *next;
};

/* Take a slot.  The caller is its one holder.  The device's context is
 * current. */
ps_status cuda_slot_take(struct cuda_slot **slot);
void cuda_slot_hold(struct cuda_slot *slot);
void cuda_slot_release(struct cuda_slot *slot);

/* Queue a write by which the stream reports that it has reached the gate. */
ps_status cuda_slot_arrive(struct cuda_slot *slot, ps_handle stream);

/* Make the stream wait until the slot's latest gate is opened. */
ps_status cuda_slot_wait(struct cuda_slot *slot, ps_handle stream);

#endif
