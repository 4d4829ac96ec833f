/* Tests how many workers serve the streams of a partition, and the destruction
 * of partitions. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <unistd.h>

enum { STREAMS = 4, CALLS = 50, ROUNDS = 100 };

struct usage {
    atomic_int now;
    atomic_int most;
};

static void
use(void *argument)
{
    struct usage *usage = argument;
    int here = atomic_fetch_add(&usage->now, 1) + 1;
    if (here > atomic_load(&usage->most)) {
        atomic_store(&usage->most, here);
    }
    usleep(10);
    atomic_fetch_sub(&usage->now, 1);
}

static ps_handle
stream_within(ps_handle partition, int priority)
{
    ps_handle stream = 0;
    OK(cpu->partition_stream_create(cpu, 0, partition, priority, &stream));
    return stream;
}

/* Eight threads run this.  On a machine with fewer processors, not all of
 * these threads can have a partition at the same time. */
static void *
partition_thread(void *argument)
{
    (void)argument;
    for (int round = 0; round < ROUNDS; round++) {
        struct usage usage = {0};
        ps_handle partition, streams[STREAMS];
        int granted;
        ps_status status =
            cpu->partition_create(cpu, 0, 1, &partition, &granted);
        if (status == PS_ERROR_INVALID_RESOURCE) {
            usleep(100);
            continue;
        }
        CHECK(status == PS_SUCCESS && granted == 1);
        for (int i = 0; i < STREAMS; i++) {
            streams[i] = stream_within(partition, -i % 2);
        }
        for (int i = 0; i < CALLS; i++) {
            OK(cpu->host_function(cpu, 0, streams[i % STREAMS], use, &usage));
        }
        for (int i = 0; i < STREAMS; i++) {
            stream_end(streams[i]);
        }
        OK(cpu->partition_destroy(cpu, 0, partition));
        CHECK(sysconf(_SC_NPROCESSORS_ONLN) < 2 ||
              sysconf(_SC_NPROCESSORS_ONLN) > 8 ||
              atomic_load(&usage.most) == 1);
    }
    return NULL;
}

static void
test_one_worker(void)
{
    ps_handle partition;
    struct hold hold;
    int granted, called = 0;
    OK(cpu->partition_create(cpu, 0, 1, &partition, &granted));
    ps_handle first = stream_within(partition, 0);
    ps_handle second = stream_within(partition, 0), event = event_new();
    hold_take(cpu, &hold, first);
    OK(cpu->event_record(cpu, 0, event, second));
    CHECK_STATUS(cpu->event_query(cpu, 0, event), PS_SUCCESS);
    OK(cpu->host_function(cpu, 0, second, count, &called));
    if (sysconf(_SC_NPROCESSORS_ONLN) <= 8) {
        pause_ms(20);
        CHECK_STATUS(cpu->stream_query(cpu, 0, second), PS_ERROR_NOT_READY);
    }
    /* Pending work still runs after its stream and its partition are
     * destroyed. */
    OK(cpu->stream_destroy(cpu, 0, second));
    OK(cpu->partition_destroy(cpu, 0, partition));
    CHECK_STATUS(
        cpu->partition_stream_create(cpu, 0, partition, 0, &partition),
        PS_ERROR_INVALID_HANDLE);
    hold_release(&hold);
    stream_end(first);
    OK(cpu->device_synchronize(cpu, 0, NULL));
    CHECK(called == 1);
    OK(cpu->event_destroy(cpu, 0, event));
}

void
test_partitions(void)
{
    ps_handle first, second;
    int granted, all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    test_one_worker();
    run_threads(partition_thread);
    OK(cpu->partition_create(cpu, 0, all, &first, &granted));
    CHECK_STATUS(cpu->partition_create(cpu, 0, 1, &second, &granted),
                 PS_ERROR_INVALID_RESOURCE);
    OK(cpu->partition_create(cpu, 1, all, &second, &granted));
    CHECK_STATUS(cpu->partition_destroy(cpu, 0, second),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->partition_destroy(cpu, 0, first));
    OK(cpu->partition_destroy(cpu, 1, second));
}
