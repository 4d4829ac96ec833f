/* Stresses notifications and gates of the CUDA backend, on the fake CUDA of
 * late_cuda.  The program is meant to run with a sanitizer.  Several threads
 * ask for notifications and cancel them while the work ends, and while events
 * are recorded again and destroyed.  Checks that each notification is either
 * called exactly once, or cancelled and never called.  Also checks that a
 * stream reaches a gate only when all its earlier gates are opened.  Prints
 * the number of checks that failed. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 3, AT_ONCE = 6, THREADS = 4, ROUNDS = 200 };

struct notified {
    struct ps_notification notification;
    atomic_int reached;
};

struct gate {
    int stream; /* the index of its stream */
    ps_handle handle;
    bool opens; /* whether reach_gate opens it */
    atomic_int reached;
};

static ps_handle streams[STREAMS];
/* For each stream, how many gates it has reached that are not opened.  No lock
 * guards these counts, so that a sanitizer reports a race if a stream does not
 * reach its gates one after another. */
static int at_gates[STREAMS];

static void
reach(void *argument, ps_status status)
{
    struct notified *notified = argument;
    OK(status);
    notified->reached++;
}

static void
leave_gate(struct gate *gate)
{
    at_gates[gate->stream]--;
    OK(gpu->gate_open(gpu, 0, gate->handle));
}

static void
reach_gate(void *argument, ps_status status)
{
    struct gate *gate = argument;
    OK(status);
    CHECK(at_gates[gate->stream]++ == 0);
    if (gate->opens) {
        leave_gate(gate);
    }
    gate->reached++;
}

/* Queue a gate, wait until it is reached, and open it. */
static void
pass_gate(unsigned *seed)
{
    struct gate gate = {.stream = rand_r(seed) % STREAMS,
                        .opens = rand_r(seed) % 2};
    OK(gpu->stream_gate(gpu, 0, streams[gate.stream], reach_gate, &gate,
                        &gate.handle));
    while (gate.reached == 0) {
        sched_yield();
    }
    if (!gate.opens) {
        leave_gate(&gate);
    }
}

/* Ask for a notification.  A random choice decides whether it is for the work
 * of the stream or for the record of the event. */
static struct notified *
ask(unsigned *seed, ps_handle stream, ps_handle event)
{
    enum { PER_THREAD = 2 };
    struct notified *notified = malloc(sizeof(*notified));
    struct ps_notification *notification = &notified->notification;
    /* The backend must initialize its own members, so fill them with
     * garbage. */
    memset(notified, 0xa5, sizeof(*notified));
    notified->reached = 0;
    notification->reached = reach;
    notification->argument = notified;
    switch (rand_r(seed) % 5) {
    case 0:
        OK(gpu->stream_notify(gpu, 0, stream, notification));
        break;
    case 1:
        OK(gpu->stream_notify(gpu, 0, PER_THREAD, notification));
        break;
    case 2:
        OK(gpu->stream_notify(gpu, 0, 0, notification));
        break;
    default:
        OK(gpu->event_notify(gpu, 0, event, notification));
    }
    return notified;
}

static void
end(unsigned *seed, struct notified *notified)
{
    ps_status status = PS_ERROR_TOO_LATE;
    if (rand_r(seed) % 3 != 0) {
        status = gpu->notify_cancel(gpu, 0, &notified->notification);
    }
    while (status == PS_ERROR_TOO_LATE && notified->reached == 0) {
        sched_yield();
    }
    CHECK(notified->reached == (status == PS_ERROR_TOO_LATE));
    free(notified);
}

static void *
run(void *number)
{
    unsigned seed = 1 + (unsigned)(intptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        ps_handle stream = streams[rand_r(&seed) % STREAMS], event;
        struct notified *notified[AT_ONCE];
        bool shared = rand_r(&seed) % 3 == 0;
        int destroyed = rand_r(&seed) % AT_ONCE;
        OK(gpu->event_create(gpu, 0, shared ? PS_EVENT_INTERPROCESS : 0,
                             &event));
        OK(gpu->sleep(gpu, 0, stream, (uint64_t)rand_r(&seed) % 200000));
        OK(gpu->event_record(gpu, 0, event, stream));
        for (int i = 0; i < AT_ONCE; i++) {
            notified[i] = ask(&seed, stream, event);
            if (rand_r(&seed) % 16 == 0) {
                pass_gate(&seed);
            }
            if (rand_r(&seed) % 5 == 0) {
                stream = streams[rand_r(&seed) % STREAMS];
                OK(gpu->event_record(gpu, 0, event, stream));
            }
        }
        for (int i = 0; i < AT_ONCE; i++) {
            if (i == destroyed) {
                OK(gpu->event_destroy(gpu, 0, event));
            }
            end(&seed, notified[i]);
        }
    }
    return number;
}

int
main(void)
{
    enum { SECOND = 1000000000 };
    pthread_t threads[THREADS];
    int count;
    alarm(100);
    OK(gpu->device_count(gpu, &count));
    for (int i = 0; i < STREAMS; i++) {
        OK(gpu->stream_create(gpu, 0, 0, &streams[i]));
    }
    for (intptr_t i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, run, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    OK(gpu->device_synchronize(gpu, 0, NULL));
    OK(gpu->shutdown(gpu, SECOND));
    return report();
}
