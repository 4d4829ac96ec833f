/* Measures how long a schedule takes, from begin() to end(), if C code queues
 * the work. */
#include "engine.h"

#include <stdbool.h>
#include <stdlib.h>

#include "rows.h"

enum { STREAMS = 4, FILLS = 90 };

static ps_handle streams[STREAMS], events[STREAMS];
static const struct ps_backend *lazy;
static unsigned char cell[64];

int
prepare(void)
{
    int failed = engine_start();
    for (int i = 0; !failed && i < STREAMS; i++) {
        failed = cpu->stream_create(cpu, 0, 0, &streams[i]) ||
                 cpu->event_create(cpu, 0, 0, &events[i]);
    }
    lazy = failed ? NULL : ps_cpu_schedules.table(cpu, true);
    return failed || lazy == NULL;
}

static bool
never(void)
{
    return false;
}

/* Queue 100 operations and wait for the last, as fills() of schedules_rate.py
 * does. */
static int
fills(void)
{
    int failed = 0;
    for (int i = 0; i < FILLS; i++) {
        failed |= lazy->memory_fill(lazy, 0, streams[i % STREAMS], cell,
                                    (uint8_t)i, sizeof(cell));
    }
    for (int i = 0; i < STREAMS; i++) {
        ps_handle next = streams[(i + 1) % STREAMS];
        failed |= lazy->event_record(lazy, 0, events[i], next);
        failed |= lazy->stream_wait_event(lazy, 0, streams[i], events[i]);
    }
    failed |= lazy->event_record(lazy, 0, events[0], streams[0]);
    failed |= lazy->event_record(lazy, 0, events[1], streams[1]);
    return failed | lazy->event_synchronize(lazy, 0, events[1], NULL);
}

static int
explore(uint64_t seed)
{
    char pending[256];
    struct ps_schedule schedule = {
        .strategy = PS_PCT,
        .seed = seed,
        .changes = 1,
        .steps = 200,
        .is_internal = never,
        .is_callable = never,
    };
    struct ps_schedule_result result;
    int failed = ps_cpu_schedules.begin(&schedule, pending);
    if (!failed) {
        failed = fills() | ps_cpu_schedules.end(false, 0, &result);
        failed |= result.operations != 100;
        free(result.log);
        free(result.notes);
    }
    return failed;
}

ROW(schedule, failed |= explore((uint64_t)i))
