/* Gates on CUDA streams.  On a busy stream, a gate is queued in two parts.
 * The first part is two completions, which report that the stream has reached
 * the gate (see poll.h).  The second part is a wait for a word in pinned
 * memory, which blocks the stream until the gate is opened.  If another thread
 * queues work on the stream at the same time, that work may come between the
 * two parts.  On an idle stream, only the second part is queued. */
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "captures.h"
#include "driver.h"
#include "gate.h"
#include "poll.h"
#include "table.h"

/* ---- Slots ---- */

enum { SLOTS = 128 }; /* the number of slots that are allocated at once */

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_slot *slots; /* a list of the slots that no gate uses */

static void
slot_give(struct cuda_slot *slot)
{
    if (slot->number == INT32_MAX) {
        return;
    }
    pthread_mutex_lock(&slots_lock);
    slot->next = slots;
    slots = slot;
    pthread_mutex_unlock(&slots_lock);
}

void
cuda_slot_hold(struct cuda_slot *slot)
{
    atomic_fetch_add(&slot->holders, 1);
}

void
cuda_slot_release(struct cuda_slot *slot)
{
    if (atomic_fetch_sub(&slot->holders, 1) == 1) {
        slot_give(slot);
    }
}

/* Allocate SLOTS slots: one for the caller, the others for the list. */
static cudaError_t
slots_make(struct cuda_slot **slot)
{
    void *made;
    cudaError_t error =
        cudaHostAlloc(&made, SLOTS * sizeof(**slot),
                      cudaHostAllocPortable | cudaHostAllocMapped);

    if (error != cudaSuccess) {
        return error;
    }
    memset(made, 0, SLOTS * sizeof(**slot));
    *slot = made;
    for (int i = 1; i < SLOTS; i++) {
        slot_give(*slot + i);
    }
    return cudaSuccess;
}

ps_status
cuda_slot_take(struct cuda_slot **slot)
{
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&slots_lock);
    *slot = slots;
    if (*slot != NULL) {
        slots = (*slot)->next;
    }
    pthread_mutex_unlock(&slots_lock);
    if (*slot == NULL) {
        error = slots_make(slot);
    }
    if (error == cudaSuccess) {
        (*slot)->number++;
        atomic_store(&(*slot)->holders, 1);
    }
    return (ps_status)error;
}

ps_status
cuda_slot_arrive(struct cuda_slot *slot, ps_handle stream)
{
    return (ps_status)cuda_driver.stream_write_value(
        (CUstream)stream, (CUdeviceptr)&slot->reached, slot->number, 0);
}

ps_status
cuda_slot_wait(struct cuda_slot *slot, ps_handle stream)
{
    return (ps_status)cuda_driver.stream_wait_value(
        (CUstream)stream, (CUdeviceptr)&slot->opened, slot->number,
        CU_STREAM_WAIT_VALUE_GEQ);
}

/* ---- Arrivals ---- */

/* The arrival of a busy stream at a gate.  It has two completions, one with a
 * word and one with an event.  The arrival is reported when the first of them
 * occurs.  The word can be polled even while another thread holds the driver's
 * locks, but it is not written if the stream's work fails.  The event
 * completes in that case, too. */
struct arrival {
    struct ps_notification word, event;
    struct cuda_slot *slot;
    ps_notification_function reached;
    void *argument;
    atomic_bool reported;
};

/* Called once for each of the two completions, when the completion occurs.
 * The first call reports the arrival, and the second call frees the
 * arrival. */
static void
event_arrive(void *memory, ps_status status)
{
    struct arrival *arrival = memory;
    ps_notification_function reached = arrival->reached;
    void *argument = arrival->argument;

    if (atomic_exchange(&arrival->reported, true)) {
        free(arrival);
    }
    else {
        reached(argument, status);
    }
}

static void
word_arrive(void *memory, ps_status status)
{
    cuda_slot_release(((struct arrival *)memory)->slot);
    event_arrive(memory, status);
}

static struct arrival *
arrival_create(struct cuda_slot *slot, ps_notification_function reached,
               void *argument)
{
    struct arrival *arrival = calloc(1, sizeof(*arrival));

    if (arrival != NULL) {
        arrival->word.reached = word_arrive;
        arrival->event.reached = event_arrive;
        arrival->word.argument = arrival->event.argument = arrival;
        arrival->slot = slot;
        arrival->reached = reached;
        arrival->argument = argument;
        atomic_init(&arrival->reported, false);
    }
    return arrival;
}

/* ---- Members ---- */

/* Queue three operations on the stream.  The first two report that the stream
 * has arrived: one records the event, the other writes the slot's word
 * `reached`.  The third makes the stream wait until the gate is opened. */
static ps_status
slot_queue(struct cuda_slot *slot, ps_handle stream,
           struct cuda_completion *event)
{
    ps_status status = cuda_completion_record(event, stream);

    if (status == PS_SUCCESS) {
        status = cuda_slot_arrive(slot, stream);
    }
    if (status == PS_SUCCESS) {
        status = cuda_slot_wait(slot, stream);
        /* Add a holder, because the device will write to the slot.
         * word_arrive removes the holder after the write.  If the wait could
         * not be queued, nothing removes this holder, so the slot is never
         * used again. */
        cuda_slot_hold(slot);
    }
    return status;
}

ps_status
cuda_stream_next_state(ps_handle stream)
{
    unsigned flags = cudaStreamNonBlocking;
    ps_status status = cuda_stream_state(stream);

    if (status == PS_SUCCESS && stream != 0) {
        status = (ps_status)cudaStreamGetFlags((cudaStream_t)stream, &flags);
    }
    if (status == PS_SUCCESS && !(flags & cudaStreamNonBlocking) &&
        cuda_stream_state(0) != PS_SUCCESS) {
        status = PS_ERROR_NOT_READY;
    }
    return status;
}

/* Queue the gate on the stream.  The caller has called cuda_poll_enter for the
 * completion `event`.  If the stream is idle, it has already reached the gate.
 * In that case *idle becomes true, and after success the caller must report
 * the arrival. */
static ps_status
gate_queue(struct arrival *arrival, ps_handle stream,
           struct cuda_completion *event, bool *idle)
{
    struct cuda_slot *slot = arrival->slot;
    struct cuda_completion *word;
    ps_status status = cuda_stream_next_state(stream);

    *idle = status == PS_SUCCESS;
    if (*idle) {
        return cuda_slot_wait(slot, stream);
    }
    if (status == PS_ERROR_NOT_READY) {
        status = cuda_poll_enter(event->device, stream, &slot->reached, &word);
    }
    if (status == PS_SUCCESS) {
        word->number = slot->number;
        status = slot_queue(slot, stream, event);
        cuda_poll_leave(word, status == PS_SUCCESS ? &arrival->word : NULL);
    }
    return status;
}

/* Returns PS_ERROR_CAPTURE_UNSUPPORTED if the stream is being captured.  The
 * calling thread has entered the stream. */
static ps_status
check_uncaptured(ps_handle stream)
{
    /* While a capture is ending, its streams may look uncaptured before the
     * end is complete.  If ending the capture takes long, go on: the thread
     * that ends it may be waiting for the callable that has made this call. */
    if (!cuda_captures_exist() || !cuda_captures_try_hold()) {
        return PS_SUCCESS;
    }
    ps_status status = cuda_stream_check_uncaptured(stream);
    cuda_captures_release();
    return status;
}

/* Does the work of the member stream_gate.  The device's context must be
 * current.  If *idle becomes true, the caller must report the arrival after
 * success. */
static ps_status
gate_make(int device, ps_handle stream, ps_notification_function reached,
          void *argument, ps_handle *gate, bool *idle)
{
    struct cuda_completion *event;
    struct cuda_slot *slot;
    ps_status status = cuda_slot_take(&slot);

    if (status != PS_SUCCESS) {
        return status;
    }
    *gate = (ps_handle)slot;
    struct arrival *arrival = arrival_create(slot, reached, argument);
    status = arrival != NULL ? cuda_poll_enter(device, stream, NULL, &event)
                             : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_SUCCESS) {
        struct cuda_entered entered;
        bool busy;
        cuda_stream_enter(&entered, stream);
        status = check_uncaptured(stream);
        if (status == PS_SUCCESS) {
            status = gate_queue(arrival, stream, event, idle);
        }
        cuda_stream_leave(&entered);
        busy = status == PS_SUCCESS && !*idle;
        cuda_poll_leave(event, busy ? &arrival->event : NULL);
        arrival = busy ? NULL : arrival;
    }
    free(arrival);
    if (status != PS_SUCCESS) {
        cuda_slot_release(slot);
    }
    return status;
}

ps_status
cuda_stream_gate(const struct ps_backend *backend, int device,
                 ps_handle stream, ps_notification_function reached,
                 void *argument, ps_handle *gate)
{
    bool idle = false;
    ps_status status = PS_ERROR_NOT_SUPPORTED;

    if (cuda_driver.stream_wait_value != NULL &&
        cuda_driver.stream_write_value != NULL) {
        status = ON_DEVICE(
            device, gate_make(device, stream, reached, argument, gate, &idle));
    }
    if (status == PS_SUCCESS && idle) {
        reached(argument, PS_SUCCESS);
    }
    return status;
}

ps_status
cuda_gate_open(const struct ps_backend *backend, int device, ps_handle gate)
{
    struct cuda_slot *slot = (struct cuda_slot *)gate;

    atomic_store_explicit(&slot->opened, slot->number, memory_order_release);
    cuda_slot_release(slot);
    return PS_SUCCESS;
}
