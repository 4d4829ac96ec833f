/* Measures the nanoseconds per operation, for people who change the engine. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
report(const char *what, int64_t began, int64_t times)
{
    double each = (double)(now() - began) / (double)times;
    printf("%-44s %8.1f ns\n", what, each);
}

static void
stamp(void *argument)
{
    *(int64_t *)argument = now();
}

static void
bench_stream(const char *what, bool behind_hold, bool calls)
{
    enum { OPERATIONS = 2000000 };
    ps_handle stream = stream_new(0), event = event_new();
    struct hold hold;
    int ran = 0;
    if (behind_hold) {
        hold_take(cpu, &hold, stream);
    }
    int64_t began = now();
    for (int i = 0; i < OPERATIONS; i++) {
        ps_status status =
            calls ? cpu->host_function(cpu, 0, stream, count, &ran)
                  : cpu->event_record(cpu, 0, event, stream);
        if (status) {
            if (behind_hold) {
                hold_release(&hold);
            }
            behind_hold = false;
            OK(cpu->stream_wait_room(cpu, 0, stream, INT64_MAX));
            i--;
        }
    }
    OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
    report(what, began, OPERATIONS);
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->event_destroy(cpu, 0, event));
}

static void
bench_copy(void)
{
    size_t size = (size_t)1 << 30;
    char *from = malloc(size), *to = malloc(size);
    memset(from, 1, size);
    memset(to, 2, size);
    for (int i = 0; i < 3; i++) {
        int64_t began = now();
        memcpy(to, from, size);
        report("memcpy of 1 GiB", began, 1);
        began = now();
        OK(cpu->memory_copy(cpu, 0, 0, to, from, size));
        OK(cpu->stream_synchronize(cpu, 0, 0, NULL));
        report("memory_copy of 1 GiB", began, 1);
    }
    free(from);
    free(to);
}

static void
bench_wake(void)
{
    enum { TIMES = 2000 };
    ps_handle a = stream_new(0), b = stream_new(0), event = event_new();
    int64_t woke = 0, opened = 0, sum = 0;
    for (int i = 0; i < TIMES; i++) {
        struct hold hold;
        hold_take(cpu, &hold, a);
        OK(cpu->host_function(cpu, 0, a, stamp, &opened));
        OK(cpu->event_record(cpu, 0, event, a));
        OK(cpu->stream_wait_event(cpu, 0, b, event));
        OK(cpu->host_function(cpu, 0, b, stamp, &woke));
        hold_release(&hold);
        OK(cpu->stream_synchronize(cpu, 0, b, NULL));
        sum += woke - opened;
    }
    printf("%-44s %8.1f ns\n", "parked stream, from record to running",
           (double)sum / TIMES);
    int64_t called;
    sum = 0;
    for (int i = 0; i < TIMES / 10; i++) {
        pause_ms(1);
        called = now();
        OK(cpu->host_function(cpu, 0, a, stamp, &woke));
        OK(cpu->stream_synchronize(cpu, 0, a, NULL));
        sum += woke - called;
    }
    printf("%-44s %8.1f ns\n", "sleeping worker, from call to running",
           (double)sum / (TIMES / 10.0));
    stream_end(a);
    stream_end(b);
    OK(cpu->event_destroy(cpu, 0, event));
}

/* The handle of the gate that was reached and is not yet opened, or NULL. */
static _Atomic(ps_handle *) reached_last;

static void
reach(void *argument, ps_status status)
{
    (void)status;
    atomic_store(&reached_last, argument);
}

/* A thread that opens gates as they are reached, while another one queues
 * them. */
static void *
open_gates(void *argument)
{
    int left = *(int *)argument;
    while (left > 0) {
        ps_handle *gate = atomic_exchange(&reached_last, NULL);
        if (gate != NULL) {
            OK(cpu->gate_open(cpu, 0, *gate));
            left--;
        }
    }
    return NULL;
}

static void
bench_gates(void)
{
    int times = 50000;
    ps_handle stream = stream_new(0);
    ps_handle *gates = calloc((size_t)times, sizeof(*gates));
    struct hold hold;
    pthread_t opener;
    for (int held = 0; held < 2; held++) {
        if (held) {
            hold_take(cpu, &hold, stream);
        }
        int64_t began = now();
        if (!held) {
            pthread_create(&opener, NULL, open_gates, &times);
        }
        for (int i = 0; i < times; i++) {
            OK(cpu->stream_gate(cpu, 0, stream, reach, &gates[i], &gates[i]));
        }
        report(held ? "gate queued" : "gate queued, beside its opener", began,
               times);
        if (held) {
            pthread_create(&opener, NULL, open_gates, &times);
            began = now();
            hold_release(&hold);
        }
        pthread_join(opener, NULL);
        report(held ? "gate opened, next one reached"
                    : "gate queued, reached and opened",
               began, times);
    }
    stream_end(stream);
    free(gates);
}

/* One of several threads that measure at the same time, each with a stream of
 * its own. */
struct bencher {
    pthread_t thread;
    pthread_barrier_t *ready;
    unsigned flags;
    double each; /* nanoseconds */
};

static void *
bench_record(void *argument)
{
    enum { TIMES = 1000000 };
    struct bencher *bencher = argument;
    ps_handle stream = stream_new(0), event = 0;
    OK(cpu->event_create(cpu, 0, bencher->flags, &event));
    pthread_barrier_wait(bencher->ready);
    int64_t began = now();
    for (int i = 0; i < TIMES; i++) {
        cpu->event_record(cpu, 0, event, stream);
        cpu->stream_wait_event(cpu, 0, stream, event);
        cpu->event_query(cpu, 0, event);
    }
    bencher->each = (double)(now() - began) / TIMES;
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, event));
    return NULL;
}

static void
bench_threads(unsigned flags)
{
    enum { MOST = 16 };
    for (unsigned count = 1; count <= MOST; count *= 2) {
        struct bencher benchers[MOST];
        pthread_barrier_t ready;
        double sum = 0;
        pthread_barrier_init(&ready, NULL, count);
        for (unsigned i = 0; i < count; i++) {
            benchers[i] = (struct bencher){.ready = &ready, .flags = flags};
            pthread_create(&benchers[i].thread, NULL, bench_record,
                           &benchers[i]);
        }
        for (unsigned i = 0; i < count; i++) {
            pthread_join(benchers[i].thread, NULL);
            sum += benchers[i].each;
        }
        pthread_barrier_destroy(&ready);
        printf("record%s, wait and query, %2u threads %*.1f ns\n",
               flags ? " with timing" : "", count, flags ? 9 : 21,
               sum / count);
    }
}

void
bench(void)
{
    enum { TIMES = 5000000 };
    ps_handle stream = stream_new(0), timed = event_new(), event = 0;
    OK(cpu->event_create(cpu, 0, 0, &event));
    for (int with_worker = 0; with_worker < 2; with_worker++) {
        int64_t began = now();
        for (int i = 0; i < TIMES; i++) {
            cpu->event_record(cpu, 0, event, stream);
        }
        report("record, idle stream", began, TIMES);
        began = now();
        for (int i = 0; i < TIMES; i++) {
            cpu->event_record(cpu, 0, timed, stream);
        }
        report("record with timing, idle stream", began, TIMES);
        began = now();
        for (int i = 0; i < TIMES; i++) {
            cpu->event_query(cpu, 0, event);
        }
        report("event_query", began, TIMES);
        began = now();
        for (int i = 0; i < TIMES; i++) {
            cpu->stream_query(cpu, 0, stream);
        }
        report("stream_query, idle", began, TIMES);
        stamp(&began);
        OK(cpu->host_function(cpu, 0, stream, stamp, &began));
        OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
    }
    bench_threads(0);
    bench_threads(PS_EVENT_TIMING);
    bench_stream("host functions, one stream", false, true);
    bench_stream("host functions, 65536 at a time", true, true);
    bench_stream("records, 65536 at a time", true, false);
    bench_gates();
    bench_wake();
    bench_copy();
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, timed));
    OK(cpu->event_destroy(cpu, 0, event));
}
