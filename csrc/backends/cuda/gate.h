/* The words by which a stream and the host signal each other, for gates on
 * streams and gates in graphs. */
#ifndef PYSTREAMS_CUDA_GATE_H
#define PYSTREAMS_CUDA_GATE_H

#include <stdatomic.h>

#include <pystreams/backend.h>

/* In pinned memory.  A slot numbers its gates.  Each gate on a stream waits
 * until `opened` is no less than its number, which opening writes.  `opened`
 * only grows then, so a wait that the device evaluates after the slot was
 * reused is still satisfied: a slot is free once its gate was reached and
 * opened, without a query of the device.  The device compares by the sign of
 * the difference, so numbers stay below 2^31, and a slot that has used them up
 * is never reused. */
struct cuda_slot {
    _Atomic uint32_t opened;
    _Atomic uint32_t reached; /* written by the device */
    uint32_t number;          /* of the latest gate */
    atomic_int holders;       /* the users that this gate still has */
    struct cuda_slot *next;
};

/* Take a slot, with one holder, and the device's context current. */
ps_status cuda_slot_take(struct cuda_slot **slot);
void cuda_slot_hold(struct cuda_slot *slot);
void cuda_slot_release(struct cuda_slot *slot);

/* Queue the write by which the stream reports that it has reached the gate. */
ps_status cuda_slot_arrive(struct cuda_slot *slot, ps_handle stream);

/* Hold the stream back until the slot's latest gate is opened. */
ps_status cuda_slot_wait(struct cuda_slot *slot, ps_handle stream);

#endif
