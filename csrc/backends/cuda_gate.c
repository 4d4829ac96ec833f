/* Gates on CUDA streams; cuda_gate.h says what they are made of. */
#include "cuda_gate.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

/* ---- Slots ---- */

/* What a gate waits at, in pinned memory.  A slot numbers its gates; each
 * waits until opened is no less than its own number, which opening writes.
 * As opened only grows, a wait that the device looks at after the slot went
 * on to other gates still finds what it waits for, so that opening frees the
 * slot and the device need not be asked.  The device compares by the sign of
 * the difference: numbers stay below 2^31, and a slot that used them up is
 * left alone for good. */
struct slot {
    _Atomic uint32_t opened;
    uint32_t number; /* of the latest gate */
    struct slot *next;
};

enum { SLOTS = 256 }; /* allocated at a time; a page */

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

/* Allocate slots, one of which is the caller's. */
static cudaError_t
slots_make(struct slot **slot)
{
    /* A capture that another thread has begun must not see the allocation. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *made;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);

    if (error != cudaSuccess) {
        return error;
    }
    error = cudaHostAlloc(&made, SLOTS * sizeof(**slot),
                          cudaHostAllocPortable | cudaHostAllocMapped);
    cudaThreadExchangeStreamCaptureMode(&mode);
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
    }
    return error;
}

/* ---- Claims ---- */

/* A thread that queues a gate on a stream; on its stack.  Were another gate's
 * callback to come before this one's wait, both would be reached at once.  A
 * claim is on one stream and no other, as it may last for as long as the
 * stream's own work leaves it no room. */
struct claim {
    int device;
    ps_handle stream;
    struct claim *next;
};

static pthread_mutex_t claims_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t claim_given = PTHREAD_COND_INITIALIZER;
static struct claim *claims;

static bool
is_claimed_locked(int device, ps_handle stream)
{
    struct claim *other = claims;

    while (other != NULL &&
           (other->device != device || other->stream != stream)) {
        other = other->next;
    }
    return other != NULL;
}

static void
claim_take(struct claim *claim)
{
    pthread_mutex_lock(&claims_lock);
    while (is_claimed_locked(claim->device, claim->stream)) {
        pthread_cond_wait(&claim_given, &claims_lock);
    }
    claim->next = claims;
    claims = claim;
    pthread_mutex_unlock(&claims_lock);
}

static void
claim_give(struct claim *claim)
{
    struct claim **link = &claims;

    pthread_mutex_lock(&claims_lock);
    while (*link != claim) {
        link = &(*link)->next;
    }
    *link = claim->next;
    pthread_cond_broadcast(&claim_given);
    pthread_mutex_unlock(&claims_lock);
}

/* ---- Notices ---- */

/* Where a notice is.  The callback may come before it is known whether the
 * wait behind it could be queued; whoever comes second, the callback or the
 * call that queues, finishes the notice. */
enum stage {
    QUEUEING,
    QUEUED,
    DROPPED, /* the wait could not be queued: reached is not called */
    ARRIVED, /* the callback was called, or never will be */
};

struct notice {
    ps_notification reached;
    void *argument;
    ps_status status;
    _Atomic(enum stage) stage;
};

static void
notice_finish(struct notice *notice, bool wanted)
{
    if (wanted) {
        notice->reached(notice->argument, notice->status);
    }
    free(notice);
}

static void CUDA_CB
notice_arrive(CUstream stream, CUresult status, void *argument)
{
    struct notice *notice = argument;
    enum stage before;

    (void)stream;
    notice->status = (ps_status)status;
    before = atomic_exchange(&notice->stage, ARRIVED);
    if (before != QUEUEING) {
        notice_finish(notice, before == QUEUED);
    }
}

/* The callback and the wait were queued, or they were not. */
static void
notice_settle(struct notice *notice, bool queued)
{
    enum stage before =
        atomic_exchange(&notice->stage, queued ? QUEUED : DROPPED);

    if (before == ARRIVED) {
        notice_finish(notice, queued);
    }
}

/* ---- Members ---- */

static ps_status
gate_send(ps_handle stream, struct notice *notice, const struct slot *slot)
{
    ps_status status;

    atomic_store(&notice->stage, QUEUEING);
    status = cuda_driver.stream_callback((CUstream)stream, notice_arrive,
                                         notice, 0);
    if (status != PS_SUCCESS) {
        atomic_store(&notice->stage, ARRIVED);
        return status;
    }
    return slot == NULL ? PS_SUCCESS
                        : (ps_status)cuda_driver.stream_wait_value(
                              (CUstream)stream, (CUdeviceptr)&slot->opened,
                              slot->number, CU_STREAM_WAIT_VALUE_GEQ);
}

/* Queue both, with the device's context current. */
static ps_status
gate_queue(int device, ps_handle stream, struct notice *notice,
           struct slot **slot, ps_handle *gate)
{
    struct claim claim = {.device = device, .stream = stream};
    enum cudaStreamCaptureStatus capturing;
    ps_status status = cudaStreamIsCapturing((cudaStream_t)stream, &capturing);

    if (status == PS_SUCCESS && capturing != cudaStreamCaptureStatusNone) {
        status = PS_ERROR_NOT_SUPPORTED;
    }
    if (status == PS_SUCCESS && gate != NULL) {
        status = slot_take(slot);
        *gate = (ps_handle)*slot;
    }
    if (status == PS_SUCCESS) {
        claim_take(&claim);
        status = gate_send(stream, notice, *slot);
        claim_give(&claim);
    }
    return status;
}

ps_status
cuda_stream_gate(const struct ps_backend *backend, int device,
                 ps_handle stream, ps_notification reached, void *argument,
                 ps_handle *gate)
{
    struct cuda_scope scope;
    struct notice *notice;
    struct slot *slot = NULL;
    ps_status status;

    (void)backend;
    if (cuda_driver.stream_callback == NULL ||
        cuda_driver.stream_wait_value == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    notice = malloc(sizeof(*notice));
    if (notice == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    notice->reached = reached;
    notice->argument = argument;
    atomic_init(&notice->stage, ARRIVED);
    status = cuda_scope_enter(&scope, device);
    if (status == PS_SUCCESS) {
        status = gate_queue(device, stream, notice, &slot, gate);
    }
    cuda_scope_leave(&scope, status);
    if (status != PS_SUCCESS && slot != NULL) {
        slot_give(slot);
    }
    notice_settle(notice, status == PS_SUCCESS);
    return status;
}

ps_status
cuda_gate_open(const struct ps_backend *backend, int device, ps_handle gate)
{
    struct slot *slot = (struct slot *)gate;

    (void)backend;
    (void)device;
    atomic_store_explicit(&slot->opened, slot->number, memory_order_release);
    slot_give(slot);
    return PS_SUCCESS;
}
