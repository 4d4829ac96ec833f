/* Stress test: threads make random calls on streams and events that they
 * share. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <stdlib.h>

enum { SHARED = 4, STRESS_ROUNDS = 20000 };

static ps_handle shared_streams[SHARED], shared_events[SHARED];

static void
query_both(void *argument)
{
    int i = (int)(intptr_t)argument;
    ps_status status = cpu->stream_query(cpu, 0, shared_streams[i]);
    CHECK(status == PS_SUCCESS || status == PS_ERROR_NOT_READY);
    ps_handle other = shared_streams[(i + 1) % SHARED];
    OK(cpu->event_record(cpu, 0, shared_events[i], other));
}

static void *
stress_thread(void *argument)
{
    unsigned seed = 1 + (unsigned)(intptr_t)argument;
    ps_handle stream = stream_new(0), event = event_new();
    unsigned char a[256], b[256] = {0};
    int calls = 0, called = 0;
    for (int round = 0; round < STRESS_ROUNDS; round++) {
        int which = rand_r(&seed) % SHARED;
        ps_handle theirs = shared_streams[which], hers = shared_events[which];
        ps_status status = PS_SUCCESS;
        void *data = NULL;
        switch (rand_r(&seed) % 12) {
        case 0:
            OK(cpu->event_record(cpu, 0, hers, theirs));
            break;
        case 1:
            OK(cpu->stream_wait_event(cpu, 0, stream, hers));
            break;
        case 2:
            OK(cpu->stream_wait_event(cpu, 0, theirs, hers));
            break;
        case 3:
            status = cpu->event_query(cpu, 0, hers);
            break;
        case 4:
            OK(cpu->host_function(cpu, 0, theirs, query_both,
                                  (void *)(intptr_t)which));
            break;
        case 5:
            calls++;
            OK(cpu->host_function(cpu, 0, stream, count, &called));
            break;
        case 6:
            OK(cpu->stream_synchronize(cpu, 0, theirs, NULL));
            break;
        case 7:
            OK(cpu->sleep(cpu, 0, stream, (uint64_t)rand_r(&seed) % 20000));
            break;
        case 8:
            OK(cpu->memory_allocate(cpu, 0, stream, 512, &data));
            OK(cpu->memory_fill(cpu, 0, stream, data, 1, 512));
            OK(cpu->memory_free(cpu, 0, stream, data));
            break;
        case 9:
            OK(cpu->stream_destroy(cpu, 0, stream));
            stream = stream_new(-(int)(rand_r(&seed) % 6));
            OK(cpu->stream_wait_event(cpu, 0, stream, event));
            break;
        case 10:
            OK(cpu->memory_fill(cpu, 0, stream, a, (uint8_t)round, 256));
            OK(cpu->memory_copy(cpu, 0, stream, b, a, 256));
            OK(cpu->event_record(cpu, 0, event, stream));
            OK(cpu->event_synchronize(cpu, 0, event, NULL));
            CHECK(b[0] == (uint8_t)round && b[255] == (uint8_t)round);
            break;
        case 11:
            if (round % 50 == 0) {
                OK(cpu->device_synchronize(cpu, 0, NULL));
            }
            OK(cpu->event_synchronize(cpu, 0, hers, NULL));
            break;
        }
        CHECK(status == PS_SUCCESS || status == PS_ERROR_NOT_READY);
        OK(cpu->event_record(cpu, 0, event, stream));
    }
    stream_end(stream);
    CHECK(calls == called);
    OK(cpu->event_destroy(cpu, 0, event));
    return NULL;
}

void
test_stress(void)
{
    for (int i = 0; i < SHARED; i++) {
        shared_streams[i] = stream_new(-i);
        shared_events[i] = event_new();
    }
    run_threads(stress_thread);
    for (int i = 0; i < SHARED; i++) {
        stream_end(shared_streams[i]);
        OK(cpu->event_destroy(cpu, 0, shared_events[i]));
    }
}
