/* Notices of what CUDA streams have done; cuda_watch.h says why they are asked
 * for.  Those of one stream come in order, so only the first of each is asked
 * for. */
#include "cuda_watch.h"

#include <cuda_runtime_api.h>

#include <stdlib.h>
#include <time.h>

#include "cuda_driver.h"
#include "cuda_poll.h"

/* ---- Notices ---- */

struct cuda_notice {
    /* One of the two. */
    CUevent event;
    _Atomic uint32_t *word;
    uint32_t number;
    int device; /* of the event */
    ps_notification reached;
    void *argument;
    ps_status status;
    struct cuda_notice *next;
};

/* Notices with events, to be used again. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_notice *spare[CUDA_DEVICES];

void
cuda_notice_destroy(struct cuda_notice *notice)
{
    if (notice->word != NULL) {
        free(notice);
        return;
    }
    pthread_mutex_lock(&spare_lock);
    notice->next = spare[notice->device];
    spare[notice->device] = notice;
    pthread_mutex_unlock(&spare_lock);
}

/* A notice with an event that stands for nothing yet. */
static ps_status
notice_find(int device, struct cuda_notice **result)
{
    struct cuda_notice *notice;
    cudaError_t error;

    pthread_mutex_lock(&spare_lock);
    notice = spare[device];
    if (notice != NULL) {
        spare[device] = notice->next;
    }
    pthread_mutex_unlock(&spare_lock);
    *result = notice;
    if (notice != NULL) {
        return PS_SUCCESS;
    }
    notice = calloc(1, sizeof(*notice));
    if (notice == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    notice->device = device;
    error = cudaEventCreateWithFlags(&notice->event, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(notice);
        return error;
    }
    *result = notice;
    return PS_SUCCESS;
}

/* What the work came to. */
static ps_status
notice_ask(const struct cuda_notice *notice)
{
    if (notice->word == NULL) {
        return cuda_driver.event_query(notice->event);
    }
    return (int32_t)(atomic_load_explicit(notice->word, memory_order_acquire) -
                     notice->number) >= 0
               ? PS_SUCCESS
               : PS_ERROR_NOT_READY;
}

/* ---- Lines ---- */

/* The notices of a stream that are to come. */
struct cuda_line {
    int device;
    ps_handle stream;
    struct cuda_notice *first;
    struct cuda_notice **tail;
    bool entered; /* by who sends some */
    struct cuda_line *next;
};

enum { BUCKETS = 64 };

/* Lines by their streams.  The lock is held while the device is asked. */
struct bucket {
    pthread_mutex_t lock;
    pthread_cond_t left; /* a line is not entered any more */
    struct cuda_line *lines;
};

#define BUCKET                                                    \
    {                                                             \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL \
    }
#define BUCKETS_4  BUCKET, BUCKET, BUCKET, BUCKET
#define BUCKETS_16 BUCKETS_4, BUCKETS_4, BUCKETS_4, BUCKETS_4

/* A thread and what it asks for. */
struct watch {
    struct cuda_poller poller;
    struct bucket buckets[BUCKETS];
};

static unsigned watch_sweep(struct cuda_poller *poller);

#define WATCH(thread)                                                \
    {                                                                \
        .poller = {.name = thread,                                   \
                   .sweep = watch_sweep,                             \
                   .lock = PTHREAD_MUTEX_INITIALIZER},               \
        .buckets = {BUCKETS_16, BUCKETS_16, BUCKETS_16, BUCKETS_16}, \
    }

/* Apart, since asking for an event may take until a copy is over, when another
 * thread is waiting for the driver's lock, and the copy may be waiting for
 * somebody to see a word. */
static struct watch events = WATCH("ps-cuda-events");
static struct watch words = WATCH("ps-cuda-words");

static struct bucket *
bucket_of(struct watch *watch, int device, ps_handle stream)
{
    /* Streams are objects, so the lowest bits say little. */
    ps_handle hash = (stream >> 6) + (stream >> 12) + (ps_handle)device;
    return &watch->buckets[hash % BUCKETS];
}

static struct cuda_line *
line_find_locked(struct bucket *bucket, int device, ps_handle stream)
{
    struct cuda_line *line = bucket->lines;

    while (line != NULL &&
           (line->device != device || line->stream != stream)) {
        line = line->next;
    }
    return line;
}

/* NULL when out of memory. */
static struct cuda_line *
line_add_locked(struct bucket *bucket, int device, ps_handle stream)
{
    struct cuda_line *line = calloc(1, sizeof(*line));

    if (line != NULL) {
        line->device = device;
        line->stream = stream;
        line->tail = &line->first;
        line->next = bucket->lines;
        bucket->lines = line;
    }
    return line;
}

/* Free the line unless it is of use. */
static void
line_trim_locked(struct bucket *bucket, struct cuda_line *line)
{
    struct cuda_line **link = &bucket->lines;

    if (line->first != NULL || line->entered) {
        return;
    }
    while (*link != line) {
        link = &(*link)->next;
    }
    *link = line->next;
    free(line);
}

/* Move what is to be told to the list that ends at the tail. */
static void
line_collect_locked(struct cuda_line *line, struct cuda_notice ***tail)
{
    struct cuda_notice *first = line->first;

    while (first != NULL &&
           (first->status = notice_ask(first)) != PS_ERROR_NOT_READY) {
        **tail = first;
        *tail = &first->next;
        first = first->next;
    }
    line->first = first;
    if (first == NULL) {
        line->tail = &line->first;
    }
}

static unsigned
watch_sweep(struct cuda_poller *poller)
{
    struct watch *watch = (struct watch *)poller;
    struct cuda_notice *found = NULL, **tail = &found, *notice;
    unsigned told = 0;

    for (struct bucket *b = watch->buckets; b < &watch->buckets[BUCKETS];
         b++) {
        struct cuda_line *next;
        pthread_mutex_lock(&b->lock);
        for (struct cuda_line *line = b->lines; line != NULL; line = next) {
            next = line->next;
            line_collect_locked(line, &tail);
            line_trim_locked(b, line);
        }
        pthread_mutex_unlock(&b->lock);
    }
    *tail = NULL;
    while ((notice = found) != NULL && !cuda_poller_stopping(poller)) {
        found = notice->next;
        notice->reached(notice->argument, notice->status);
        cuda_notice_destroy(notice);
        told++;
    }
    return told;
}

/* ---- Posts ---- */

/* The line of the stream, once nobody else is in it; NULL when out of memory.
 */
static struct cuda_line *
line_enter(struct watch *watch, int device, ps_handle stream)
{
    struct bucket *bucket = bucket_of(watch, device, stream);
    struct cuda_line *line;

    pthread_mutex_lock(&bucket->lock);
    while ((line = line_find_locked(bucket, device, stream)) != NULL &&
           line->entered) {
        pthread_cond_wait(&bucket->left, &bucket->lock);
    }
    if (line == NULL) {
        line = line_add_locked(bucket, device, stream);
    }
    if (line != NULL) {
        line->entered = true;
    }
    pthread_mutex_unlock(&bucket->lock);
    return line;
}

static void
line_leave(struct watch *watch, struct cuda_line *line)
{
    struct bucket *bucket = bucket_of(watch, line->device, line->stream);

    pthread_mutex_lock(&bucket->lock);
    line->entered = false;
    line_trim_locked(bucket, line);
    pthread_cond_broadcast(&bucket->left);
    pthread_mutex_unlock(&bucket->lock);
}

ps_status
cuda_post_enter(struct cuda_post *post, int device, ps_handle stream)
{
    ps_status status = cuda_poller_ensure(&events.poller);

    if (status == PS_SUCCESS) {
        status = cuda_poller_ensure(&words.poller);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    post->events = line_enter(&events, device, stream);
    if (post->events == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    post->words = line_enter(&words, device, stream);
    if (post->words == NULL) {
        line_leave(&events, post->events);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

void
cuda_post_leave(struct cuda_post *post)
{
    line_leave(&words, post->words);
    line_leave(&events, post->events);
}

ps_status
cuda_notice_create(struct cuda_post *post, ps_notification reached,
                   void *argument, struct cuda_notice **result)
{
    ps_status status = notice_find(post->events->device, result);

    if (status == PS_SUCCESS) {
        (*result)->reached = reached;
        (*result)->argument = argument;
        status = cuda_driver.event_record((*result)->event,
                                          (CUstream)post->events->stream);
        if (status != PS_SUCCESS) {
            cuda_notice_destroy(*result);
        }
    }
    return status;
}

ps_status
cuda_word_notice_create(_Atomic uint32_t *word, uint32_t number,
                        ps_notification reached, void *argument,
                        struct cuda_notice **result)
{
    struct cuda_notice *notice = calloc(1, sizeof(*notice));

    if (notice == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    notice->word = word;
    notice->number = number;
    notice->reached = reached;
    notice->argument = argument;
    *result = notice;
    return PS_SUCCESS;
}

void
cuda_notice_send(struct cuda_post *post, struct cuda_notice *notice)
{
    struct watch *watch = notice->word != NULL ? &words : &events;
    struct cuda_line *line = notice->word != NULL ? post->words : post->events;
    struct bucket *bucket = bucket_of(watch, line->device, line->stream);

    notice->next = NULL;
    pthread_mutex_lock(&bucket->lock);
    *line->tail = notice;
    line->tail = &notice->next;
    pthread_mutex_unlock(&bucket->lock);
    cuda_poller_give(&watch->poller);
}

ps_status
cuda_shutdown(const struct ps_backend *backend, int64_t timeout_ns)
{
    int64_t deadline = cuda_now_ns() + timeout_ns;
    ps_status first = cuda_poller_stop(&words.poller, deadline);
    ps_status second = cuda_poller_stop(&events.poller, deadline);

    (void)backend;
    return first != PS_SUCCESS ? first : second;
}

/* ---- Waiting ---- */

/* Ask for the event until the limit; again and again at first. */
static ps_status
event_wait_for(CUevent event, const struct ps_limit *limit)
{
    enum { EAGER = 50 * CUDA_MICROSECOND, QUESTION = 50 * CUDA_MILLISECOND };
    int64_t start = cuda_now_ns(), now = start, asked = start;
    ps_status status = cuda_driver.event_query(event);

    while (status == PS_ERROR_NOT_READY && now - start < limit->timeout_ns) {
        int64_t rest = cuda_rest_ns(now - start);
        int64_t left = limit->timeout_ns - (now - start);
        if (now - start > EAGER) {
            nanosleep(&(struct timespec){.tv_nsec = rest < left ? rest : left},
                      NULL);
        }
        if (limit->is_over != NULL && now - asked > QUESTION) {
            asked = now;
            if (limit->is_over(limit->argument)) {
                return PS_ERROR_NOT_READY;
            }
        }
        status = cuda_driver.event_query(event);
        now = cuda_now_ns();
    }
    return status;
}

ps_status
cuda_stream_drain(int device, ps_handle stream)
{
    const struct ps_limit forever = {.timeout_ns = INT64_MAX};
    enum cudaStreamCaptureStatus capturing;
    struct cuda_notice *notice;
    ps_status status = cudaStreamIsCapturing((cudaStream_t)stream, &capturing);

    if (status != PS_SUCCESS || capturing != cudaStreamCaptureStatusNone) {
        return status;
    }
    status = cuda_driver.stream_query((CUstream)stream);
    if (status != PS_ERROR_NOT_READY) {
        return status;
    }
    status = notice_find(device, &notice);
    if (status == PS_SUCCESS) {
        status = cuda_driver.event_record(notice->event, (CUstream)stream);
        if (status == PS_SUCCESS) {
            status = event_wait_for(notice->event, &forever);
        }
        cuda_notice_destroy(notice);
    }
    return status;
}

static ps_status
device_mark(int device, struct cuda_notice **mark)
{
    CUcontext context;
    ps_status status = cuda_context_retain(device, &context);

    if (status == PS_SUCCESS) {
        status = notice_find(device, mark);
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.context_record(context, (*mark)->event);
        if (status != PS_SUCCESS) {
            cuda_notice_destroy(*mark);
        }
    }
    return status;
}

ps_status
cuda_device_synchronize_for(const struct ps_backend *backend, int device,
                            const struct ps_limit *limit)
{
    struct cuda_notice *mark;
    ps_status status;

    (void)backend;
    if (cuda_driver.context_record == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    status = ON_DEVICE(device, device_mark(device, &mark));
    if (status == PS_SUCCESS) {
        status = event_wait_for(mark->event, limit);
        cuda_notice_destroy(mark);
    }
    return status;
}
