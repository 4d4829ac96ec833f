/* Slots: pairs of words in pinned memory by which a stream and the host signal
 * each other.  Gates on streams (see stream_gate in backend.h) use them as
 * described below.  Gates in graphs use them as graph_gate.c says. */
#ifndef PYSTREAMS_CUDA_GATE_H
#define PYSTREAMS_CUDA_GATE_H

#include <stdatomic.h>

#include <pystreams/backend.h>

/* A slot serves one gate after another; the gates of a slot are numbered.
 *
 * A gate on a stream makes the stream wait until `opened` is at least the
 * gate's number.  Opening the gate writes that number to `opened`, so with
 * such gates `opened` only grows.  Therefore the slot can be used for the next
 * gate as soon as the previous gate was reached and opened.  Even if the
 * device evaluates the previous gate's wait only later, the wait is still
 * satisfied.
 *
 * The device compares two numbers by the sign of their difference, so the
 * numbers stay below 2^31.  A slot that has used all numbers is never used
 * again. */
struct cuda_slot {
    _Atomic uint32_t opened;
    /* Written by the device.  For gates in graphs, a poller also subtracts 1
     * for each arrival. */
    _Atomic uint32_t reached;
    uint32_t number; /* the number of the latest gate */
    /* The number of users that still need the slot for the latest gate. */
    atomic_int holders;
    struct cuda_slot *next;
};

/* cuda_slot_take gets a slot for a new gate.  The slot has a new number, and
 * the caller is its only holder.  A device's context must be current for this
 * call.  cuda_slot_hold adds a holder, and cuda_slot_release removes one.  A
 * slot without holders may be taken for another gate. */
ps_status cuda_slot_take(struct cuda_slot **slot);
void cuda_slot_hold(struct cuda_slot *slot);
void cuda_slot_release(struct cuda_slot *slot);

/* Make the stream write the number of the slot's latest gate to `reached`. */
ps_status cuda_slot_arrive(struct cuda_slot *slot, ps_handle stream);

/* Make the stream wait until the slot's latest gate is opened. */
ps_status cuda_slot_wait(struct cuda_slot *slot, ps_handle stream);

/* Returns PS_SUCCESS if the stream's next operation could run at once.  Like
 * cuda_stream_state, but if the stream is blocking, also checks the default
 * stream, because the next operation will wait for the default stream.  If the
 * stream is the default stream itself, the driver's query includes the
 * blocking streams. */
ps_status cuda_stream_next_state(ps_handle stream);

#endif
