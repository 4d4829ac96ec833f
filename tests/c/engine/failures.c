/* Failures: a failed stream skips its work, passes its status on to waiting
 * streams, and reports it. */
#include "check.h"
#include "tests.h"
#include "work.h"

/* Make a chain of streams, in which each stream waits for the previous one,
 * and let stream `wrong` fail.  Its later work is skipped, and the failure
 * passes on to all streams behind it.  If `queued` is true, all of this is
 * queued before any of it runs. */
static void
fail_at(int wrong, bool queued)
{
    enum { STEPS = 8 };
    ps_handle streams[STEPS], events[STEPS];
    ps_status failure = 700 + wrong;
    struct hold hold;
    int ran = 0;
    for (int i = 0; i < STEPS; i++) {
        streams[i] = stream_new(0);
        events[i] = event_new();
    }
    if (queued) {
        hold_take(cpu, &hold, streams[0]);
    }
    for (int i = 0; i < STEPS; i++) {
        void *data = NULL;
        OK(cpu->memory_allocate(cpu, 0, streams[i], 70000, &data));
        if (i > 0) {
            OK(cpu->stream_wait_event(cpu, 0, streams[i], events[i - 1]));
        }
        if (i == wrong) {
            OK(ps_cpu_faults.stream_fail(cpu, 0, streams[i], failure));
            OK(ps_cpu_faults.stream_fail(cpu, 0, streams[i], 1));
        }
        OK(cpu->host_function(cpu, 0, streams[i], count, &ran));
        OK(cpu->sleep(cpu, 0, streams[i], 1000));
        OK(cpu->memory_fill(cpu, 0, streams[i], data, 1, 70000));
        OK(cpu->event_record(cpu, 0, events[i], streams[i]));
        OK(cpu->memory_free(cpu, 0, streams[i], data));
    }
    if (queued) {
        hold_release(&hold);
    }
    for (int i = 0; i < STEPS; i++) {
        ps_status want = i < wrong ? PS_SUCCESS : failure;
        for (int again = 0; again < 2; again++) {
            CHECK_STATUS(cpu->event_synchronize(cpu, 0, events[i], NULL),
                         want);
            CHECK_STATUS(cpu->event_query(cpu, 0, events[i]), want);
            CHECK_STATUS(cpu->stream_synchronize(cpu, 0, streams[i], NULL),
                         want);
            CHECK_STATUS(cpu->stream_query(cpu, 0, streams[i]), want);
        }
    }
    CHECK(ran == wrong);
    CHECK_STATUS(cpu->device_synchronize(cpu, 0, NULL), failure);
    float unset;
    CHECK_STATUS(
        cpu->event_elapsed(cpu, 0, events[0], events[STEPS - 1], &unset),
        failure);
    for (int i = 0; i < STEPS; i++) {
        OK(cpu->stream_destroy(cpu, 0, streams[i]));
        OK(cpu->event_destroy(cpu, 0, events[i]));
    }
    OK(cpu->device_synchronize(cpu, 0, NULL));
}

void
test_failures(void)
{
    for (int wrong = 0; wrong < 8; wrong++) {
        fail_at(wrong, false);
        fail_at(wrong, true);
    }
    CHECK_STATUS(ps_cpu_faults.stream_fail(cpu, 0, 0, 0),
                 PS_ERROR_INVALID_VALUE);
    CHECK_STATUS(ps_cpu_faults.stream_fail(cpu, 0, 0, PS_ERROR_NOT_READY),
                 PS_ERROR_INVALID_VALUE);

    /* No call returned the failure, so the device reports it once. */
    ps_handle stream = stream_new(0);
    struct hold hold;
    OK(cpu->stream_query(cpu, 0, stream));
    hold_take(cpu, &hold, stream);
    OK(ps_cpu_faults.stream_fail(cpu, 0, stream, 719));
    OK(cpu->stream_destroy(cpu, 0, stream));
    hold_release(&hold);
    CHECK_STATUS(cpu->device_synchronize(cpu, 0, NULL), 719);
    OK(cpu->device_synchronize(cpu, 0, NULL));
}

/* A failed stream still waits for events, because a free may be queued behind
 * the wait, and other streams may use that memory until the event is done. */
void
test_failed_waits(void)
{
    ps_handle busy = stream_new(0), wrong = stream_new(0), event = event_new();
    struct hold hold;
    void *data = NULL;
    OK(cpu->memory_allocate(cpu, 0, wrong, 1, &data));
    hold_take(cpu, &hold, busy);
    OK(cpu->event_record(cpu, 0, event, busy));
    OK(ps_cpu_faults.stream_fail(cpu, 0, wrong, 719));
    OK(cpu->stream_wait_event(cpu, 0, wrong, event));
    OK(cpu->memory_free(cpu, 0, wrong, data));
    pause_ms(10);
    CHECK_STATUS(cpu->stream_query(cpu, 0, wrong), PS_ERROR_NOT_READY);
    hold_release(&hold);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, wrong, NULL), 719);
    OK(cpu->stream_destroy(cpu, 0, wrong));
    OK(cpu->event_destroy(cpu, 0, event));
    stream_end(busy);
}
