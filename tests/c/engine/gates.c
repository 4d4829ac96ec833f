/* Tests when and on which thread gates are reached, which work they hold back,
 * and how they end.  Also tests waits that time out or are interrupted. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECOND = 1000000000 };

/* A gate or a notification, and what happened to it.  When it is reached,
 * reach() opens it if `opens` is true, and opens the gate `other` if that is
 * not 0. */
struct gate {
    struct ps_notification notification;
    ps_handle handle, other;
    atomic_int reached;
    ps_status status;
    bool opens;
    pthread_t thread;
};

static _Thread_local int depth;

static void
reach(void *argument, ps_status status)
{
    struct gate *gate = argument;
    CHECK(depth++ == 0);
    gate->status = status;
    gate->thread = pthread_self();
    if (gate->opens) {
        OK(cpu->gate_open(cpu, 0, gate->handle));
    }
    if (gate->other != 0) {
        OK(cpu->gate_open(cpu, 0, gate->other));
    }
    depth--;
    gate->reached++;
}

static void
gate_new(ps_handle stream, struct gate *gate)
{
    OK(cpu->stream_gate(cpu, 0, stream, reach, gate, &gate->handle));
}

static void
await(struct gate *gate)
{
    while (gate->reached == 0) {
        sched_yield();
    }
}

/* The work behind a gate starts once the gate is both reached and opened, in
 * either order. */
void
test_gates(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct gate idle = {0}, queued = {0}, early = {0}, last = {0};
    struct hold busy;
    int ran = 0;
    gate_new(stream, &idle);
    CHECK(idle.reached == 1 && idle.status == PS_SUCCESS);
    CHECK(pthread_equal(idle.thread, pthread_self()));
    CHECK_STATUS(cpu->stream_query(cpu, 0, stream), PS_ERROR_NOT_READY);
    OK(cpu->host_function(cpu, 0, stream, count, &ran));
    pause_ms(5);
    CHECK(ran == 0);
    OK(cpu->gate_open(cpu, 0, idle.handle));
    OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
    CHECK(ran == 1);

    hold_take(cpu, &busy, stream);
    gate_new(stream, &queued);
    OK(cpu->host_function(cpu, 0, stream, count, &ran));
    gate_new(stream, &early);
    OK(cpu->event_record(cpu, 0, event, stream));
    gate_new(stream, &last);
    OK(cpu->gate_open(cpu, 0, early.handle));
    CHECK_STATUS(cpu->gate_open(cpu, 0, early.handle),
                 PS_ERROR_INVALID_HANDLE);
    CHECK(queued.reached == 0 && early.reached == 0);
    hold_release(&busy);
    await(&queued);
    pause_ms(5);
    CHECK(ran == 1 && early.reached == 0);
    OK(cpu->gate_open(cpu, 0, queued.handle));
    OK(cpu->event_synchronize(cpu, 0, event, NULL));
    CHECK(ran == 2 && early.reached == 1);
    await(&last);
    /* The work of a destroyed stream still runs. */
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->gate_open(cpu, 0, last.handle));
    OK(cpu->device_synchronize(cpu, 0, NULL));
    CHECK(queued.reached == 1 && last.reached == 1);
    OK(cpu->event_destroy(cpu, 0, event));
}

/* If a notification opens a gate and so makes another notification due, the
 * second is not called within the first.  Therefore, the stack does not grow
 * with the number of gates. */
void
test_gates_opened_within(void)
{
    enum { GATES = 20000, STREAMS = 64 };
    struct gate *gates = calloc(GATES, sizeof(*gates));
    ps_handle stream = stream_new(0), streams[STREAMS];
    struct hold busy;
    gates[0].opens = true;
    gate_new(stream, &gates[0]);
    OK(cpu->stream_query(cpu, 0, stream));
    hold_take(cpu, &busy, stream);
    for (int i = 1; i < GATES; i++) {
        gates[i].opens = true;
        gate_new(stream, &gates[i]);
    }
    hold_release(&busy);
    stream_end(stream);
    for (int i = 0; i < GATES; i++) {
        CHECK(gates[i].reached == 1);
    }
    memset(gates, 0, GATES * sizeof(*gates));

    /* The notification behind each stream's gate opens the gate of the next
     * stream. */
    for (int i = STREAMS - 1; i >= 0; i--) {
        struct gate *behind = &gates[STREAMS + i];
        streams[i] = stream_new(0);
        gate_new(streams[i], &gates[i]);
        behind->other = i + 1 < STREAMS ? gates[i + 1].handle : 0;
        behind->notification.reached = reach;
        behind->notification.argument = behind;
        OK(cpu->stream_notify(cpu, 0, streams[i], &behind->notification));
    }
    OK(cpu->gate_open(cpu, 0, gates[0].handle));
    for (int i = 0; i < STREAMS; i++) {
        await(&gates[STREAMS + i]);
        stream_end(streams[i]);
        CHECK(gates[STREAMS + i].reached == 1);
    }
    free(gates);
}

/* A gate reports the failure of the work before it.  It also holds back the
 * work that a failed stream still does, such as a free. */
void
test_gates_failed(void)
{
    ps_handle stream = stream_new(0);
    struct gate before = {0}, after = {0};
    void *data = NULL;
    int ran = 0;
    OK(cpu->memory_allocate(cpu, 0, stream, 100, &data));
    gate_new(stream, &before);
    OK(ps_cpu_faults.stream_fail(cpu, 0, stream, 719));
    gate_new(stream, &after);
    OK(cpu->host_function(cpu, 0, stream, count, &ran));
    OK(cpu->memory_free(cpu, 0, stream, data));
    OK(cpu->gate_open(cpu, 0, before.handle));
    await(&after);
    CHECK(before.status == PS_SUCCESS && after.status == 719);
    CHECK_STATUS(cpu->stream_query(cpu, 0, stream), PS_ERROR_NOT_READY);
    OK(cpu->gate_open(cpu, 0, after.handle));
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, NULL), 719);
    CHECK(ran == 0);
    OK(cpu->stream_destroy(cpu, 0, stream));
}

/* A full queue refuses a gate, and the gate is never reached. */
void
test_gates_refused(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct gate first = {0}, refused = {0}, lost = {0};
    int queued = 1;
    gate_new(stream, &first);
    while (cpu->event_record(cpu, 0, event, stream) == PS_SUCCESS) {
        queued++;
    }
    CHECK(queued == 65536);
    CHECK_STATUS(
        cpu->stream_gate(cpu, 0, stream, reach, &refused, &refused.handle),
        PS_ERROR_QUEUE_FULL);
    /* A notification occupies no place in the queue. */
    refused.notification.reached = reach;
    refused.notification.argument = &refused;
    OK(cpu->stream_notify(cpu, 0, stream, &refused.notification));
    OK(cpu->gate_open(cpu, 0, first.handle));
    OK(cpu->stream_wait_room(cpu, 0, stream, SECOND));
    stream_end(stream);
    await(&refused);
    CHECK(refused.reached == 1);
    CHECK_STATUS(cpu->stream_gate(cpu, 0, stream, reach, &lost, &lost.handle),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->gate_open(cpu, 0, first.handle),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->gate_open(cpu, 0, event), PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->gate_open(cpu, 0, 0), PS_ERROR_INVALID_HANDLE);
    gate_new(0, &first);
    CHECK_STATUS(cpu->gate_open(cpu, 1, first.handle),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->event_query(cpu, 0, first.handle),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->gate_open(cpu, 0, first.handle));
    OK(cpu->event_destroy(cpu, 0, event));
}

/* One stream, on which all threads queue gates and host functions.  A thread
 * is "inside" from the time when its gate is reached until it opens the gate.
 * Only one thread at a time may be inside. */
static struct {
    ps_handle stream;
    int inside; /* unlocked: the stream's order must be enough */
    int passed;
} shared;

struct turn {
    ps_handle gate;
    atomic_bool reached;
};

static void
turn_reached(void *argument, ps_status status)
{
    struct turn *turn = argument;
    shared.inside += 1 + status;
    turn->reached = true;
}

static void
look_inside(void *argument)
{
    (void)argument;
    CHECK(shared.inside == 0);
}

static void *
turns_thread(void *argument)
{
    for (int i = 0; i < 2000; i++) {
        struct turn turn = {0};
        OK(cpu->stream_gate(cpu, 0, shared.stream, turn_reached, &turn,
                            &turn.gate));
        if (i % 7 == 0) {
            OK(cpu->host_function(cpu, 0, shared.stream, look_inside, NULL));
        }
        while (!turn.reached) {
            sched_yield();
        }
        CHECK(shared.inside == 1);
        shared.inside = 0;
        shared.passed++;
        OK(cpu->gate_open(cpu, 0, turn.gate));
    }
    return argument;
}

void
test_gates_shared(void)
{
    shared.stream = stream_new(0);
    run_threads(turns_thread);
    stream_end(shared.stream);
    CHECK(shared.passed == 8 * 2000);
}

struct within {
    ps_handle stream, gate;
};

static void
wait_within(void *argument, ps_status status)
{
    struct within *within = argument;
    ps_handle stream = within->stream;
    CHECK_STATUS(status, PS_SUCCESS);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, LIMIT(SECOND)),
                 PS_ERROR_NOT_PERMITTED);
    OK(cpu->gate_open(cpu, 0, within->gate));
}

void
test_timed_waits(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct within within = {.stream = stream};
    struct gate gate = {0};
    OK(cpu->stream_synchronize(cpu, 0, stream, LIMIT(0)));
    OK(cpu->event_synchronize(cpu, 0, event, LIMIT(0)));
    gate_new(stream, &gate);
    OK(cpu->event_record(cpu, 0, event, stream));
    for (int64_t timeout = -1; timeout < 30000000; timeout += 10000000) {
        int64_t began = now();
        CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, LIMIT(timeout)),
                     PS_ERROR_TIMED_OUT);
        CHECK_STATUS(cpu->event_synchronize(cpu, 0, event, LIMIT(timeout)),
                     PS_ERROR_TIMED_OUT);
        CHECK_STATUS(cpu->device_synchronize(cpu, 0, LIMIT(timeout)),
                     PS_ERROR_TIMED_OUT);
        CHECK(now() - began >= 3 * timeout);
    }
    OK(cpu->device_synchronize(cpu, 1, LIMIT(0)));
    OK(cpu->stream_gate(cpu, 0, stream, wait_within, &within, &within.gate));
    OK(ps_cpu_faults.stream_fail(cpu, 0, stream, 719));
    OK(cpu->gate_open(cpu, 0, gate.handle));
    OK(cpu->event_synchronize(cpu, 0, event, LIMIT(INT64_MAX)));
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, LIMIT(INT64_MAX)),
                 719);
    CHECK_STATUS(cpu->device_synchronize(cpu, 0, LIMIT(SECOND)), 719);
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->event_destroy(cpu, 0, event));
}

struct asked {
    int times;
    int most;
    ps_handle event, busy, gate;
};

/* The is_over function of a wait for an event.  The first call records the
 * event again.  It then opens the gate ahead of the event's earlier record,
 * because the wait is for that record. */
static int
ask(void *argument)
{
    struct asked *asked = argument;
    if (asked->times++ == 0 && asked->gate != 0) {
        OK(cpu->event_record(cpu, 0, asked->event, asked->busy));
        OK(cpu->gate_open(cpu, 0, asked->gate));
    }
    return asked->times == asked->most;
}

/* A wait ends when its is_over returns true.  A wait for an event waits for
 * the record that was the latest when the wait began. */
void
test_interrupted_waits(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct gate gate = {0}, last = {0};
    struct asked asked = {.most = 1, .event = event, .busy = stream};
    struct ps_limit limit = {INT64_MAX, ask, &asked};
    gate_new(stream, &gate);
    OK(cpu->event_record(cpu, 0, event, stream));
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, &limit),
                 PS_ERROR_TIMED_OUT);
    asked.most++;
    CHECK_STATUS(cpu->event_synchronize(cpu, 0, event, &limit),
                 PS_ERROR_TIMED_OUT);
    asked.most++;
    CHECK_STATUS(cpu->device_synchronize(cpu, 0, &limit), PS_ERROR_TIMED_OUT);
    CHECK(asked.times == 3);
    limit.timeout_ns = 1000;
    CHECK_STATUS(cpu->event_synchronize(cpu, 0, event, &limit),
                 PS_ERROR_TIMED_OUT);
    CHECK(asked.times == 3);
    limit.timeout_ns = INT64_MAX;
    gate_new(stream, &last);
    asked =
        (struct asked){.event = event, .busy = stream, .gate = gate.handle};
    OK(cpu->event_synchronize(cpu, 0, event, &limit));
    CHECK_STATUS(cpu->event_query(cpu, 0, event), PS_ERROR_NOT_READY);
    OK(cpu->gate_open(cpu, 0, last.handle));
    OK(cpu->stream_synchronize(cpu, 0, stream, &limit));
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, event));
}

/* Operations that need no worker run even while every worker is busy. */
void
test_busy_workers(void)
{
    enum { MOST_WORKERS = 8 };
    ps_handle busy[MOST_WORKERS], stream = stream_new(0), event = event_new();
    struct gate gate = {0};
    struct hold gates[MOST_WORKERS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int workers = cores < 2 ? 2 : cores > 8 ? 8 : (int)cores;
    for (int i = 0; i < workers; i++) {
        busy[i] = stream_new(0);
        hold_take(cpu, &gates[i], busy[i]);
    }
    OK(cpu->sleep(cpu, 0, stream, 5000000));
    gate_new(stream, &gate);
    OK(cpu->event_record(cpu, 0, event, stream));
    await(&gate);
    OK(cpu->gate_open(cpu, 0, gate.handle));
    OK(cpu->event_synchronize(cpu, 0, event, LIMIT(20 * (int64_t)SECOND)));
    for (int i = 0; i < workers; i++) {
        hold_release(&gates[i]);
        stream_end(busy[i]);
    }
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, event));
}
