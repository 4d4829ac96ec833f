/* Tests which work a notification waits for, in which order notifications are
 * called, and that a cancelled notification leaves nothing behind. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* A notification, and what happened to it. */
struct notified {
    struct ps_notification notification;
    atomic_int reached;
    ps_status status;
    int place; /* how many notifications were reached before it */
    pthread_t thread;
};

static atomic_int places;
static _Thread_local int depth;

static void
reach(void *argument, ps_status status)
{
    struct notified *notified = argument;
    CHECK(depth++ == 0);
    notified->status = status;
    notified->place = places++;
    notified->thread = pthread_self();
    depth--;
    notified->reached++;
}

static struct ps_notification *
fresh(struct notified *notified)
{
    memset(notified, 0, sizeof(*notified));
    /* The backend must initialize its own members, so fill them with
     * garbage. */
    memset(&notified->notification, 0xa5, sizeof(notified->notification));
    notified->notification.reached = reach;
    notified->notification.argument = notified;
    return &notified->notification;
}

static void
of_stream(ps_handle stream, struct notified *notified)
{
    OK(cpu->stream_notify(cpu, 0, stream, fresh(notified)));
}

static void
of_event(ps_handle event, struct notified *notified)
{
    OK(cpu->event_notify(cpu, 0, event, fresh(notified)));
}

static void
await(struct notified *notified)
{
    while (notified->reached == 0) {
        sched_yield();
    }
}

/* A notification is for the work that was queued before the call, and is
 * reached when that work is done.  Notifications come in the order in which
 * their work ends. */
void
test_notifications(void)
{
    enum { MORE = 4 };
    ps_handle stream = stream_new(0), other = stream_new(0);
    ps_handle event = event_new(), never = event_new();
    struct notified idle, unrecorded, first, record, rest[MORE];
    struct hold busy, again;
    of_stream(stream, &idle);
    of_event(never, &unrecorded);
    CHECK(idle.reached == 1 && idle.status == PS_SUCCESS);
    CHECK(unrecorded.reached == 1 && unrecorded.status == PS_SUCCESS);
    CHECK(pthread_equal(idle.thread, pthread_self()));

    hold_take(cpu, &busy, stream);
    of_stream(stream, &first);
    OK(cpu->event_record(cpu, 0, event, stream));
    of_event(event, &record);
    for (int i = 0; i < MORE; i++) {
        OK(cpu->sleep(cpu, 0, stream, 1000000));
        of_stream(stream, &rest[i]);
    }
    /* Neither a later record nor the destruction of the event affects the
     * notification of the earlier record. */
    OK(cpu->event_record(cpu, 0, event, other));
    OK(cpu->event_destroy(cpu, 0, event));
    pause_ms(5);
    CHECK(first.reached == 0 && record.reached == 0);
    hold_release(&busy);
    hold_take(cpu, &again, stream);
    await(&rest[MORE - 1]);
    CHECK_STATUS(cpu->stream_query(cpu, 0, stream), PS_ERROR_NOT_READY);
    hold_release(&again);
    CHECK(first.reached == 1 && record.reached == 1);
    CHECK(first.place < record.place && record.place < rest[0].place);
    for (int i = 1; i < MORE; i++) {
        CHECK(rest[i - 1].place < rest[i].place);
    }

    /* Destroying a stream does not affect its notifications. */
    hold_take(cpu, &busy, other);
    of_stream(other, &first);
    OK(cpu->stream_destroy(cpu, 0, other));
    hold_release(&busy);
    await(&first);
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, never));
}

void
test_notifications_failed(void)
{
    ps_handle stream = stream_new(0), event = event_new();
    struct notified before, record, after, late;
    struct hold busy;
    hold_take(cpu, &busy, stream);
    of_stream(stream, &before);
    OK(ps_cpu_faults.stream_fail(cpu, 0, stream, 719));
    OK(cpu->event_record(cpu, 0, event, stream));
    of_event(event, &record);
    of_stream(stream, &after);
    hold_release(&busy);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, NULL), 719);
    await(&before);
    await(&record);
    await(&after);
    CHECK(before.status == PS_SUCCESS);
    CHECK(record.status == 719 && after.status == 719);
    of_stream(stream, &late);
    CHECK(late.reached == 1 && late.status == 719);
    of_event(event, &late);
    CHECK(late.reached == 1 && late.status == 719);
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->event_destroy(cpu, 0, event));
}

void
test_notifications_refused(void)
{
    ps_handle stream = stream_new(0), event = event_new(), graph;
    struct notified refused;
    struct ps_notification *notification = fresh(&refused);
    size_t operations;
    CHECK_STATUS(cpu->stream_notify(cpu, 0, event, notification),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->event_notify(cpu, 0, stream, notification),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    OK(cpu->event_record(cpu, 0, event, stream));
    CHECK_STATUS(cpu->stream_notify(cpu, 0, stream, notification),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    CHECK_STATUS(cpu->event_notify(cpu, 0, event, notification),
                 PS_ERROR_CAPTURED_EVENT);
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    OK(cpu->graph_destroy(cpu, 0, graph));
    CHECK(refused.reached == 0);
    stream_end(stream);
    OK(cpu->event_destroy(cpu, 0, event));
}

/* Cancel notifications at the beginning, in the middle and at the end of the
 * list of pending notifications.  In total, cancel more notifications than a
 * queue has places. */
void
test_notifications_cancelled(void)
{
    enum { KEPT = 3, TIMES = 70000 };
    ps_handle stream = stream_new(0), event = event_new();
    struct notified kept[KEPT], of_record[KEPT], gone, gone_too;
    struct hold busy;
    hold_take(cpu, &busy, stream);
    OK(cpu->event_record(cpu, 0, event, stream));
    for (int i = 0; i < KEPT; i++) {
        of_stream(stream, &kept[i]);
        of_event(event, &of_record[i]);
    }
    OK(cpu->notify_cancel(cpu, 0, &kept[0].notification));
    OK(cpu->notify_cancel(cpu, 0, &of_record[1].notification));
    CHECK_STATUS(cpu->notify_cancel(cpu, 0, &kept[0].notification),
                 PS_ERROR_TOO_LATE);
    for (int i = 0; i < TIMES; i++) {
        of_stream(stream, &gone);
        of_event(event, &gone_too);
        OK(cpu->notify_cancel(cpu, 0, &gone.notification));
        OK(cpu->notify_cancel(cpu, 0, &gone_too.notification));
    }
    CHECK(gone.reached == 0 && gone_too.reached == 0);
    OK(cpu->event_record(cpu, 0, event, stream));
    hold_release(&busy);
    stream_end(stream);
    for (int i = 0; i < KEPT; i++) {
        if (i != 0) {
            await(&kept[i]);
            CHECK_STATUS(cpu->notify_cancel(cpu, 0, &kept[i].notification),
                         PS_ERROR_TOO_LATE);
        }
        if (i != 1) {
            await(&of_record[i]);
        }
    }
    CHECK(kept[0].reached == 0 && of_record[1].reached == 0);
    OK(cpu->event_destroy(cpu, 0, event));
}

/* All threads ask for notifications of the same streams and events, and cancel
 * some of them while the work ends.  Each notification is reached once, or is
 * cancelled and never reached. */
enum { RACED = 3, RACES = 3000, AT_ONCE = 8 };

static ps_handle raced_streams[RACED], raced_events[RACED];

static void
end_race(struct notified *notified, unsigned *seed)
{
    ps_status status = PS_ERROR_TOO_LATE;
    if (rand_r(seed) % 4 != 0) {
        status = cpu->notify_cancel(cpu, 0, &notified->notification);
        CHECK(status == PS_SUCCESS || status == PS_ERROR_TOO_LATE);
    }
    if (status == PS_ERROR_TOO_LATE) {
        await(notified);
    }
    CHECK(notified->reached == (status == PS_ERROR_TOO_LATE));
    free(notified);
}

static void *
race_thread(void *argument)
{
    unsigned seed = 1 + (unsigned)(intptr_t)argument;
    struct notified *notified[AT_ONCE];
    for (int round = 0; round < RACES; round++) {
        ps_handle stream = raced_streams[rand_r(&seed) % RACED];
        ps_handle event = raced_events[rand_r(&seed) % RACED];
        OK(cpu->sleep(cpu, 0, stream, (uint64_t)rand_r(&seed) % 5000));
        OK(cpu->event_record(cpu, 0, event, stream));
        for (int i = 0; i < AT_ONCE; i++) {
            notified[i] = malloc(sizeof(**notified));
            if (rand_r(&seed) % 2 == 0) {
                of_stream(stream, notified[i]);
            }
            else {
                of_event(event, notified[i]);
            }
        }
        for (int i = 0; i < AT_ONCE; i++) {
            end_race(notified[i], &seed);
        }
    }
    return NULL;
}

void
test_notifications_raced(void)
{
    for (int i = 0; i < RACED; i++) {
        raced_streams[i] = stream_new(-i);
        raced_events[i] = event_new();
    }
    run_threads(race_thread);
    for (int i = 0; i < RACED; i++) {
        stream_end(raced_streams[i]);
        OK(cpu->event_destroy(cpu, 0, raced_events[i]));
    }
}
