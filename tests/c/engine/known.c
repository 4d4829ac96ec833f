/* Tests the events and streams whose state is known without the engine's lock
 * (see cpu_slot_known).  While the state is known, calls must take no lock.
 * Some operations must end the known state.  All of this must work even if
 * several threads do it at once. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Without the lock ---- */

static ps_handle idle_stream, done_event, timed_event;
static atomic_bool probes;

/* Called while the process forks.  This thread then holds the engine's lock,
 * so a call that took the lock would never return. */
static void
within_fork(void)
{
    int64_t time;
    if (!probes) {
        return;
    }
    OK(cpu->time_now(cpu, &time));
    CHECK(time <= now());
    OK(cpu->event_record(cpu, 0, done_event, idle_stream));
    OK(cpu->event_record(cpu, 0, timed_event, idle_stream));
    OK(cpu->stream_wait_event(cpu, 0, idle_stream, done_event));
    OK(cpu->stream_wait_event(cpu, 0, idle_stream, timed_event));
    OK(cpu->event_query(cpu, 0, done_event));
    OK(cpu->event_synchronize(cpu, 0, timed_event, NULL));
    OK(cpu->event_record(cpu, 0, done_event, 0));
    OK(cpu->stream_wait_event(cpu, 0, 0, done_event));
    OK(cpu->stream_query(cpu, 0, 0));
    OK(cpu->stream_query(cpu, 0, idle_stream));
    OK(cpu->stream_synchronize(cpu, 0, idle_stream, NULL));
}

void
probe_forks(void)
{
    pthread_atfork(within_fork, NULL, NULL);
}

static void
probe(void)
{
    probes = true;
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    probes = false;
    CHECK(waitpid(child, NULL, 0) == child);
}

void
test_without_lock(void)
{
    ps_handle start = event_new();
    float passed_ms = -1;
    int ran = 0;
    idle_stream = stream_new(0);
    timed_event = event_new();
    OK(cpu->event_create(cpu, 0, 0, &done_event));
    OK(cpu->event_record(cpu, 0, done_event, idle_stream));
    OK(cpu->event_record(cpu, 0, timed_event, idle_stream));
    OK(cpu->event_record(cpu, 0, start, idle_stream));
    OK(cpu->stream_query(cpu, 0, 0));
    pause_ms(5);
    probe();
    /* The second record of timed_event was made during the fork, and has set
     * the time. */
    OK(cpu->event_elapsed(cpu, 0, start, timed_event, &passed_ms));
    CHECK(passed_ms >= 5);
    /* Work makes the state unknown.  Once calls have found the work done, the
     * state is known again, and calls take no lock. */
    OK(cpu->host_function(cpu, 0, idle_stream, count, &ran));
    OK(cpu->event_record(cpu, 0, done_event, idle_stream));
    OK(cpu->event_record(cpu, 0, timed_event, idle_stream));
    OK(cpu->stream_synchronize(cpu, 0, idle_stream, NULL));
    OK(cpu->stream_query(cpu, 0, idle_stream));
    OK(cpu->event_query(cpu, 0, done_event));
    OK(cpu->event_query(cpu, 0, timed_event));
    probe();
    stream_end(idle_stream);
    OK(cpu->event_destroy(cpu, 0, done_event));
    OK(cpu->event_destroy(cpu, 0, timed_event));
    OK(cpu->event_destroy(cpu, 0, start));
}

/* ---- What ends the known state ---- */

struct pair {
    ps_handle stream, event;
};

static struct pair
pair_new(unsigned flags)
{
    struct pair pair = {.stream = stream_new(0)};
    OK(cpu->event_create(cpu, 0, flags, &pair.event));
    for (int i = 0; i < 2; i++) {
        OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
        OK(cpu->event_query(cpu, 0, pair.event));
        OK(cpu->stream_query(cpu, 0, pair.stream));
    }
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.stream),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->stream_query(cpu, 0, pair.event),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->event_query(cpu, 1, pair.event),
                 PS_ERROR_INVALID_HANDLE);
    return pair;
}

static void
pair_end(struct pair *pair)
{
    OK(cpu->event_destroy(cpu, 0, pair->event));
    OK(cpu->stream_destroy(cpu, 0, pair->stream));
    CHECK_STATUS(cpu->event_record(cpu, 0, pair->event, 0),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->stream_query(cpu, 0, pair->stream),
                 PS_ERROR_INVALID_HANDLE);
}

/* While a host function runs, a record behind it is pending, and so is work
 * that waits for the record. */
static void
check_work(unsigned flags)
{
    struct pair pair = pair_new(flags), other = pair_new(flags);
    struct hold hold;
    int ran = 0;
    hold_take(cpu, &hold, pair.stream);
    OK(cpu->event_query(cpu, 0, pair.event));
    CHECK_STATUS(cpu->stream_query(cpu, 0, pair.stream), PS_ERROR_NOT_READY);
    OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event), PS_ERROR_NOT_READY);
    OK(cpu->stream_wait_event(cpu, 0, other.stream, pair.event));
    OK(cpu->host_function(cpu, 0, other.stream, count, &ran));
    CHECK_STATUS(cpu->stream_query(cpu, 0, other.stream), PS_ERROR_NOT_READY);
    hold_release(&hold);
    OK(cpu->stream_synchronize(cpu, 0, other.stream, NULL));
    CHECK(ran == 1);
    OK(cpu->event_query(cpu, 0, pair.event));
    pair_end(&pair);
    pair_end(&other);
}

static void
check_failure(unsigned flags)
{
    struct pair pair = pair_new(flags), other = pair_new(flags);
    OK(ps_cpu_faults.stream_fail(cpu, 0, pair.stream, 700));
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, pair.stream, NULL), 700);
    OK(cpu->event_query(cpu, 0, pair.event));
    OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event), 700);
    OK(cpu->stream_wait_event(cpu, 0, other.stream, pair.event));
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, other.stream, NULL), 700);
    OK(cpu->event_record(cpu, 0, other.event, other.stream));
    CHECK_STATUS(cpu->event_query(cpu, 0, other.event), 700);
    pair_end(&pair);
    pair_end(&other);
}

static void
check_capture(unsigned flags)
{
    struct pair pair = pair_new(flags), other = pair_new(flags);
    ps_handle graph = 0;
    size_t operations = 0;
    OK(cpu->capture_begin(cpu, 0, pair.stream, PS_CAPTURE_RELAXED));
    CHECK_STATUS(cpu->stream_query(cpu, 0, pair.stream),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, pair.stream, NULL),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event),
                 PS_ERROR_CAPTURED_EVENT);
    OK(cpu->stream_wait_event(cpu, 0, other.stream, pair.event));
    CHECK_STATUS(cpu->stream_query(cpu, 0, other.stream),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    OK(cpu->event_record(cpu, 0, other.event, other.stream));
    OK(cpu->stream_wait_event(cpu, 0, pair.stream, other.event));
    OK(cpu->capture_end(cpu, 0, pair.stream, &graph, &operations));
    OK(cpu->stream_query(cpu, 0, pair.stream));
    OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
    OK(cpu->event_query(cpu, 0, pair.event));
    OK(cpu->graph_destroy(cpu, 0, graph));
    pair_end(&pair);
    pair_end(&other);
}

/* After the launch of a graph that records the event, the event is pending. */
static void
check_launch(unsigned flags)
{
    struct pair pair = pair_new(flags);
    struct hold hold;
    ps_handle graph = 0, executable = 0, busy = stream_new(0);
    size_t operations = 0;
    OK(cpu->capture_begin(cpu, 0, pair.stream, PS_CAPTURE_RELAXED));
    OK(cpu->event_record_external(cpu, 0, pair.event, pair.stream));
    OK(cpu->capture_end(cpu, 0, pair.stream, &graph, &operations));
    OK(cpu->event_query(cpu, 0, pair.event));
    OK(cpu->graph_instantiate(cpu, 0, graph, &executable));
    hold_take(cpu, &hold, busy);
    OK(cpu->graph_launch(cpu, 0, executable, busy));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event), PS_ERROR_NOT_READY);
    hold_release(&hold);
    stream_end(busy);
    OK(cpu->event_query(cpu, 0, pair.event));
    OK(cpu->executable_destroy(cpu, 0, executable));
    OK(cpu->graph_destroy(cpu, 0, graph));
    pair_end(&pair);
}

/* If event_record fails, it changes nothing.  The event keeps its earlier
 * record and the time of that record. */
static void
check_full_queue(void)
{
    struct pair pair = pair_new(PS_EVENT_TIMING);
    ps_handle busy = stream_new(0), start = event_new();
    struct hold hold;
    float before = -1, after = -1;
    int ran = 0;
    OK(cpu->event_record(cpu, 0, start, pair.stream));
    hold_take(cpu, &hold, busy);
    while (cpu->host_function(cpu, 0, busy, count, &ran) == PS_SUCCESS) {
    }
    OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
    OK(cpu->event_elapsed(cpu, 0, start, pair.event, &before));
    CHECK_STATUS(cpu->event_record(cpu, 0, pair.event, busy),
                 PS_ERROR_QUEUE_FULL);
    OK(cpu->event_query(cpu, 0, pair.event));
    OK(cpu->event_elapsed(cpu, 0, start, pair.event, &after));
    CHECK(before > 0 && before == after);
    hold_release(&hold);
    stream_end(busy);
    OK(cpu->event_destroy(cpu, 0, start));
    pair_end(&pair);
}

/* The default stream and blocking streams serialize, so work on either of them
 * makes a record on the other pending. */
static void
check_order(unsigned flags)
{
    struct pair pair = pair_new(flags);
    ps_handle blocking = 0;
    struct hold hold;
    OK(cpu->blocking_create(cpu, 0, 0, &blocking));
    for (int i = 0; i < 2; i++) {
        OK(cpu->event_record(cpu, 0, pair.event, blocking));
        OK(cpu->stream_query(cpu, 0, blocking));
    }
    hold_take(cpu, &hold, 0);
    OK(cpu->event_record(cpu, 0, pair.event, blocking));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event), PS_ERROR_NOT_READY);
    hold_release(&hold);
    OK(cpu->stream_synchronize(cpu, 0, 0, NULL));
    OK(cpu->event_query(cpu, 0, pair.event));
    stream_end(blocking);
    for (int i = 0; i < 2; i++) {
        OK(cpu->event_record(cpu, 0, pair.event, 0));
        OK(cpu->stream_query(cpu, 0, 0));
    }
    OK(cpu->blocking_create(cpu, 0, 0, &blocking));
    hold_take(cpu, &hold, blocking);
    CHECK_STATUS(cpu->stream_query(cpu, 0, 0), PS_ERROR_NOT_READY);
    OK(cpu->event_record(cpu, 0, pair.event, 0));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.event), PS_ERROR_NOT_READY);
    hold_release(&hold);
    OK(cpu->stream_synchronize(cpu, 0, 0, NULL));
    stream_end(blocking);
    pair_end(&pair);
}

void
test_known(void)
{
    for (unsigned flags = 0; flags <= PS_EVENT_TIMING;
         flags += PS_EVENT_TIMING) {
        check_work(flags);
        check_failure(flags);
        check_capture(flags);
        check_launch(flags);
        check_order(flags);
    }
    check_full_queue();
}

/* ---- All at once ---- */

enum { ROUNDS = 3000, SEEN = 8 };

static _Atomic ps_handle seen_streams[SEEN], seen_events[SEEN];

static bool
may_be(ps_status status)
{
    return status == PS_SUCCESS || status == PS_ERROR_NOT_READY ||
           status == PS_ERROR_TIMED_OUT || status == PS_ERROR_INVALID_HANDLE;
}

/* Each thread creates and destroys objects of its own, often in slots that
 * objects of other threads had before.  It also uses handles of other threads'
 * objects, which may be destroyed already. */
static void *
race(void *argument)
{
    int number = (int)(intptr_t)argument;
    unsigned seed = 1 + (unsigned)number;
    ps_handle mine = stream_new(0);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned flags = rand_r(&seed) % 2 ? PS_EVENT_TIMING : 0;
        struct pair pair = pair_new(flags);
        seen_streams[number] = pair.stream;
        seen_events[number] = pair.event;
        ps_handle stream = seen_streams[rand_r(&seed) % SEEN];
        ps_handle event = seen_events[rand_r(&seed) % SEEN];
        CHECK(may_be(cpu->stream_query(cpu, 0, stream)));
        CHECK(may_be(cpu->event_query(cpu, 0, event)));
        CHECK(may_be(cpu->stream_wait_event(cpu, 0, mine, event)));
        CHECK(may_be(cpu->event_synchronize(cpu, 0, event, LIMIT(0))));
        if (round % 16 == 0) {
            struct hold hold;
            hold_take(cpu, &hold, pair.stream);
            OK(cpu->event_record(cpu, 0, pair.event, pair.stream));
            CHECK_STATUS(cpu->event_query(cpu, 0, pair.event),
                         PS_ERROR_NOT_READY);
            CHECK_STATUS(cpu->stream_query(cpu, 0, pair.stream),
                         PS_ERROR_NOT_READY);
            hold_release(&hold);
            OK(cpu->event_synchronize(cpu, 0, pair.event, NULL));
        }
        pair_end(&pair);
        CHECK_STATUS(cpu->event_record(cpu, 0, pair.event, mine),
                     PS_ERROR_INVALID_HANDLE);
    }
    stream_end(mine);
    return NULL;
}

/* Several threads record one event, and its time never decreases. */
static void *
race_times(void *argument)
{
    ps_handle *shared = argument;
    ps_handle first = event_new(), last = event_new(), stream = stream_new(0);
    for (int round = 0; round < ROUNDS; round++) {
        float passed_ms = 0;
        OK(cpu->event_record(cpu, 0, first, stream));
        OK(cpu->event_record(cpu, 0, *shared, stream));
        OK(cpu->event_record(cpu, 0, last, stream));
        OK(cpu->event_elapsed(cpu, 0, first, *shared, &passed_ms));
        CHECK(passed_ms >= 0);
        OK(cpu->event_elapsed(cpu, 0, first, last, &passed_ms));
        CHECK(passed_ms >= 0);
    }
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, first));
    OK(cpu->event_destroy(cpu, 0, last));
    return NULL;
}

void
test_known_raced(void)
{
    ps_handle shared = event_new();
    pthread_t threads[4];
    run_threads(race);
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, race_times, &shared);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    OK(cpu->event_destroy(cpu, 0, shared));
}
