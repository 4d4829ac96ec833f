/* Streams, events, memory, and the order of operations; see late.h. */
#include "late.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 256, MOST_OPERATIONS = 1 << 22, ON_NO_STREAM = -1 };

/* An operation.  Members that the operation does not need are NULL or 0.
 * Operations are identified by their indices in `operations`. */
struct operation {
    int next;  /* the next operation on its stream, or ON_NO_STREAM */
    int after; /* an operation of another stream that must be done before */
    int *all;  /* for each stream, an operation that must be done before */
    int done;
    int64_t queued_ns, begun_ns, done_ns;
    uint32_t *word; /* to be written or waited for */
    uint32_t value;
    int writes;
    uint64_t nanoseconds;
    cudaHostFn_t function;
    void *argument;
    struct clock *known; /* joined to the host's clock when this begins */
    void *to;
    const void *from; /* NULL if this is a fill with the value */
    size_t nbytes;
    /* The profiler that was told of the call that queued this operation, the
     * name of the called function, and the number that the profiler chose. */
    const struct late_cuda_profiler *profiler;
    const char *call;
    uint32_t call_number;
};

struct stream {
    int removed;
    const void *owner;
    int blocking;
    int first, last; /* 0 if there is none */
    struct clock clock;
};

struct block {
    char *data;
    size_t nbytes;
    int freed;
    int stream;
    unsigned allocated; /* the time, by the stream's clock */
    /* The time at which each stream last used it, by that stream's clock. */
    unsigned used[MOST_STREAMS];
    struct block *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stream streams[MOST_STREAMS];
static int stream_count = 1;
/* The element 0 stands for "no operation", and is done. */
static struct operation *operations;
static int operation_count = 1;
static struct block *blocks;
static struct clock host;
static unsigned state = 1;
static int faults;
static const struct late_cuda_profiler *profiler;

void
late_cuda_profile(const struct late_cuda_profiler *wanted)
{
    pthread_mutex_lock(&mutex);
    profiler = wanted;
    pthread_mutex_unlock(&mutex);
}

int
late_cuda_stream(const void *handle)
{
    return index_of(handle);
}

int
late_cuda_context_of(int stream)
{
    const char *set = getenv("LATE_CUPTI");
    return set != NULL && strcmp(set, "contexts") == 0 ? stream % 2 : 0;
}

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

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int
may_begin(const struct operation *operation)
{
    for (int i = 0; operation->all != NULL && i < MOST_STREAMS; i++) {
        if (!operations[operation->all[i]].done) {
            return 0;
        }
    }
    return operations[operation->after].done &&
           (operation->word == NULL || operation->writes ||
            __atomic_load_n(operation->word, __ATOMIC_ACQUIRE) >=
                operation->value);
}

static void *
call(void *memory)
{
    struct operation *operation = memory;
    operation->function(operation->argument);
    pthread_mutex_lock(&mutex);
    operation->function = NULL;
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void
begin_operation(struct operation *operation)
{
    operation->begun_ns = now_ns();
    if (operation->known != NULL) {
        join(&host, operation->known);
        free(operation->known);
    }
    if (operation->writes) {
        __atomic_store_n(operation->word, operation->value, __ATOMIC_RELEASE);
    }
    if (operation->function != NULL) {
        pthread_t thread;
        pthread_create(&thread, NULL, call, operation);
        pthread_detach(thread);
    }
    if (operation->from != NULL) {
        memmove(operation->to, operation->from, operation->nbytes);
    }
    else if (operation->to != NULL) {
        memset(operation->to, (int)operation->value, operation->nbytes);
    }
}

static void
proceed(struct stream *stream)
{
    struct operation *operation = &operations[stream->first];
    if (stream->first == 0) {
        return;
    }
    if (operation->begun_ns == 0 && may_begin(operation)) {
        begin_operation(operation);
    }
    if (operation->begun_ns == 0 || operation->function != NULL ||
        now_ns() - operation->begun_ns < (int64_t)operation->nanoseconds) {
        return;
    }
    operation->done = 1;
    operation->done_ns = now_ns();
    if (operation->call != NULL) {
        operation->profiler->done(operation->call_number, operation->call,
                                  (int)(stream - streams), operation->begun_ns,
                                  operation->done_ns, operation->nbytes);
    }
    stream->first = operation->next;
    stream->last = stream->first != 0 ? stream->last : 0;
}

static void
proceed_with_all(void)
{
    for (int i = 0; i < stream_count; i++) {
        proceed(&streams[i]);
    }
}

/* A thread that makes all streams proceed from time to time, because a program
 * may wait for work without calling CUDA. */
static void *
work(void *unused)
{
    struct timespec nap = {0, 50000};
    for (;;) {
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&mutex);
        proceed_with_all();
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

void
begin(void)
{
    pthread_mutex_lock(&mutex);
    if (operations == NULL) {
        pthread_t thread;
        operations = calloc(MOST_OPERATIONS, sizeof(*operations));
        operations[0].done = 1;
        pthread_create(&thread, NULL, work, NULL);
        pthread_detach(thread);
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
add_stream(int blocking)
{
    int i = 1;
    while (i < stream_count &&
           !(streams[i].removed && streams[i].first == 0)) {
        i++;
    }
    if (i == MOST_STREAMS) {
        return -1;
    }
    stream_count += i == stream_count;
    streams[i].removed = 0;
    streams[i].blocking = blocking;
    return i;
}

int
is_blocking(int stream)
{
    return stream == 0 || streams[stream].blocking;
}

/* Returns whether work on each of the two streams waits for earlier work on
 * the other.  This is the case if one is the default stream and the other is a
 * blocking stream. */
static int
serializes(int stream, int other)
{
    return stream != other && (stream == 0 || other == 0) &&
           is_blocking(stream) && is_blocking(other);
}

void
remove_stream(int stream)
{
    streams[stream].removed = 1;
    streams[stream].owner = NULL;
}

void
set_owner(int stream, const void *owner)
{
    streams[stream].owner = owner;
}

int
owned_by(const void *owner)
{
    int count = 0;
    for (int i = 0; i < stream_count; i++) {
        count += streams[i].owner == owner;
    }
    return count;
}

cudaStream_t
handle_of(int stream)
{
    return (cudaStream_t)&streams[stream];
}

static pthread_key_t own_key;

static void
leave(void *own)
{
    pthread_mutex_lock(&mutex);
    remove_stream((int)(intptr_t)own);
    pthread_mutex_unlock(&mutex);
}

static void
make_own_key(void)
{
    pthread_key_create(&own_key, leave);
}

/* Returns the calling thread's default stream, which is created by the first
 * call and removed when the thread ends. */
static int
own_stream(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_own_key);
    int own = (int)(intptr_t)pthread_getspecific(own_key);
    if (own == 0) {
        own = add_stream(1);
        pthread_setspecific(own_key, (void *)(intptr_t)own);
    }
    return own;
}

int
index_of(const void *handle)
{
    if ((uintptr_t)handle == (uintptr_t)CU_STREAM_PER_THREAD) {
        return own_stream();
    }
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
    operations[operation_count].queued_ns = now_ns();
    return operation_count++;
}

static struct operation *
append(int index)
{
    struct stream *stream = &streams[index];
    int operation = new_operation();
    join(&stream->clock, &host);
    for (int i = 0; i < stream_count; i++) {
        if (serializes(index, i)) {
            int **all = &operations[operation].all;
            *all = *all != NULL ? *all : calloc(MOST_STREAMS, sizeof(**all));
            (*all)[i] = streams[i].last;
            join(&stream->clock, &streams[i].clock);
        }
    }
    stream->clock.of[index]++;
    *(stream->last != 0 ? &operations[stream->last].next : &stream->first) =
        operation;
    stream->last = operation;
    return &operations[operation];
}

/* Like append, but also tells the profiler of the call. */
static struct operation *
append_call(int stream, const char *function)
{
    uint32_t number = profiler != NULL ? profiler->called(function) : 0;
    struct operation *operation = append(stream);
    if (number != 0) {
        operation->profiler = profiler;
        operation->call = function;
        operation->call_number = number;
    }
    return operation;
}

/* Order later calls after all work before the operation, as soon as the
 * operation begins.  The host can see that the operation has begun, so it
 * knows that this work is done. */
static void
inform_host(struct operation *operation, int stream)
{
    operation->known = malloc(sizeof(*operation->known));
    *operation->known = streams[stream].clock;
}

void
queue_wait(int stream, const struct event *event)
{
    append(stream)->after = event->operation;
    join(&streams[stream].clock, &event->clock);
}

void
queue_word(int stream, uint32_t *word, uint32_t value, int writes)
{
    struct operation *operation = append(stream);
    operation->word = word;
    operation->value = value;
    operation->writes = writes;
    if (writes) {
        inform_host(operation, stream);
    }
}

void
queue_sleep(int stream, uint64_t nanoseconds)
{
    append_call(stream, "cuLaunchKernel")->nanoseconds = nanoseconds;
}

void
queue_call(int stream, cudaHostFn_t function, void *argument)
{
    struct operation *operation = append(stream);
    operation->function = function;
    operation->argument = argument;
    inform_host(operation, stream);
}

void
record(struct event *event, int stream)
{
    event->operation = (int)(append(stream) - operations);
    event->clock = streams[stream].clock;
}

void
record_all(struct event *event)
{
    struct operation *operation = &operations[new_operation()];
    event->operation = (int)(operation - operations);
    event->clock = (struct clock){0};
    operation->all = calloc(MOST_STREAMS, sizeof(*operation->all));
    for (int i = 0; i < stream_count; i++) {
        operation->all[i] = streams[i].last;
        join(&event->clock, &streams[i].clock);
    }
    operation->next = ON_NO_STREAM;
}

int
is_idle(int stream)
{
    for (int i = 0; i < stream_count; i++) {
        if ((i == stream || (stream == 0 && serializes(0, i))) &&
            streams[i].first != 0) {
            return 0;
        }
    }
    join(&host, &streams[stream].clock);
    for (int i = 1; stream == 0 && i < stream_count; i++) {
        if (serializes(0, i)) {
            join(&host, &streams[i].clock);
        }
    }
    return 1;
}

static int64_t query_delay_ns;

int
is_over(struct event *event)
{
    struct operation *operation = &operations[event->operation];
    if (operation->next == ON_NO_STREAM) {
        operation->done = may_begin(operation);
    }
    if (event->operation != 0 &&
        now_ns() < operation->queued_ns + query_delay_ns) {
        return 0;
    }
    if (operation->done) {
        join(&host, &event->clock);
    }
    return operation->done;
}

void
late_cuda_delay(int milliseconds)
{
    query_delay_ns = milliseconds * INT64_C(1000000);
}

int64_t
between(const struct event *start, const struct event *stop)
{
    return operations[stop->operation].done_ns -
           operations[start->operation].done_ns;
}

struct waiting
begin_waiting(const char *function)
{
    uint32_t number = profiler != NULL ? profiler->called(function) : 0;
    return (struct waiting){profiler, function, number, now_ns()};
}

void
end_waiting(const struct waiting *waiting)
{
    if (waiting->number != 0) {
        waiting->profiler->done(waiting->number, waiting->function, 0,
                                waiting->begun_ns, now_ns(), 0);
    }
}

void
drain(int stream)
{
    while (!is_idle(stream)) {
        proceed_with_all();
        /* Release the lock for a moment, because a host function that runs now
         * may call CUDA. */
        end();
        pthread_mutex_lock(&mutex);
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
    size_t rounded = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (block == NULL || rounded < nbytes ||
        (block->data = aligned_alloc(ALIGNMENT, rounded)) == NULL) {
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

/* The host maps and unmaps memory, not a stream.  So mapping and unmapping are
 * ordered after the work that the host has seen to be done. */
void
add_mapping(void *data, size_t nbytes)
{
    struct block *block = calloc(1, sizeof(*block));
    block->data = data;
    block->nbytes = nbytes;
    block->next = blocks;
    blocks = block;
}

void
remove_mapping(void *data)
{
    struct block **link = &blocks, *block;
    while ((*link)->data != data) {
        link = &(*link)->next;
    }
    block = *link;
    for (int i = 0; i < stream_count; i++) {
        if (block->used[i] > host.of[i]) {
            fault(i, "may still use the mapping of", block);
        }
    }
    *link = block->next;
    free(block);
}

void
count_memory(uint64_t *reserved, uint64_t *used)
{
    *reserved = *used = 0;
    for (struct block *block = blocks; block != NULL; block = block->next) {
        *reserved += block->nbytes;
        *used += block->freed ? 0 : block->nbytes;
    }
}

int
is_of_device(const void *address)
{
    return find(address) != NULL;
}

static void
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

void
queue_copy(int stream, void *to, const void *from, size_t nbytes)
{
    struct operation *operation = append_call(stream, "cuMemcpyAsync");
    operation->to = to;
    operation->from = from;
    operation->nbytes = nbytes;
    use(stream, to);
    use(stream, from);
}

void
queue_fill(int stream, void *to, int value, size_t nbytes)
{
    struct operation *operation = append_call(stream, "cuMemsetD8Async");
    operation->to = to;
    operation->value = (uint32_t)value;
    operation->nbytes = nbytes;
    use(stream, to);
}
