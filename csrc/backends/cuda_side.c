/* Side streams: kept for reuse while they are idle, and while they wait for
 * what nobody wants to know any more. */
#include "cuda_side.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>

struct cuda_side {
    cudaStream_t stream;
    int device;
    ps_handle event; /* the latest */
    struct cuda_side *next;
};

enum {
    MOST_IDLE = 8,  /* that are kept, of one device */
    MOST_BUSY = 64, /* that wait for what nobody wants to know any more */
    LOOKED_AT = 4,  /* of those, for one that is idle by now */
};

/* By their devices, the oldest first. */
static pthread_mutex_t sides_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_side *idle[CUDA_DEVICES];
static int idle_count[CUDA_DEVICES];
static struct cuda_side *busy[CUDA_DEVICES];
static int busy_count[CUDA_DEVICES];

static struct cuda_side *
side_take_locked(struct cuda_side **link, int *count)
{
    struct cuda_side *side = *link;

    if (side != NULL) {
        *link = side->next;
        *count -= 1;
    }
    return side;
}

/* A busy one that is idle by now; or, so that those who ask in vain again and
 * again do not need more and more, one that waits for the same event. */
static struct cuda_side *
busy_take_locked(int device, ps_handle event)
{
    struct cuda_side **link = &busy[device];

    for (int i = 0; i < LOOKED_AT && *link != NULL; i++) {
        if (cuda_driver.stream_query((CUstream)(*link)->stream) ==
            PS_SUCCESS) {
            return side_take_locked(link, &busy_count[device]);
        }
        link = &(*link)->next;
    }
    link = busy_count[device] >= MOST_BUSY ? &busy[device] : NULL;
    while (link != NULL && *link != NULL && (*link)->event != event) {
        link = &(*link)->next;
    }
    return link != NULL ? side_take_locked(link, &busy_count[device]) : NULL;
}

CUstream
cuda_side_stream(const struct cuda_side *side)
{
    return (CUstream)side->stream;
}

ps_status
cuda_side_find(int device, ps_handle event, struct cuda_side **result)
{
    struct cuda_side *side;
    cudaError_t error;

    pthread_mutex_lock(&sides_lock);
    side = side_take_locked(&idle[device], &idle_count[device]);
    if (side == NULL) {
        side = busy_take_locked(device, event);
    }
    pthread_mutex_unlock(&sides_lock);
    if (side == NULL) {
        side = calloc(1, sizeof(*side));
        if (side == NULL) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        side->device = device;
        error = cudaStreamCreateWithPriority(&side->stream,
                                             cudaStreamNonBlocking, 0);
        if (error != cudaSuccess) {
            free(side);
            return error;
        }
    }
    side->event = event;
    *result = side;
    return PS_SUCCESS;
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
    struct cuda_side **link = &busy[device];

    pthread_mutex_lock(&sides_lock);
    if (status == PS_SUCCESS && idle_count[device] < MOST_IDLE) {
        side->next = idle[device];
        idle[device] = side;
        idle_count[device]++;
        side = NULL;
    }
    else if (status == PS_ERROR_NOT_READY) {
        while (*link != NULL) {
            link = &(*link)->next;
        }
        side->next = NULL;
        *link = side;
        busy_count[device]++;
        side = NULL;
    }
    pthread_mutex_unlock(&sides_lock);
    if (side != NULL) {
        side_destroy(side);
    }
}
