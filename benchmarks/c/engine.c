/* Measures the CPU engine's functions in a loop, to show what the calls cost
 * without Python. */
#include "engine.h"
#include "rows.h"

static ps_handle plain, done, timed, start_, end_;

int
prepare(void)
{
    return engine_start() || cpu->event_create(cpu, 0, 0, &plain) ||
           cpu->event_create(cpu, 0, 0, &done) ||
           cpu->event_create(cpu, 0, PS_EVENT_TIMING, &timed) ||
           cpu->event_create(cpu, 0, PS_EVENT_TIMING, &start_) ||
           cpu->event_create(cpu, 0, PS_EVENT_TIMING, &end_) ||
           cpu->event_record(cpu, 0, done, first) ||
           cpu->event_record(cpu, 0, start_, first) ||
           cpu->event_record(cpu, 0, end_, first) || settle();
}

ROW(record, failed |= cpu->event_record(cpu, 0, plain, first))
ROW(record_timed, failed |= cpu->event_record(cpu, 0, timed, first))
ROW(record_query, failed |= cpu->event_record(cpu, 0, plain, first);
    failed |= cpu->event_query(cpu, 0, plain))
ROW(event_query, failed |= cpu->event_query(cpu, 0, done))
ROW(event_synchronize, failed |= cpu->event_synchronize(cpu, 0, done, NULL))
ROW(stream_query, failed |= cpu->stream_query(cpu, 0, first))
ROW(stream_synchronize, failed |= cpu->stream_synchronize(cpu, 0, first, NULL))
ROW(record_wait, failed |= cpu->event_record(cpu, 0, plain, first);
    failed |= cpu->stream_wait_event(cpu, 0, second, plain))
ROW(wait_stream, failed |= cpu->event_record(cpu, 0, plain, first);
    failed |= cpu->stream_wait_event(cpu, 0, second, plain))
ROW(elapsed, float milliseconds;
    failed |= cpu->event_elapsed(cpu, 0, start_, end_, &milliseconds))
ROW(event_life, ps_handle event;
    failed |= cpu->event_create(cpu, 0, 0, &event);
    failed |= cpu->event_record(cpu, 0, event, first);
    failed |= cpu->event_destroy(cpu, 0, event))
ROW(stream_life, ps_handle stream;
    failed |= cpu->stream_create(cpu, 0, 0, &stream);
    failed |= cpu->stream_destroy(cpu, 0, stream))
