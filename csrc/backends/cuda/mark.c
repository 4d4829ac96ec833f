/* Marks and the events that they have of their own. */
#include "mark.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>

#include "side.h"

/* Those with events of their own, to be used again. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_mark *spare[CUDA_DEVICES];

void
cuda_mark_release(struct cuda_mark *mark)
{
    if (mark->side != NULL) {
        cuda_side_release(mark->side);
        mark->side = NULL;
    }
    if (mark->event == NULL) {
        free(mark);
        return;
    }
    pthread_mutex_lock(&spare_lock);
    mark->next = spare[mark->device];
    spare[mark->device] = mark;
    pthread_mutex_unlock(&spare_lock);
}

ps_status
cuda_mark_find(int device, struct cuda_mark **result)
{
    struct cuda_mark *mark;
    cudaError_t error;

    pthread_mutex_lock(&spare_lock);
    mark = spare[device];
    if (mark != NULL) {
        spare[device] = mark->next;
    }
    pthread_mutex_unlock(&spare_lock);
    *result = mark;
    if (mark != NULL) {
        return PS_SUCCESS;
    }
    mark = calloc(1, sizeof(*mark));
    if (mark == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    mark->device = device;
    error = cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(mark);
        return error;
    }
    *result = mark;
    return PS_SUCCESS;
}

struct cuda_mark *
cuda_mark_word(_Atomic uint32_t *word, uint32_t number)
{
    struct cuda_mark *mark = calloc(1, sizeof(*mark));

    if (mark != NULL) {
        mark->word = word;
        mark->number = number;
    }
    return mark;
}

ps_status
cuda_mark_ask(const struct cuda_mark *mark)
{
    if (mark->word == NULL) {
        return cuda_driver.event_query(mark->event);
    }
    return (int32_t)(atomic_load_explicit(mark->word, memory_order_acquire) -
                     mark->number) >= 0
               ? PS_SUCCESS
               : PS_ERROR_NOT_READY;
}
