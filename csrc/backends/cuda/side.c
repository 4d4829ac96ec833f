/* Side streams.  A side stream that no completion uses any more is kept for
 * reuse.  It may still be waiting for an event, if the notification for that
 * event was cancelled. */
#include "side.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct cuda_side {
    cudaStream_t stream;
    int device;
    /* The event of the latest wait.  0 if that event was destroyed while no
     * completion used the side stream. */
    ps_handle event;
    /* The number of waits since the stream was last found idle. */
    unsigned waits;
    struct cuda_side *next;
};

enum {
    /* The most side streams known to be idle that are kept per device. */
    MOST_IDLE = 8,
    /* If this many side streams in a row are found busy, a new one is made. */
    LOOKED_AT = 4,
};

/* For each device, a list of the side streams that no completion uses.  The
 * idle ones come first.  They are followed by those that were still waiting
 * when they were given back, in the order in which they were given back. */
static pthread_mutex_t sides_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_side *sides[CUDA_DEVICES];

CUstream
cuda_side_stream(const struct cuda_side *side)
{
    return (CUstream)side->stream;
}

static ps_status
side_query(struct cuda_side *side)
{
    ps_status status = cuda_driver.stream_query(cuda_side_stream(side));

    if (status == PS_SUCCESS) {
        side->waits = 0;
    }
    return status;
}

/* Remove and return the side stream that last waited for this event.  If there
 * is none, remove and return an idle side stream.  If no idle one is found
 * either, return NULL.  Waits for one event share a side stream if possible,
 * because each side stream that waits occupies one of the few channels to the
 * device.  Otherwise a program that asks for many notifications for one event,
 * and cancels them, would leave many such streams. */
static struct cuda_side *
side_take_locked(int device, ps_handle event)
{
    struct cuda_side **link = &sides[device], *side;
    int looked = 0;

    while (*link != NULL && (*link)->event != event) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        (void)side_query(*link);
    }
    else {
        link = &sides[device];
        while (*link != NULL && (*link)->waits > 0 &&
               side_query(*link) != PS_SUCCESS) {
            if (++looked == LOOKED_AT) {
                return NULL;
            }
            link = &(*link)->next;
        }
    }
    side = *link;
    if (side != NULL) {
        *link = side->next;
    }
    return side;
}

/* Put the side stream into the list.  Returns false, and leaves the list
 * unchanged, if the side stream is idle and the list has MOST_IDLE idle ones
 * already. */
static bool
side_keep_locked(struct cuda_side *side)
{
    struct cuda_side **link = &sides[side->device];
    int before = 0;

    while (*link != NULL && (side->waits > 0 || (*link)->waits == 0)) {
        link = &(*link)->next;
        before++;
    }
    if (side->waits == 0 && before >= MOST_IDLE) {
        return false;
    }
    side->next = *link;
    *link = side;
    return true;
}

static ps_status
side_make(int device, struct cuda_side **result)
{
    struct cuda_side *side = calloc(1, sizeof(*side));
    cudaError_t error = cudaErrorMemoryAllocation;

    if (side != NULL) {
        side->device = device;
        error = cudaStreamCreateWithPriority(&side->stream,
                                             cudaStreamNonBlocking, 0);
    }
    if (error != cudaSuccess) {
        free(side);
        return (ps_status)error;
    }
    *result = side;
    return PS_SUCCESS;
}

ps_status
cuda_side_find(int device, ps_handle event, unsigned most,
               struct cuda_side **result)
{
    ps_status status = PS_SUCCESS;

    pthread_mutex_lock(&sides_lock);
    struct cuda_side *side = side_take_locked(device, event);
    if (side != NULL && side->waits >= most) {
        (void)side_keep_locked(side);
        status = PS_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&sides_lock);
    if (side == NULL) {
        status = side_make(device, &side);
    }
    if (status == PS_SUCCESS) {
        side->event = event;
        side->waits++;
        *result = side;
    }
    return status;
}

void
cuda_side_release(struct cuda_side *side)
{
    ps_status status = ON_DEVICE(side->device, side_query(side));
    bool kept = false;

    if (status == PS_SUCCESS || status == PS_ERROR_NOT_READY) {
        pthread_mutex_lock(&sides_lock);
        kept = side_keep_locked(side);
        pthread_mutex_unlock(&sides_lock);
    }
    if (!kept) {
        (void)ON_DEVICE(side->device, cudaStreamDestroy(side->stream));
        free(side);
    }
}

void
cuda_side_forget(int device, ps_handle event)
{
    pthread_mutex_lock(&sides_lock);
    for (struct cuda_side *s = sides[device]; s != NULL; s = s->next) {
        if (s->event == event) {
            s->event = 0;
        }
    }
    pthread_mutex_unlock(&sides_lock);
}
