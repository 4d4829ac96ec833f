/* Streams, events, memory and what is ordered; late.h says how. */
#include "late.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_OPERATIONS = 1 << 20, ON_NO_STREAM = -1 };

struct operation {
    int next; /* on its stream, or ON_NO_STREAM */
    int done;
    int after[MOST_STREAMS]; /* other streams' operations */
    uint32_t *word;          /* to be written or waited for, or NULL */
    uint32_t value;
    int writes;
    struct clock clock;
};

struct stream {
    int first, last; /* 0: none */
    struct clock clock;
};

struct block {
    char *data;
    size_t nbytes;
    int freed;
    int stream;
    unsigned allocated;          /* on the stream's clock */
    unsigned used[MOST_STREAMS]; /* on each stream's */
    struct block *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stream streams[MOST_STREAMS];
static int stream_count = 1;
/* The first stands for none, and is done. */
static struct operation *operations;
static int operation_count = 1;
static struct block *blocks;
static struct clock host;
static unsigned state = 1;
static int faults;

int
late_cuda_faults(void)
{
    return faults;
}

void
late_cuda_seed(unsigned seed)
{
    state = seed;
}

static void
fault(int stream, const char *what, const struct block *block)
{
    printf("late CUDA: stream %d %s %zu bytes of stream %d\n", stream, what,
           block->nbytes, block->stream);
    faults++;
}

static void
join(struct clock *clock, const struct clock *earlier)
{
    for (int i = 0; i < stream_count; i++) {
        if (earlier->of[i] > clock->of[i]) {
            clock->of[i] = earlier->of[i];
        }
    }
}

static int
may_proceed(const struct operation *operation)
{
    for (int i = 0; i < stream_count; i++) {
        if (!operations[operation->after[i]].done) {
            return 0;
        }
    }
    return operation->word == NULL || operation->writes ||
           __atomic_load_n(operation->word, __ATOMIC_ACQUIRE) >=
               operation->value;
}

static void
proceed(struct stream *stream)
{
    struct operation *operation = &operations[stream->first];
    if (stream->first == 0 || !may_proceed(operation)) {
        return;
    }
    if (operation->writes) {
        /* Whoever reads it sees that what came before is done. */
        join(&host, &operation->clock);
        __atomic_store_n(operation->word, operation->value, __ATOMIC_RELEASE);
    }
    operation->done = 1;
    stream->first = operation->next;
    stream->last = stream->first != 0 ? stream->last : 0;
}

void
begin(void)
{
    pthread_mutex_lock(&mutex);
    if (operations == NULL) {
        operations = calloc(MOST_OPERATIONS, sizeof(*operations));
        operations[0].done = 1;
    }
    for (int steps = rand_r(&state) % 3; steps > 0; steps--) {
        proceed(&streams[rand_r(&state) % stream_count]);
    }
}

void
end(void)
{
    pthread_mutex_unlock(&mutex);
}

int
add_stream(void)
{
    return stream_count < MOST_STREAMS ? stream_count++ : -1;
}

cudaStream_t
handle_of(int stream)
{
    return (cudaStream_t)&streams[stream];
}

int
index_of(const void *handle)
{
    return (uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD
               ? 0
               : (int)((const struct stream *)handle - streams);
}

static int
new_operation(void)
{
    if (operation_count == MOST_OPERATIONS) {
        fprintf(stderr, "late CUDA: no room for more operations\n");
        abort();
    }
    return operation_count++;
}

static int
append(int index)
{
    struct stream *stream = &streams[index];
    int operation = new_operation();
    join(&stream->clock, &host);
    stream->clock.of[index]++;
    *(stream->last != 0 ? &operations[stream->last].next : &stream->first) =
        operation;
    stream->last = operation;
    return operation;
}

void
queue(int stream)
{
    append(stream);
}

void
queue_wait(int stream, const struct event *event)
{
    operations[append(stream)].after[0] = event->operation;
    join(&streams[stream].clock, &event->clock);
}

void
queue_word(int stream, uint32_t *word, uint32_t value, int writes)
{
    struct operation *operation = &operations[append(stream)];
    operation->word = word;
    operation->value = value;
    operation->writes = writes;
    operation->clock = streams[stream].clock;
}

void
record(struct event *event, int stream)
{
    event->operation = append(stream);
    event->clock = streams[stream].clock;
}

void
record_all(struct event *event)
{
    struct operation *operation = &operations[new_operation()];
    event->operation = (int)(operation - operations);
    event->clock = (struct clock){0};
    for (int i = 0; i < stream_count; i++) {
        operation->after[i] = streams[i].last;
        join(&event->clock, &streams[i].clock);
    }
    operation->next = ON_NO_STREAM;
}

int
is_idle(int stream)
{
    if (streams[stream].first != 0) {
        return 0;
    }
    join(&host, &streams[stream].clock);
    return 1;
}

int
is_over(struct event *event)
{
    struct operation *operation = &operations[event->operation];
    if (operation->next == ON_NO_STREAM) {
        operation->done = may_proceed(operation);
    }
    if (operation->done) {
        join(&host, &event->clock);
    }
    return operation->done;
}

void
drain(int stream)
{
    while (!is_idle(stream)) {
        for (int i = 0; i < stream_count; i++) {
            proceed(&streams[i]);
        }
    }
}

void
drain_all(void)
{
    for (int i = 0; i < stream_count; i++) {
        drain(i);
    }
}

static struct block *
find(const void *address)
{
    const char *data = address;
    struct block *block = blocks;
    while (block != NULL &&
           (data < block->data || data >= block->data + block->nbytes)) {
        block = block->next;
    }
    return block;
}

void *
allocate(int stream, size_t nbytes)
{
    struct block *block = calloc(1, sizeof(*block));
    if (block == NULL || (block->data = malloc(nbytes)) == NULL) {
        free(block);
        return NULL;
    }
    append(stream);
    block->nbytes = nbytes;
    block->stream = stream;
    block->allocated = streams[stream].clock.of[stream];
    block->next = blocks;
    blocks = block;
    return block->data;
}

void
release(int stream, void *data)
{
    struct block *block = find(data);
    append(stream);
    for (int i = 0; i < stream_count; i++) {
        if (block->used[i] > streams[stream].clock.of[i]) {
            fault(stream, "frees, while another may use them,", block);
        }
    }
    if (block->freed) {
        fault(stream, "frees again", block);
    }
    block->freed = 1;
}

int
is_of_device(const void *address)
{
    return find(address) != NULL;
}

void
use(int stream, const void *address)
{
    struct block *block = find(address);
    if (block == NULL) {
        return;
    }
    if (block->freed) {
        fault(stream, "uses after their release", block);
    }
    if (block->allocated > streams[stream].clock.of[block->stream]) {
        fault(stream, "uses before their allocation", block);
    }
    block->used[stream] = streams[stream].clock.of[stream];
}
