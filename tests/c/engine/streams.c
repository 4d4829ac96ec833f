/* Streams: the order of their work, their priorities, full queues, waits for
 * all of a device's streams, and streams that are destroyed while work is
 * pending. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int log_length, log_entries[4096];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void
note(void *argument)
{
    pthread_mutex_lock(&log_lock);
    log_entries[log_length++] = (int)(intptr_t)argument;
    pthread_mutex_unlock(&log_lock);
}

static void
note_on(ps_handle stream, int value)
{
    OK(cpu->host_function(cpu, 0, stream, note, (void *)(intptr_t)value));
}

void
test_fifo(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    int byte_count = 0;
    char a[16] = {0}, b[16] = {0};
    log_length = 0;
    for (int i = 0; i < 1000; i++) {
        note_on(stream, i);
        OK(cpu->memory_fill(cpu, 0, stream, a, (uint8_t)i, sizeof(a)));
        OK(cpu->memory_copy(cpu, 0, stream, b, a, sizeof(a)));
        OK(cpu->event_record(cpu, 0, event, stream));
        OK(cpu->stream_wait_event(cpu, 0, stream, event));
        OK(cpu->host_function(cpu, 0, stream, count, &byte_count));
    }
    OK(cpu->event_synchronize(cpu, 0, event, NULL));
    stream_end(stream);
    CHECK(log_length == 1000 && byte_count == 1000);
    for (int i = 0; i < 1000; i++) {
        CHECK(log_entries[i] == i);
    }
    CHECK((uint8_t)b[15] == (uint8_t)999);
    OK(cpu->event_query(cpu, 0, event));
    OK(cpu->event_destroy(cpu, 0, event));
}

static int
worker_limit(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 2 ? 2 : cores > 8 ? 8 : (int)cores;
}

void
test_priorities(void)
{
    int least = 1, greatest = 1, holds = worker_limit();
    OK(cpu->stream_priority_range(cpu, 0, &least, &greatest));
    CHECK(least == 0 && greatest == -5);
    ps_handle busy[8], low = stream_new(0), mid = stream_new(-2),
                       high = stream_new(-5), unused = 0;
    CHECK_STATUS(cpu->stream_create(cpu, 0, -6, &unused),
                 PS_ERROR_INVALID_VALUE);
    struct hold hold[8];
    for (int i = 0; i < holds; i++) {
        busy[i] = stream_new(0);
        hold_take(cpu, &hold[i], busy[i]);
    }
    log_length = 0;
    note_on(low, 3);
    note_on(mid, 2);
    note_on(high, 1);
    hold_release(&hold[0]);
    stream_end(low);
    stream_end(mid);
    stream_end(high);
    CHECK(log_length == 3 && log_entries[0] == 1 && log_entries[1] == 2 &&
          log_entries[2] == 3);
    for (int i = 1; i < holds; i++) {
        hold_release(&hold[i]);
    }
    for (int i = 0; i < holds; i++) {
        stream_end(busy[i]);
    }
}

/* Launch a graph on a stream of priority -2.  The graph's work was captured on
 * a side stream of priority -5.  A rival stream of priority -3 also has work,
 * and no worker is free until both are queued.  Returns which of them runs
 * first: 1 for the graph's work, 2 for the rival's. */
static int
first_with(unsigned options)
{
    ps_handle stream = stream_new(-2), side = stream_new(-5);
    ps_handle rival = stream_new(-3), busy[8], graph, executable;
    ps_handle event = event_new();
    int holds = worker_limit();
    struct hold hold[8];
    size_t operations;
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    OK(cpu->event_record(cpu, 0, event, stream));
    OK(cpu->stream_wait_event(cpu, 0, side, event));
    note_on(side, 1);
    OK(cpu->event_record(cpu, 0, event, side));
    OK(cpu->stream_wait_event(cpu, 0, stream, event));
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    OK(cpu->graph_instantiate_with(cpu, 0, graph, options, &executable));
    for (int i = 0; i < holds; i++) {
        busy[i] = stream_new(0);
        hold_take(cpu, &hold[i], busy[i]);
    }
    log_length = 0;
    note_on(rival, 2);
    OK(cpu->graph_launch(cpu, 0, executable, stream));
    hold_release(&hold[0]);
    stream_end(rival);
    stream_end(stream);
    for (int i = 1; i < holds; i++) {
        hold_release(&hold[i]);
    }
    for (int i = 0; i < holds; i++) {
        stream_end(busy[i]);
    }
    stream_end(side);
    OK(cpu->executable_destroy(cpu, 0, executable));
    OK(cpu->graph_destroy(cpu, 0, graph));
    OK(cpu->event_destroy(cpu, 0, event));
    CHECK(log_length == 2);
    return log_entries[0];
}

void
test_node_priority(void)
{
    CHECK(first_with(PS_INSTANTIATE_NODE_PRIORITY) == 1);
    CHECK(first_with(0) == 2);
}

void
test_threads_few(void)
{
    enum { STREAMS = 10000 };
    ps_handle *streams = calloc(STREAMS, sizeof(*streams));
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = stream_new(0);
        OK(cpu->sleep(cpu, 0, streams[i], 1000000));
    }
    int workers = 0, blocked = 0; /* these include the timer */
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        snprintf(path, sizeof(path), "/proc/self/task/%s/status",
                 task->d_name);
        FILE *file = fopen(path, "r");
        bool worker = false;
        while (file && fgets(line, sizeof(line), file)) {
            worker |= strncmp(line, "Name:\tps-cpu-", 13) == 0;
            if (worker && strncmp(line, "SigBlk:\tffff", 12) == 0) {
                blocked++;
            }
        }
        workers += worker;
        if (file) {
            fclose(file);
        }
    }
    closedir(tasks);
    CHECK(workers > 1 && workers <= worker_limit() + 1 && blocked == workers);
    OK(cpu->device_synchronize(cpu, 0, NULL));
    for (int i = 0; i < STREAMS; i++) {
        stream_end(streams[i]);
    }
    free(streams);
}

struct own_room {
    ps_handle stream;
    ps_status wait_room, synchronize;
};

static void
own_room(void *argument)
{
    struct own_room *own = argument;
    own->wait_room = cpu->stream_wait_room(cpu, 0, own->stream, 1000000);
    own->synchronize = cpu->stream_synchronize(cpu, 0, own->stream, NULL);
}

void
test_full_queue(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct own_room own = {.stream = stream};
    struct hold hold;
    void *data = NULL;
    ps_status status;
    int queued = 2, ran = 0;
    OK(cpu->memory_allocate(cpu, 0, stream, 100, &data));
    hold_take(cpu, &hold, stream);
    OK(cpu->host_function(cpu, 0, stream, own_room, &own));
    while (!(status = cpu->host_function(cpu, 0, stream, count, &ran))) {
        queued++;
    }
    CHECK(status == PS_ERROR_QUEUE_FULL && queued == 65536);
    CHECK_STATUS(cpu->event_record(cpu, 0, event, stream),
                 PS_ERROR_QUEUE_FULL);
    OK(cpu->event_query(cpu, 0, event));
    OK(cpu->memory_free(cpu, 0, stream, data));
    CHECK_STATUS(cpu->stream_wait_room(cpu, 0, stream, 10000000),
                 PS_ERROR_TIMED_OUT);
    /* With the free, the queue has one operation more than its limit allows.
     * So when only the hold has ended, the queue is still full. */
    hold_release(&hold);
    OK(cpu->stream_wait_room(cpu, 0, stream, INT64_MAX));
    stream_end(stream);
    CHECK(ran == queued - 2);
    CHECK(own.wait_room == PS_ERROR_NOT_PERMITTED);
    CHECK(own.synchronize == PS_ERROR_NOT_PERMITTED);
    OK(cpu->event_destroy(cpu, 0, event));
}

static void *
synchronize_thread(void *entering)
{
    sem_post(entering);
    OK(cpu->device_synchronize(cpu, 0, NULL));
    return NULL;
}

/* device_synchronize does not wait for work that is queued after the call. */
void
test_device_synchronize(void)
{
    ps_handle before = stream_new(0), after = stream_new(0);
    struct hold first, second;
    struct timespec limit;
    pthread_t thread;
    sem_t entering;
    sem_init(&entering, 0, 0);
    hold_take(cpu, &first, before);
    pthread_create(&thread, NULL, synchronize_thread, &entering);
    sem_wait(&entering);
    pause_ms(100);
    hold_take(cpu, &second, after);
    hold_release(&first);
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 10;
    bool returned = !pthread_timedjoin_np(thread, NULL, &limit);
    CHECK(returned);
    hold_release(&second);
    if (!returned) {
        pthread_join(thread, NULL);
    }
    stream_end(before);
    stream_end(after);
}

void
test_destroy_pending(void)
{
    enum { STREAMS = 100 };
    int ran[STREAMS] = {0};
    ps_handle first = stream_new(0), event = event_new();
    struct hold hold;
    hold_take(cpu, &hold, first);
    OK(cpu->event_record(cpu, 0, event, first));
    for (int i = 0; i < STREAMS; i++) {
        ps_handle stream = stream_new(0);
        OK(cpu->stream_wait_event(cpu, 0, stream, event));
        OK(cpu->host_function(cpu, 0, stream, count, &ran[i]));
        OK(cpu->sleep(cpu, 0, stream, 100000));
        OK(cpu->host_function(cpu, 0, stream, count, &ran[i]));
        OK(cpu->stream_destroy(cpu, 0, stream));
        CHECK_STATUS(cpu->stream_query(cpu, 0, stream),
                     PS_ERROR_INVALID_HANDLE);
    }
    OK(cpu->event_destroy(cpu, 0, event));
    OK(cpu->stream_destroy(cpu, 0, first));
    OK(cpu->device_synchronize(cpu, 1, NULL));
    hold_release(&hold);
    OK(cpu->device_synchronize(cpu, 0, NULL));
    for (int i = 0; i < STREAMS; i++) {
        CHECK(ran[i] == 2);
    }
}
