/* Gates on CUDA streams; gate.h says what they are made of. */
#include "gate.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "watch.h"

/* ---- Slots ---- */

/* What a gate waits at, in pinned memory.  A slot numbers its gates; each
 * waits until opened is no less than its own number, which opening writes.
 * As opened only grows, a wait that the device looks at after the slot went
 * on to other gates still finds what it waits for, so that a gate that was
 * reached and opened frees its slot, and the device need not be asked.  The
 * device compares by the sign of the difference: numbers stay below 2^31, and
 * a slot that used them up is left alone for good. */
struct slot {
    _Atomic uint32_t opened;
    _Atomic uint32_t reached; /* written by the device */
    uint32_t number;          /* of the latest gate */
    atomic_int holders;       /* the gate, and its passage until it came */
    struct slot *next;
};

enum { SLOTS = 128 }; /* allocated at a time */

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot *slots; /* unused ones */

static void
slot_give(struct slot *slot)
{
    if (slot->number == INT32_MAX) {
        return;
    }
    pthread_mutex_lock(&slots_lock);
    slot->next = slots;
    slots = slot;
    pthread_mutex_unlock(&slots_lock);
}

static void
slot_release(struct slot *slot)
{
    if (atomic_fetch_sub(&slot->holders, 1) == 1) {
        slot_give(slot);
    }
}

/* Allocate slots, one of which is the caller's. */
static cudaError_t
slots_make(struct slot **slot)
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

static cudaError_t
slot_take(struct slot **slot)
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
    return error;
}

/* Hold the stream back until the slot's latest gate is opened. */
static ps_status
slot_wait(const struct slot *slot, ps_handle stream)
{
    return (ps_status)cuda_driver.stream_wait_value(
        (CUstream)stream, (CUdeviceptr)&slot->opened, slot->number,
        CU_STREAM_WAIT_VALUE_GEQ);
}

/* ---- Passages ---- */

/* A stream's coming to a gate.  The word says so at once, whoever has the
 * driver's locks.  An event says it too, as nothing is written once the work
 * has failed: the first of the two is reported. */
struct passage {
    struct ps_notification word, event;
    struct slot *slot;
    ps_notification_function reached;
    void *argument;
    atomic_bool reported;
    atomic_int references;
};

static void
passage_arrive(void *memory, ps_status status)
{
    struct passage *passage = memory;

    if (!atomic_exchange(&passage->reported, true)) {
        passage->reached(passage->argument, status);
    }
    if (atomic_fetch_sub(&passage->references, 1) == 1) {
        free(passage);
    }
}

static void
word_arrive(void *memory, ps_status status)
{
    slot_release(((struct passage *)memory)->slot);
    passage_arrive(memory, status);
}

static struct passage *
passage_create(struct slot *slot, ps_notification_function reached,
               void *argument)
{
    struct passage *passage = calloc(1, sizeof(*passage));

    if (passage != NULL) {
        passage->word.reached = word_arrive;
        passage->event.reached = passage_arrive;
        passage->word.argument = passage->event.argument = passage;
        passage->slot = slot;
        passage->reached = reached;
        passage->argument = argument;
        atomic_init(&passage->reported, false);
        atomic_init(&passage->references, 2);
    }
    return passage;
}

/* Queue what writes the word and what waits at the gate. */
static ps_status
slot_queue(struct slot *slot, ps_handle stream)
{
    ps_status status = cuda_driver.stream_write_value(
        (CUstream)stream, (CUdeviceptr)&slot->reached, slot->number, 0);

    if (status == PS_SUCCESS) {
        status = slot_wait(slot, stream);
        if (status != PS_SUCCESS) {
            /* The device may write late, so nobody else gets the slot. */
            atomic_fetch_add(&slot->holders, 1);
        }
    }
    return status;
}

/* Queue a gate on a stream with work.  The passage is used up on success. */
static ps_status
passage_queue(struct cuda_entry *entry, int device, ps_handle stream,
              struct passage *passage)
{
    struct slot *slot = passage->slot;
    struct cuda_mark *word = cuda_mark_word(&slot->reached, slot->number);
    struct cuda_mark *event;
    ps_status status =
        word != NULL ? cuda_mark_find(device, &event) : PS_ERROR_OUT_OF_MEMORY;

    if (status != PS_SUCCESS) {
        free(word);
        return status;
    }
    status = cuda_driver.event_record(event->event, (CUstream)stream);
    if (status == PS_SUCCESS) {
        status = slot_queue(slot, stream);
    }
    if (status != PS_SUCCESS) {
        cuda_mark_release(word);
        cuda_mark_release(event);
        return status;
    }
    atomic_fetch_add(&slot->holders, 1);
    cuda_mark_put(entry, word, &passage->word);
    cuda_mark_put(entry, event, &passage->event);
    return PS_SUCCESS;
}

/* ---- Members ---- */

/* A stream that has nothing to do has come to what is queued already: that is
 * the caller's to report. */
static ps_status
gate_queue(struct cuda_entry *entry, int device, ps_handle stream,
           struct passage *passage, bool *idle)
{
    ps_status status = cuda_driver.stream_query((CUstream)stream);

    *idle = status == PS_SUCCESS;
    if (*idle) {
        return slot_wait(passage->slot, stream);
    }
    return status == PS_ERROR_NOT_READY
               ? passage_queue(entry, device, stream, passage)
               : status;
}

/* The member, with the device's context current. */
static ps_status
gate_make(int device, ps_handle stream, ps_notification_function reached,
          void *argument, ps_handle *gate, bool *idle)
{
    enum cudaStreamCaptureStatus capturing;
    struct cuda_entry entry;
    struct passage *passage;
    struct slot *slot;
    ps_status status = cudaStreamIsCapturing((cudaStream_t)stream, &capturing);

    if (status == PS_SUCCESS && capturing != cudaStreamCaptureStatusNone) {
        status = PS_ERROR_NOT_SUPPORTED;
    }
    if (status == PS_SUCCESS) {
        status = slot_take(&slot);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    *gate = (ps_handle)slot;
    passage = passage_create(slot, reached, argument);
    status = passage != NULL ? cuda_stream_enter(&entry, device, stream)
                             : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_SUCCESS) {
        status = gate_queue(&entry, device, stream, passage, idle);
        cuda_stream_leave(&entry);
    }
    if (status != PS_SUCCESS || *idle) {
        free(passage);
    }
    if (status != PS_SUCCESS) {
        slot_release(slot);
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

    (void)backend;
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
    struct slot *slot = (struct slot *)gate;

    (void)backend;
    (void)device;
    atomic_store_explicit(&slot->opened, slot->number, memory_order_release);
    slot_release(slot);
    return PS_SUCCESS;
}
