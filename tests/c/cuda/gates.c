/* Gates and notifications: when they are reached, which work a gate holds
 * back, and the reuse of the slots of gates (see csrc/backends/cuda/gate.h).
 */
#include "check.h"
#include "tests.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../../csrc/backends/cuda/driver.h"

/* A gate or a notification, and what the call to reach() for it has stored.
 * If `opens` is true, reach() opens the gate. */
struct arrival {
    struct ps_notification notification;
    ps_handle gate;
    int device;
    atomic_int reached;
    ps_status status;
    bool opens;
};

static void
reach(void *argument, ps_status status)
{
    struct arrival *arrival = argument;
    arrival->status = status;
    if (arrival->opens) {
        OK(gpu->gate_open(gpu, arrival->device, arrival->gate));
    }
    arrival->reached++;
}

static void
gate_new(int device, ps_handle stream, struct arrival *arrival)
{
    arrival->device = device;
    OK(gpu->stream_gate(gpu, device, stream, reach, arrival, &arrival->gate));
}

static struct ps_notification *
notification_of(struct arrival *arrival)
{
    arrival->notification.reached = reach;
    arrival->notification.argument = arrival;
    return &arrival->notification;
}

static void
await(struct arrival *arrival)
{
    while (arrival->reached == 0) {
        sched_yield();
    }
}

static ps_handle
stream_new(int device)
{
    ps_handle stream = 0;
    OK(gpu->stream_create(gpu, device, 0, &stream));
    return stream;
}

static void
stream_end(int device, ps_handle stream)
{
    OK(gpu->stream_synchronize(gpu, device, stream, NULL));
    OK(gpu->stream_destroy(gpu, device, stream));
}

static void
pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000L}, NULL);
}

/* The work behind a gate starts once the gate is both reached and opened, in
 * either order.  It sees the writes of the thread that opened the gate. */
static void
pass_gates(int device, ps_handle stream)
{
    struct arrival first = {0}, second = {0};
    char *pinned = NULL;
    void *data = NULL;
    int ran = 0;
    OK(gpu->pinned_allocate(gpu, device, 2, (void **)&pinned));
    OK(gpu->memory_allocate(gpu, device, stream, 1, &data));
    memset(pinned, 0, 2);
    OK(gpu->sleep(gpu, device, stream, A_WHILE));
    gate_new(device, stream, &first);
    /* Copy through device memory, because a copy from host memory to host
     * memory would block this thread until the gate is opened. */
    OK(gpu->memory_copy(gpu, device, stream, data, &pinned[0], 1));
    OK(gpu->memory_copy(gpu, device, stream, &pinned[1], data, 1));
    OK(gpu->host_function(gpu, device, stream, count, &ran));
    gate_new(device, stream, &second);
    CHECK(first.reached == 0);
    OK(gpu->gate_open(gpu, device, second.gate));
    await(&first);
    pause_ms(20);
    CHECK(ran == 0 && second.reached == 0);
    CHECK_STATUS(gpu->stream_query(gpu, device, stream), PS_ERROR_NOT_READY);
    pinned[0] = 7;
    OK(gpu->gate_open(gpu, device, first.gate));
    OK(gpu->stream_synchronize(gpu, device, stream, NULL));
    await(&second);
    CHECK(ran == 1 && pinned[1] == 7);
    CHECK(first.reached == 1 && second.reached == 1);
    CHECK(first.status == PS_SUCCESS && second.status == PS_SUCCESS);
    OK(gpu->memory_free(gpu, device, stream, data));
    OK(gpu->pinned_free(gpu, device, pinned));
}

/* Gates of different streams do not hold each other back: all of them are
 * reached while none is opened. */
static void
pass_side_by_side(int device)
{
    enum { STREAMS = 256 };
    static struct arrival arrivals[STREAMS];
    ps_handle streams[STREAMS];
    int ran[STREAMS] = {0};
    memset(arrivals, 0, sizeof(arrivals));
    /* Create the streams before any gate, because the driver creates no stream
     * while gates hold back all its channels. */
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = stream_new(device);
    }
    for (int i = 0; i < STREAMS; i++) {
        gate_new(device, streams[i], &arrivals[i]);
        OK(gpu->host_function(gpu, device, streams[i], count, &ran[i]));
    }
    for (int i = 0; i < STREAMS; i++) {
        await(&arrivals[i]);
    }
    /* Open the oldest gate first.  The device has only 8 to 32 channels, so
     * streams share them, and the work in a channel runs in the order in which
     * it was queued. */
    for (int i = 0; i < STREAMS; i++) {
        CHECK(ran[i] == 0);
        OK(gpu->gate_open(gpu, device, arrivals[i].gate));
        stream_end(device, streams[i]);
        CHECK(ran[i] == 1 && arrivals[i].reached == 1);
    }
}

/* Many pending notifications block neither the thread that requests one nor
 * the work of other streams. */
static void
notify_many(int device)
{
    enum { STREAMS = 32, MANY = 20000 };
    static struct ps_notification many[MANY];
    ps_handle busy[STREAMS], waiting[STREAMS], others[STREAMS];
    struct arrival first = {0}, ends[STREAMS] = {0}, all = {0};
    for (int i = 0; i < STREAMS; i++) {
        ps_handle event;
        busy[i] = stream_new(device);
        waiting[i] = stream_new(device);
        others[i] = stream_new(device);
        OK(gpu->event_create(gpu, device, 0, &event));
        OK(gpu->sleep(gpu, device, busy[i], 10 * A_WHILE));
        OK(gpu->event_record(gpu, device, event, busy[i]));
        OK(gpu->stream_wait_event(gpu, device, waiting[i], event));
        OK(gpu->stream_notify(gpu, device, waiting[i],
                              notification_of(&ends[i])));
        OK(gpu->event_destroy(gpu, device, event));
    }
    OK(gpu->stream_notify(gpu, device, busy[0], notification_of(&first)));
    for (int i = 0; i < MANY; i++) {
        many[i].reached = reach;
        many[i].argument = &all;
        OK(gpu->stream_notify(gpu, device, busy[0], &many[i]));
    }
    for (int i = 0; i < STREAMS; i++) {
        OK(gpu->sleep(gpu, device, others[i], 1));
        OK(gpu->stream_synchronize(gpu, device, others[i], NULL));
    }
    CHECK(first.reached == 0 && all.reached == 0);
    for (int i = 0; i < STREAMS; i++) {
        CHECK(ends[i].reached == 0);
    }
    for (int i = 0; i < STREAMS; i++) {
        await(&ends[i]);
        stream_end(device, busy[i]);
        stream_end(device, waiting[i]);
        stream_end(device, others[i]);
    }
    while (all.reached < MANY) {
        sched_yield();
    }
    CHECK(first.reached == 1 && all.reached == MANY);
}

/* A notification for an event waits for the event's latest record at the time
 * of the call, even if the event is then recorded again or destroyed.  This
 * holds for interprocess events, too. */
static void
notify_of_records(int device)
{
    enum { KINDS = 4 };
    ps_handle busy = stream_new(device), other = stream_new(device);
    struct arrival arrivals[KINDS] = {0}, gates[2] = {0};
    ps_handle events[KINDS];
    gate_new(device, busy, &gates[0]);
    for (int i = 0; i < KINDS; i++) {
        OK(gpu->event_create(gpu, device, i == 3 ? PS_EVENT_INTERPROCESS : 0,
                             &events[i]));
        OK(gpu->event_record(gpu, device, events[i], busy));
        OK(gpu->event_notify(gpu, device, events[i],
                             notification_of(&arrivals[i])));
    }
    gate_new(device, busy, &gates[1]);
    OK(gpu->event_record(gpu, device, events[0], busy));
    OK(gpu->event_record(gpu, device, events[3], busy));
    OK(gpu->event_record(gpu, device, events[1], other));
    OK(gpu->event_destroy(gpu, device, events[2]));
    pause_ms(20);
    for (int i = 0; i < KINDS; i++) {
        CHECK(arrivals[i].reached == 0);
    }
    OK(gpu->gate_open(gpu, device, gates[0].gate));
    for (int i = 0; i < KINDS; i++) {
        await(&arrivals[i]);
        CHECK(arrivals[i].status == PS_SUCCESS);
    }
    CHECK_STATUS(gpu->event_query(gpu, device, events[0]), PS_ERROR_NOT_READY);
    OK(gpu->gate_open(gpu, device, gates[1].gate));
    stream_end(device, busy);
    stream_end(device, other);
    for (int i = 0; i < KINDS; i++) {
        if (i != 2) {
            OK(gpu->event_destroy(gpu, device, events[i]));
        }
    }
}

/* Request and cancel more notifications of each kind than a queue has
 * places. */
static void
cancel_many(int device)
{
    enum { TIMES = 3000 };
    ps_handle busy = stream_new(device), event, shared;
    struct arrival arrival = {0}, gate = {0};
    gate_new(device, busy, &gate);
    OK(gpu->event_create(gpu, device, 0, &event));
    OK(gpu->event_create(gpu, device, PS_EVENT_INTERPROCESS, &shared));
    OK(gpu->event_record(gpu, device, event, busy));
    OK(gpu->event_record(gpu, device, shared, busy));
    for (int i = 0; i < TIMES; i++) {
        struct ps_notification *n = notification_of(&arrival);
        OK(gpu->stream_notify(gpu, device, busy, n));
        OK(gpu->notify_cancel(gpu, device, n));
        OK(gpu->event_notify(gpu, device, event, n));
        OK(gpu->notify_cancel(gpu, device, n));
        OK(gpu->event_notify(gpu, device, shared, n));
        OK(gpu->notify_cancel(gpu, device, n));
    }
    OK(gpu->event_record(gpu, device, event, busy));
    OK(gpu->gate_open(gpu, device, gate.gate));
    stream_end(device, busy);
    CHECK(arrival.reached == 0);
    OK(gpu->event_destroy(gpu, device, event));
    OK(gpu->event_destroy(gpu, device, shared));
}

static void
gates_on(int device)
{
    ps_handle stream = stream_new(device);
    struct arrival within = {.opens = true}, alone = {0}, last = {0};
    int current = current_device();
    pass_gates(device, stream);
    pass_gates(device, 0);
    pass_side_by_side(device);
    notify_many(device);
    notify_of_records(device);
    cancel_many(device);
    gate_new(device, stream, &within);
    OK(gpu->stream_synchronize(gpu, device, stream, NULL));
    CHECK(within.reached == 1);
    OK(gpu->sleep(gpu, device, stream, A_WHILE));
    OK(gpu->stream_notify(gpu, device, stream, notification_of(&alone)));
    CHECK(alone.reached == 0);
    await(&alone);
    OK(gpu->stream_query(gpu, device, stream));
    gate_new(device, stream, &last);
    OK(gpu->stream_destroy(gpu, device, stream));
    await(&last);
    OK(gpu->gate_open(gpu, device, last.gate));
    OK(gpu->device_synchronize(gpu, device, NULL));
    CHECK(last.reached == 1);
    CHECK(current_device() == current);
}

void
test_gates(void)
{
    for (int device = 0; device < devices; device++) {
        gates_on(device);
    }
}

/* A slot is reused once its gate was reached and opened, and no sooner.  It is
 * reused even if the device has not evaluated that gate's wait yet. */
void
test_gates_reused(void)
{
    enum { TIMES = 10000 };
    ps_handle a = stream_new(0), b = stream_new(0);
    struct arrival early = {0}, late = {0};
    int ran = 0, wrong = 0;
    OK(gpu->sleep(gpu, 0, a, A_WHILE));
    gate_new(0, a, &early);
    OK(gpu->gate_open(gpu, 0, early.gate));
    gate_new(0, b, &late);
    CHECK(late.gate != early.gate);
    OK(gpu->host_function(gpu, 0, b, count, &ran));
    await(&late);
    CHECK(early.reached == 0);
    await(&early);
    OK(gpu->stream_synchronize(gpu, 0, a, NULL));
    CHECK(ran == 0);
    CHECK_STATUS(gpu->stream_query(gpu, 0, b), PS_ERROR_NOT_READY);
    OK(gpu->gate_open(gpu, 0, late.gate));
    OK(gpu->stream_synchronize(gpu, 0, b, NULL));
    CHECK(ran == 1);

    for (int i = 0; i < TIMES; i++) {
        struct arrival arrival = {.opens = i % 3 == 0};
        ps_handle stream = i % 2 ? a : b;
        ps_status status =
            gpu->stream_gate(gpu, 0, stream, reach, &arrival, &arrival.gate);
        if (status == PS_SUCCESS && i % 3 == 1) {
            status = gpu->gate_open(gpu, 0, arrival.gate);
        }
        await(&arrival);
        if (status == PS_SUCCESS && i % 3 == 2) {
            status = gpu->gate_open(gpu, 0, arrival.gate);
        }
        if (status == PS_SUCCESS) {
            status = gpu->stream_synchronize(gpu, 0, stream, NULL);
        }
        wrong += status != PS_SUCCESS || arrival.reached != 1 ||
                 (arrival.gate != early.gate && arrival.gate != late.gate);
    }
    CHECK(wrong == 0);
    stream_end(0, a);
    stream_end(0, b);
}

/* One stream, on which all threads queue gates.  A thread is "inside" from the
 * time when its gate is reached until it opens the gate.  Only one thread at a
 * time may be inside. */
static struct {
    ps_handle stream;
    int inside; /* unlocked: the stream's order must be enough */
    atomic_int wrong;
} shared;

static void
turn_reached(void *argument, ps_status status)
{
    if (shared.inside++ != 0 || status != PS_SUCCESS) {
        shared.wrong++;
    }
    *(atomic_bool *)argument = true;
}

static void *
turns_thread(void *argument)
{
    for (int i = 0; i < 500; i++) {
        atomic_bool reached = false;
        ps_handle gate;
        if (gpu->stream_gate(gpu, 0, shared.stream, turn_reached, &reached,
                             &gate) != PS_SUCCESS) {
            shared.wrong++;
            break;
        }
        while (!reached) {
            sched_yield();
        }
        shared.inside--;
        gpu->gate_open(gpu, 0, gate);
    }
    return argument;
}

void
test_gates_raced(void)
{
    pthread_t threads[8];
    shared.stream = stream_new(0);
    for (int i = 0; i < 8; i++) {
        pthread_create(&threads[i], NULL, turns_thread, NULL);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
    }
    stream_end(0, shared.stream);
    CHECK(shared.wrong == 0 && shared.inside == 0);
}

/* A stream that is being captured refuses gates and notifications.  A gate on
 * another stream does not invalidate the capture, although the first gate of a
 * process allocates memory. */
void
test_gates_refused(void)
{
    ps_handle captured = stream_new(0), other = stream_new(0);
    struct arrival arrival = {0}, refused = {0};
    cudaGraph_t graph;
    OK(gpu->sleep(gpu, 0, captured, 1));
    CHECK(cudaStreamBeginCapture((cudaStream_t)captured,
                                 cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK_STATUS(
        gpu->stream_gate(gpu, 0, captured, reach, &refused, &refused.gate),
        PS_ERROR_CAPTURE_UNSUPPORTED);
    CHECK_STATUS(
        gpu->stream_notify(gpu, 0, captured, notification_of(&refused)),
        PS_ERROR_CAPTURE_UNSUPPORTED);
    gate_new(0, other, &arrival);
    await(&arrival);
    OK(gpu->gate_open(gpu, 0, arrival.gate));
    OK(gpu->sleep(gpu, 0, captured, 1));
    CHECK(cudaStreamEndCapture((cudaStream_t)captured, &graph) == cudaSuccess);
    stream_end(0, other);
    stream_end(0, captured);
    CHECK(refused.reached == 0 && arrival.reached == 1);
}

static const char trap_source[] = ".version 6.0\n"
                                  ".target sm_50\n"
                                  ".address_size 64\n"
                                  ".visible .entry trap() { trap; ret; }\n";

/* A gate is reached even if its stream fails.  After this failure, the process
 * cannot use the device any more. */
void
test_gates_failed(void)
{
    ps_handle stream = stream_new(0);
    struct arrival gated = {0}, alone = {0}, never = {0};
    CUlibrary library;
    CUkernel kernel;
    OK(cuda_driver.library_load(&library, trap_source, NULL, NULL, 0, NULL,
                                NULL, 0));
    OK(cuda_driver.library_kernel(&kernel, library, "trap"));
    OK(gpu->sleep(gpu, 0, stream, A_WHILE));
    OK(cuda_driver.kernel_launch((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0,
                                 (CUstream)stream, NULL, NULL));
    gate_new(0, stream, &gated);
    OK(gpu->stream_notify(gpu, 0, stream, notification_of(&alone)));
    await(&gated);
    CHECK(gated.status != PS_SUCCESS);
    printf("  %s\n", gpu->status_name(gpu, gated.status));
    OK(gpu->gate_open(gpu, 0, gated.gate));
    await(&alone);
    CHECK(alone.status == gated.status);
    CHECK_STATUS(gpu->stream_synchronize(gpu, 0, stream, NULL), gated.status);
    CHECK(gpu->stream_gate(gpu, 0, stream, reach, &never, &never.gate) !=
          PS_SUCCESS);
    CHECK(gated.reached == 1 && alone.reached == 1 && never.reached == 0);
}
