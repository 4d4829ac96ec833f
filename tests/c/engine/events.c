/* Tests which record a wait waits for, how events order the work on streams,
 * and the time between two events. */
#include "check.h"
#include "tests.h"
#include "work.h"

/* A wait is for the event's latest record at the time of the call.  The
 * records of one event may complete in an order different from that in which
 * they were made. */
void
test_versions(void)
{
    ps_handle a = stream_new(0), b = stream_new(0), c = stream_new(0);
    ps_handle event = event_new();
    struct hold hold;
    int ran = 0;
    OK(cpu->event_query(cpu, 0, event));
    OK(cpu->event_synchronize(cpu, 0, event, NULL));
    OK(cpu->stream_wait_event(cpu, 0, c, event));
    hold_take(cpu, &hold, a);
    OK(cpu->event_record(cpu, 0, event, a));
    OK(cpu->stream_wait_event(cpu, 0, c, event));
    OK(cpu->host_function(cpu, 0, c, count, &ran));
    CHECK_STATUS(cpu->event_query(cpu, 0, event), PS_ERROR_NOT_READY);
    OK(cpu->event_record(cpu, 0, event, b));
    OK(cpu->event_query(cpu, 0, event));
    OK(cpu->event_synchronize(cpu, 0, event, NULL));
    CHECK_STATUS(cpu->stream_query(cpu, 0, c), PS_ERROR_NOT_READY);
    OK(cpu->event_record(cpu, 0, event, c));
    OK(cpu->event_destroy(cpu, 0, event));
    CHECK_STATUS(cpu->stream_query(cpu, 0, c), PS_ERROR_NOT_READY);
    hold_release(&hold);
    stream_end(c);
    CHECK(ran == 1);
    stream_end(a);
    stream_end(b);
}

enum { CHAIN_STREAMS = 16, CHAIN_ROUNDS = 50 };

/* Many streams increment one counter in turn.  Only events order the
 * increments. */
static void *
chain_thread(void *argument)
{
    (void)argument;
    ps_handle streams[CHAIN_STREAMS], event = event_new();
    int counter = 0;
    for (int i = 0; i < CHAIN_STREAMS; i++) {
        streams[i] = stream_new(-i % 6);
    }
    for (int i = 0; i < CHAIN_STREAMS * CHAIN_ROUNDS; i++) {
        ps_handle stream = streams[i % CHAIN_STREAMS];
        OK(cpu->stream_wait_event(cpu, 0, stream, event));
        OK(cpu->host_function(cpu, 0, stream, count, &counter));
        OK(cpu->event_record(cpu, 0, event, stream));
    }
    OK(cpu->event_synchronize(cpu, 0, event, NULL));
    CHECK(counter == CHAIN_STREAMS * CHAIN_ROUNDS);
    for (int i = 0; i < CHAIN_STREAMS; i++) {
        OK(cpu->stream_destroy(cpu, 0, streams[i]));
    }
    OK(cpu->event_destroy(cpu, 0, event));
    return NULL;
}

void
test_chains(void)
{
    run_threads(chain_thread);
}

void
test_timers(void)
{
    enum { STREAMS = 200 };
    ps_handle streams[STREAMS], start = event_new(), end = event_new();
    float milliseconds = -1;
    int64_t began = now();
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = stream_new(0);
        OK(cpu->event_record(cpu, 0, start, streams[i]));
        OK(cpu->sleep(cpu, 0, streams[i], 30000000 - 50000 * (uint64_t)i));
        OK(cpu->event_record(cpu, 0, end, streams[i]));
    }
    CHECK_STATUS(cpu->event_elapsed(cpu, 0, start, end, &milliseconds),
                 PS_ERROR_NOT_READY);
    for (int i = 0; i < STREAMS; i++) {
        stream_end(streams[i]);
    }
    CHECK(now() - began < 2000000000);
    OK(cpu->event_elapsed(cpu, 0, start, end, &milliseconds));
    CHECK(milliseconds >= 20.05F - 1e-3F && milliseconds < 2000);
    OK(cpu->event_elapsed(cpu, 0, end, start, &milliseconds));
    CHECK(milliseconds < 0);
    ps_handle plain = 0;
    OK(cpu->event_create(cpu, 0, 0, &plain));
    OK(cpu->event_record(cpu, 0, plain, 0));
    CHECK_STATUS(cpu->event_elapsed(cpu, 0, start, plain, &milliseconds),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->event_destroy(cpu, 0, plain));
    OK(cpu->event_destroy(cpu, 0, start));
    OK(cpu->event_destroy(cpu, 0, end));
}
