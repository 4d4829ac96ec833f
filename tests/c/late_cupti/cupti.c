/* A fake CUPTI, for the fake CUDA of late_cuda.  It delivers the records of
 * completed work when cuptiActivityFlushAll is called, in buffers that the
 * backend provides.
 *
 * The environment variable LATE_CUPTI chooses a deviation:
 *
 *   taken     another profiler has subscribed already
 *   broken    a subscription fails with an error
 *   graph     each kernel is reported as two nodes of a graph, the second on a
 *             stream that belongs to the graph
 *   parts     each copy is reported as two, of which the second takes 10 ms
 *   lost      the first fill is not reported
 *   contexts  each stream number is used for two streams, in two contexts */
#include "../../../csrc/backends/cuda/activity.h"
#include "../late_cuda/late.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_STREAM = 7,
    GRAPHS_STREAM = 99,
    MOST_RECORDS = 1 << 16,
    MOST_CALLBACKS = 10,
    DOMAINS = 2,
    PART = 10000000
};

struct record {
    uint32_t call;
    const char *function;
    int stream;
    uint64_t begin, end;
    size_t nbytes;
    uint64_t graph_node;
};

union activity {
    struct cupti_synchronization wait;
    struct cupti_kernel kernel;
    struct cupti_transfer transfer;
};

static const char *const functions[DOMAINS][MOST_CALLBACKS] = {
    {
        "INVALID",
        "cuInit",
        "cuMemcpyAsync",
        "cuLaunchKernel",
        "cuMemsetD8Async",
        "cuLaunchHostFunc",
        "cuEventQuery",
        "cuGraphLaunch",
        "cuStreamSynchronize",
        "cuEventSynchronize",
    },
    {"INVALID", "cudaEventQuery_v3020", "cudaDeviceSynchronize_v3020"},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static cupti_callback callback;
static int enabled[DOMAINS][MOST_CALLBACKS];
static int kinds[64];
static uint32_t calls;
static cupti_requested request;
static cupti_completed complete;
static struct record records[MOST_RECORDS];
static int record_count;
static int has_lost;

static int
is_set(const char *value)
{
    const char *set = getenv("LATE_CUPTI");
    return set != NULL && strcmp(set, value) == 0;
}

static uint32_t
called(const char *function)
{
    int domain = strncmp(function, "cuda", 4) == 0, id = 0;
    while (strcmp(functions[domain][id], function) != 0) {
        id++;
    }
    struct cupti_call call = {.function = function};
    call.correlation = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (callback != NULL && enabled[domain][id]) {
        callback(NULL, domain + CUPTI_DRIVER, (uint32_t)id, &call);
        call.is_exit = 1;
        callback(NULL, domain + CUPTI_DRIVER, (uint32_t)id, &call);
    }
    return call.correlation;
}

static void
done(uint32_t number, const char *function, int stream, int64_t begin,
     int64_t end, size_t nbytes)
{
    int in_graph = is_set("graph") && strcmp(function, "cuLaunchKernel") == 0;
    struct record record = {number,        function, stream, (uint64_t)begin,
                            (uint64_t)end, nbytes,   0};
    int in_parts = is_set("parts") && strcmp(function, "cuMemcpyAsync") == 0;
    int is_fill = strcmp(function, "cuMemsetD8Async") == 0;
    pthread_mutex_lock(&mutex);
    if (is_fill && !has_lost && is_set("lost")) {
        has_lost = 1;
        pthread_mutex_unlock(&mutex);
        return;
    }
    if (in_parts && record_count < MOST_RECORDS) {
        records[record_count++] = record;
        record.begin = record.end;
        record.end += PART;
    }
    for (int i = 0; i <= in_graph && record_count < MOST_RECORDS; i++) {
        record.stream = i == 0 ? stream : GRAPHS_STREAM - FIRST_STREAM;
        record.graph_node = in_graph ? (uint64_t)i + 1 : 0;
        records[record_count++] = record;
    }
    pthread_mutex_unlock(&mutex);
}

int
cuptiSubscribe_v2(void **subscriber, cupti_callback wanted, void *argument,
                  struct cupti_subscription *subscription)
{
    static const struct late_cuda_profiler profiler = {called, done};
    (void)argument;
    if (callback != NULL || is_set("taken")) {
        strncpy(subscription->holder, "CUPTI for a test",
                subscription->holder_size - 1);
        return CUPTI_TAKEN;
    }
    if (is_set("broken")) {
        return 999;
    }
    callback = wanted;
    *subscriber = &calls;
    late_cuda_profile(&profiler);
    return 0;
}

int
cuptiUnsubscribe(void *subscriber)
{
    (void)subscriber;
    late_cuda_profile(NULL);
    callback = NULL;
    memset(enabled, 0, sizeof(enabled));
    return 0;
}

int
cuptiGetCallbackName(int domain, uint32_t id, const char **name)
{
    if (id >= MOST_CALLBACKS) {
        return 1;
    }
    *name = functions[domain - CUPTI_DRIVER][id];
    return 0;
}

int
cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t id)
{
    (void)subscriber;
    enabled[domain - CUPTI_DRIVER][id] = enable;
    return 0;
}

int
cuptiGetResultString(int result, const char **text)
{
    *text = result == 999 ? "CUPTI_ERROR_UNKNOWN" : "";
    return 0;
}

int
cuptiActivityRegisterTimestampCallback(cupti_clock clock)
{
    return clock == NULL;
}

int
cuptiActivityRegisterCallbacks(cupti_requested requested,
                               cupti_completed completed)
{
    request = requested;
    complete = completed;
    return 0;
}

int
cuptiActivityEnable(int kind)
{
    kinds[kind] = 1;
    return 0;
}

/* Like CUPTI, this still delivers the records of work that was queued
 * before. */
int
cuptiActivityDisable(int kind)
{
    kinds[kind] = 0;
    return 0;
}

static uint32_t
number_of(int stream)
{
    return FIRST_STREAM + (uint32_t)(is_set("contexts") ? stream / 2 : stream);
}

static void
write_activity(union activity *activity, const struct record *record)
{
    uint32_t stream = number_of(record->stream);
    uint32_t context = 1 + (uint32_t)late_cuda_context_of(record->stream);
    if (strstr(record->function, "Synchronize") != NULL) {
        activity->wait = (struct cupti_synchronization){
            .kind = CUPTI_SYNCHRONIZATION,
            .type = strstr(record->function, "Stream") != NULL
                        ? CUPTI_STREAM_SYNCHRONIZE
                    : strstr(record->function, "Event") != NULL
                        ? CUPTI_EVENT_SYNCHRONIZE
                        : CUPTI_CONTEXT_SYNCHRONIZE,
            .start = record->begin,
            .end = record->end,
            .correlation = record->call,
        };
        return;
    }
    if (strcmp(record->function, "cuLaunchKernel") == 0) {
        activity->kernel = (struct cupti_kernel){
            .kind = CUPTI_KERNEL,
            .start = record->begin,
            .end = record->end,
            .context = context,
            .stream = stream,
            .correlation = record->call,
            .name = "_Z4spinPKfi",
            .graph_node = record->graph_node,
        };
        return;
    }
    int copies = strcmp(record->function, "cuMemcpyAsync") == 0;
    activity->transfer = (struct cupti_transfer){
        .kind = copies ? CUPTI_MEMCPY : CUPTI_MEMSET,
        .direction = copies ? CUPTI_DEVICE_TO_DEVICE : 1,
        .bytes = record->nbytes,
        .start = record->begin,
        .end = record->end,
        .context = context,
        .stream = stream,
        .correlation = record->call,
    };
}

int
cuptiActivityFlushAll(uint32_t flag)
{
    static struct record taken[MOST_RECORDS];
    static pthread_mutex_t flushing = PTHREAD_MUTEX_INITIALIZER;
    uint8_t *buffer;
    size_t size, most;
    (void)flag;
    pthread_mutex_lock(&flushing);
    pthread_mutex_lock(&mutex);
    int count = record_count;
    memcpy(taken, records, (size_t)count * sizeof(*taken));
    record_count = 0;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < count;) {
        size_t used = 0;
        request(&buffer, &size, &most);
        while (i < count && used + sizeof(union activity) <= size) {
            write_activity((union activity *)(buffer + used), &taken[i++]);
            used += sizeof(union activity);
        }
        complete(NULL, 0, buffer, size, used);
    }
    pthread_mutex_unlock(&flushing);
    return 0;
}

int
cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next =
        *record != NULL ? (uint8_t *)*record + sizeof(union activity) : buffer;
    if (next + sizeof(union activity) > buffer + valid) {
        return 1;
    }
    *record = next;
    return 0;
}

int
cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t of_thread,
                   uint32_t *id)
{
    (void)context, (void)of_thread;
    *id = number_of(late_cuda_stream(stream));
    return 0;
}

int
cuptiGetContextId(CUcontext context, uint32_t *id)
{
    *id = 1 + (uint32_t)late_cuda_context(context);
    return 0;
}
