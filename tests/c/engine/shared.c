/* Tests events that several processes share.  Most of these tests need only
 * one process.  It creates an event and opens the event's interprocess handle,
 * and the engine treats the opened event as one of another process.  Only the
 * test of a process that dies uses a second process. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The two handles of an interprocess event.  The event was created as `made`,
 * and opened by its interprocess handle as `opened`. */
struct pair {
    unsigned char handle[PS_IPC_HANDLE_BYTES];
    ps_handle made, opened;
};

static void
pair_make(struct pair *pair)
{
    OK(cpu->event_create(cpu, 0, PS_EVENT_INTERPROCESS, &pair->made));
    OK(cpu->event_export(cpu, 0, pair->made, pair->handle));
    OK(cpu->event_open(cpu, 0, pair->handle, &pair->opened));
    OK(cpu->event_query(cpu, 0, pair->opened));
    OK(cpu->event_synchronize(cpu, 0, pair->opened, NULL));
}

static void
pair_end(struct pair *pair)
{
    OK(cpu->event_destroy(cpu, 0, pair->made));
    OK(cpu->event_destroy(cpu, 0, pair->opened));
    CHECK_STATUS(cpu->event_open(cpu, 0, pair->handle, &pair->opened),
                 PS_ERROR_INVALID_HANDLE);
}

static void
test_records(void)
{
    ps_handle a = stream_new(0), b = stream_new(0), c = stream_new(0);
    struct pair pair;
    struct hold hold;
    int ran = 0;
    pair_make(&pair);
    hold_take(cpu, &hold, a);
    OK(cpu->event_record(cpu, 0, pair.made, a));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.opened), PS_ERROR_NOT_READY);
    CHECK_STATUS(cpu->event_synchronize(cpu, 0, pair.opened, LIMIT(1000)),
                 PS_ERROR_TIMED_OUT);
    OK(cpu->stream_wait_event(cpu, 0, b, pair.opened));
    OK(cpu->host_function(cpu, 0, b, count, &ran));
    OK(cpu->event_record(cpu, 0, pair.opened, c));
    OK(cpu->event_query(cpu, 0, pair.made));
    OK(cpu->event_synchronize(cpu, 0, pair.opened, NULL));
    CHECK_STATUS(cpu->stream_query(cpu, 0, b), PS_ERROR_NOT_READY);
    OK(cpu->event_record(cpu, 0, pair.made, b));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.opened), PS_ERROR_NOT_READY);
    /* Queued records and waits go on after the event is destroyed. */
    OK(cpu->stream_wait_event(cpu, 0, c, pair.opened));
    pair_end(&pair);
    CHECK_STATUS(cpu->stream_query(cpu, 0, c), PS_ERROR_NOT_READY);
    hold_release(&hold);
    stream_end(c);
    CHECK(ran == 1);
    stream_end(b);
    stream_end(a);
}

static void
test_failure(void)
{
    ps_handle a = stream_new(0), b = stream_new(0), c = stream_new(0);
    struct pair pair;
    struct hold hold;
    pair_make(&pair);
    hold_take(cpu, &hold, a);
    OK(ps_cpu_faults.stream_fail(cpu, 0, a, 999));
    OK(cpu->event_record(cpu, 0, pair.made, a));
    OK(cpu->stream_wait_event(cpu, 0, b, pair.opened));
    /* The event's page stores only the latest record.  So after these records,
     * it no longer has the record that stream b waits for. */
    for (int i = 0; i < 1000; i++) {
        OK(cpu->event_record(cpu, 0, i % 2 ? pair.made : pair.opened, c));
    }
    OK(cpu->event_query(cpu, 0, pair.opened));
    hold_release(&hold);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, b, NULL), 999);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, a, NULL), 999);
    OK(cpu->event_record(cpu, 0, pair.opened, b));
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.made), 999);
    OK(cpu->stream_destroy(cpu, 0, a));
    OK(cpu->stream_destroy(cpu, 0, b));
    stream_end(c);
    pair_end(&pair);
}

static void
test_handles_refused(void)
{
    struct pair pair;
    ps_handle none = 0;
    unsigned char handle[PS_IPC_HANDLE_BYTES] = {0};
    CHECK_STATUS(cpu->event_open(cpu, 0, handle, &none),
                 PS_ERROR_INVALID_VALUE);
    pair_make(&pair);
    for (int bit = 0; bit < 8 * PS_IPC_HANDLE_BYTES; bit++) {
        memcpy(handle, pair.handle, sizeof(handle));
        handle[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK_STATUS(cpu->event_open(cpu, 0, handle, &none),
                     PS_ERROR_INVALID_VALUE);
    }
    CHECK_STATUS(cpu->event_open(cpu, 1, pair.handle, &none),
                 PS_ERROR_INVALID_DEVICE);
    CHECK(none == 0);
    ps_handle plain = event_new();
    CHECK_STATUS(cpu->event_export(cpu, 0, plain, handle),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->event_destroy(cpu, 0, plain));
    pair_end(&pair);
}

enum { ROUNDS = 100 };

static struct pair contested;

/* Half of the threads record contested.made, and the other half record
 * contested.opened.  Each thread waits for both. */
static void *
contest_thread(void *argument)
{
    ps_handle stream = stream_new(0);
    ps_handle mine =
        (intptr_t)argument % 2 ? contested.made : contested.opened;
    int ran = 0;
    for (int i = 0; i < ROUNDS; i++) {
        OK(cpu->host_function(cpu, 0, stream, count, &ran));
        OK(cpu->event_record(cpu, 0, mine, stream));
        OK(cpu->stream_wait_event(cpu, 0, stream, contested.made));
        OK(cpu->stream_wait_event(cpu, 0, stream, contested.opened));
    }
    OK(cpu->event_synchronize(cpu, 0, mine, NULL));
    stream_end(stream);
    CHECK(ran == ROUNDS);
    return NULL;
}

void
test_shared(void)
{
    test_records();
    test_failure();
    test_handles_refused();
    pair_make(&contested);
    run_threads(contest_thread);
    pair_end(&contested);
}

/* A child process records the event, and is killed before its work is done. */
void
test_shared_by_the_dead(void)
{
    ps_handle stream = stream_new(0), opened = 0;
    struct pair pair;
    int ready[2], status = -1;
    char byte = 0;
    pair_make(&pair);
    if (pipe(ready) != 0) {
        CHECK(false);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        bool right =
            cpu->event_query(cpu, 0, pair.made) == PS_ERROR_INVALID_HANDLE &&
            cpu->event_open(cpu, 0, pair.handle, &opened) == PS_SUCCESS &&
            cpu->sleep(cpu, 0, 0, 3600000000000) == PS_SUCCESS &&
            cpu->event_record(cpu, 0, opened, 0) == PS_SUCCESS;
        _exit(write(ready[1], right ? "1" : "0", 1) == 1 ? pause() : 1);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && byte == '1');
    CHECK_STATUS(cpu->event_query(cpu, 0, pair.made), PS_ERROR_NOT_READY);
    OK(cpu->stream_wait_event(cpu, 0, stream, pair.opened));
    kill(child, SIGKILL);
    CHECK_STATUS(cpu->event_synchronize(cpu, 0, pair.made, NULL),
                 PS_ERROR_CONTEXT_DESTROYED);
    CHECK_STATUS(cpu->stream_synchronize(cpu, 0, stream, NULL),
                 PS_ERROR_CONTEXT_DESTROYED);
    CHECK(waitpid(child, &status, 0) == child);
    OK(cpu->event_record(cpu, 0, pair.made, 0));
    OK(cpu->event_query(cpu, 0, pair.opened));
    OK(cpu->stream_destroy(cpu, 0, stream));
    close(ready[0]);
    close(ready[1]);
    pair_end(&pair);
}
