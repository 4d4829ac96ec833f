/* Side streams: kept for reuse while they are idle, and while they wait for
 * what nobody wants to know any more. */
#include "side.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct cuda_side {
    cudaStream_t stream;
    int device;
    ps_handle event; /* the latest */
    unsigned waits;  /* since it was last seen idle */
    struct cuda_side *next;
};

enum {
    MOST_IDLE = 8, /* that are kept, of one device */
    LOOKED_AT = 4, /* of the busy ones, for one that is idle by now */
};

/* By their devices, the oldest first. */
static pthread_mutex_t sides_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_side *idle[CUDA_DEVICES];
static int idle_count[CUDA_DEVICES];
static struct cuda_side *busy[CUDA_DEVICES];

static struct cuda_side *
side_take_locked(struct cuda_side **link)
{
    struct cuda_side *side = *link;

    if (side != NULL) {
        *link = side->next;
    }
    return side;
}

static bool
is_idle(const struct cuda_side *side)
{
    return cuda_driver.stream_query((CUstream)side->stream) == PS_SUCCESS;
}

/* The busy one that waits for the same event, or one that is idle by now; NULL
 * if there is none.  A side stream that waits occupies one of the few channels
 * to the device, so a program that asks for one event again and again must not
 * leave more than one. */
static struct cuda_side *
busy_take_locked(int device, ps_handle event)
{
    struct cuda_side **link = &busy[device], *side;

    while (*link != NULL && (*link)->event != event) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        int looked = 0;
        link = &busy[device];
        while (*link != NULL && !is_idle(*link)) {
            if (++looked == LOOKED_AT) {
                return NULL;
            }
            link = &(*link)->next;
        }
    }
    side = side_take_locked(link);
    if (side != NULL && is_idle(side)) {
        side->waits = 0;
    }
    return side;
}

CUstream
cuda_side_stream(const struct cuda_side *side)
{
    return (CUstream)side->stream;
}

static void
busy_give_locked(struct cuda_side *side)
{
    struct cuda_side **link = &busy[side->device];

    while (*link != NULL) {
        link = &(*link)->next;
    }
    side->next = NULL;
    *link = side;
}

static cudaError_t
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
        return error;
    }
    *result = side;
    return cudaSuccess;
}

ps_status
cuda_side_find(int device, ps_handle event, unsigned most,
               struct cuda_side **result)
{
    struct cuda_side *side;
    ps_status status = PS_SUCCESS;

    pthread_mutex_lock(&sides_lock);
    side = busy_take_locked(device, event);
    if (side != NULL && side->waits >= most) {
        busy_give_locked(side);
        status = PS_ERROR_NOT_READY;
    }
    else if (side == NULL) {
        side = side_take_locked(&idle[device]);
        idle_count[device] -= side != NULL;
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

static void
side_destroy(struct cuda_side *side)
{
    (void)ON_DEVICE(side->device, cudaStreamDestroy(side->stream));
    free(side);
}

void
cuda_side_release(struct cuda_side *side)
{
    int device = side->device;
    ps_status status =
        ON_DEVICE(device, cuda_driver.stream_query((CUstream)side->stream));

    pthread_mutex_lock(&sides_lock);
    if (status == PS_SUCCESS && idle_count[device] < MOST_IDLE) {
        side->waits = 0;
        side->next = idle[device];
        idle[device] = side;
        idle_count[device]++;
        side = NULL;
    }
    else if (status == PS_ERROR_NOT_READY) {
        busy_give_locked(side);
        side = NULL;
    }
    pthread_mutex_unlock(&sides_lock);
    if (side != NULL) {
        side_destroy(side);
    }
}
