/* The engine and its process: forks, a process that cannot start threads, and
 * shutdown. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED \
    (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#else
#define SANITIZED 0
#endif

/* If a process with threads forks, the child cannot start threads under gcc's
 * ThreadSanitizer.  Under clang's ThreadSanitizer it can, if the option
 * die_after_fork is 0, as below. */
#if defined(__SANITIZE_THREAD__)
#define CHILD_HAS_THREADS 0
#else
#define CHILD_HAS_THREADS 1
#endif

const char *__tsan_default_options(void);
const char *
__tsan_default_options(void)
{
    return "die_after_fork=0";
}

/* Like CHECK, but for a forked child, which exits at the first check that
 * fails. */
#define CHILD(condition) child_check(condition, #condition, __LINE__)

static void
child_check(bool right, const char *what, int line)
{
    if (!right) {
        dprintf(STDERR_FILENO, "%s:%d: failed: %s\n", __FILE__, line, what);
        _exit(1);
    }
}

static void
child_use_workers(ps_handle stream, ps_handle event)
{
    int ran = 0;
    void *data = NULL;
    CHILD(cpu->memory_allocate(cpu, 0, stream, 9, &data) == PS_SUCCESS);
    for (int i = 0; i < 1000; i++) {
        CHILD(!cpu->host_function(cpu, 0, stream, count, &ran));
    }
    CHILD(cpu->sleep(cpu, 0, stream, 100000) == PS_SUCCESS);
    CHILD(cpu->event_record(cpu, 0, event, stream) == PS_SUCCESS);
    CHILD(cpu->stream_wait_event(cpu, 0, 0, event) == PS_SUCCESS);
    CHILD(cpu->host_function(cpu, 0, 0, count, &ran) == PS_SUCCESS);
    CHILD(cpu->memory_free(cpu, 0, stream, data) == PS_SUCCESS);
    CHILD(cpu->stream_synchronize(cpu, 0, 0, NULL) == PS_SUCCESS &&
          ran == 1001);
}

/* Check in a forked child that the parent's handles are invalid, and that the
 * engine works.  Then exit. */
static void
child_use_engine(ps_handle parent_stream, ps_handle parent_event,
                 ps_handle parent_gate)
{
    ps_handle stream = 0, event = 0;
    alarm(20);
    CHILD(cpu->gate_open(cpu, 0, parent_gate) == PS_ERROR_INVALID_HANDLE);
    CHILD(cpu->stream_query(cpu, 0, parent_stream) == PS_ERROR_INVALID_HANDLE);
    CHILD(cpu->event_query(cpu, 0, parent_event) == PS_ERROR_INVALID_HANDLE);
    CHILD(cpu->stream_query(cpu, 0, 0) == PS_SUCCESS);
    CHILD(cpu->device_synchronize(cpu, 0, NULL) == PS_SUCCESS);
    CHILD(cpu->stream_create(cpu, 0, 0, &stream) == PS_SUCCESS);
    CHILD(cpu->event_create(cpu, 0, 0, &event) == PS_SUCCESS);
    CHILD(stream != parent_stream && event != parent_event);
    CHILD(cpu->event_record(cpu, 0, event, stream) == PS_SUCCESS);
    CHILD(cpu->event_synchronize(cpu, 0, event, NULL) == PS_SUCCESS);
    if (CHILD_HAS_THREADS) {
        child_use_workers(stream, event);
    }
    CHILD(cpu->stream_destroy(cpu, 0, stream) == PS_SUCCESS);
    CHILD(cpu->shutdown(cpu, 10000000000) == PS_SUCCESS);
    _exit(0);
}

struct forker {
    ps_handle stream, event, gate;
    pid_t child;
    int status;
    bool child_returns;
    sem_t forked;
};

static void
fork_here(void *argument)
{
    struct forker *forker = argument;
    pid_t child = fork();
    forker->child = child;
    if (child == 0 && forker->child_returns) {
        return;
    }
    if (child == 0) {
        child_use_engine(forker->stream, forker->event, forker->gate);
    }
    if (waitpid(child, &forker->status, 0) != child) {
        forker->status = -1;
    }
}

static void
fork_reached(void *argument, ps_status status)
{
    (void)status;
    fork_here(argument);
}

static void
count_reached(void *argument, ps_status status)
{
    (void)status;
    count(argument);
}

static atomic_bool load_over;

static void *
load_thread(void *argument)
{
    int *ran = argument;
    ps_handle stream = stream_new(0), event = event_new();
    while (!load_over) {
        OK(cpu->host_function(cpu, 0, stream, count, ran));
        OK(cpu->event_record(cpu, 0, event, stream));
        OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
        ran[1]++;
    }
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->event_destroy(cpu, 0, event));
    return NULL;
}

/* Fork in a notification that runs on a caller's thread, within the call.  The
 * call returns in the parent and in the child. */
static void
fork_in_notification(struct forker *forker)
{
    forker->child_returns = true;
    forker->status = -1;
    OK(cpu->stream_gate(cpu, 0, forker->stream, fork_reached, forker,
                        &forker->gate));
    if (forker->child == 0) {
        child_use_engine(forker->stream, forker->event, forker->gate);
    }
    CHECK(forker->status == 0);
    struct ps_notification notification = {
        .reached = fork_reached,
        .argument = forker,
    };
    OK(cpu->stream_notify(cpu, 0, forker->stream, &notification));
    forker->status = -1;
    OK(cpu->gate_open(cpu, 0, forker->gate));
    if (forker->child == 0) {
        child_use_engine(forker->stream, forker->event, forker->gate);
    }
    CHECK(forker->status == 0);
}

static void
fork_reached_by_worker(void *argument, ps_status status)
{
    struct forker *forker = argument;
    fork_reached(argument, status);
    sem_post(&forker->forked);
}

/* Fork in a notification that runs on a worker.  In the child, the worker is
 * the only thread.  When it ends, the child ends, too. */
static void
fork_in_worker(struct forker *forker)
{
    struct ps_notification notification = {
        .reached = fork_reached_by_worker,
        .argument = forker,
    };
    struct hold hold;
    void *data = NULL;
    if (SANITIZED) {
        return;
    }
    sem_init(&forker->forked, 0, 0);
    OK(cpu->memory_allocate(cpu, 0, forker->stream, 9, &data));
    hold_take(cpu, &hold, forker->stream);
    /* After a free, a worker releases the engine's lock, and the release runs
     * the notification. */
    OK(cpu->memory_free(cpu, 0, forker->stream, data));
    OK(cpu->stream_notify(cpu, 0, forker->stream, &notification));
    forker->child_returns = true;
    forker->status = -1;
    hold_release(&hold);
    sem_wait(&forker->forked);
    CHECK(forker->status == 0);
}

void
test_fork(void)
{
    struct forker forker = {.stream = stream_new(0), .event = event_new()};
    struct hold hold;
    int ran = 0, load[2] = {0};
    pthread_t thread;
    load_over = false;
    pthread_create(&thread, NULL, load_thread, load);
    hold_take(cpu, &hold, forker.stream);
    for (int i = 0; i < 1000; i++) {
        OK(cpu->host_function(cpu, 0, forker.stream, count, &ran));
    }
    OK(cpu->stream_gate(cpu, 0, forker.stream, count_reached, &ran,
                        &forker.gate));
    OK(cpu->event_record(cpu, 0, forker.event, forker.stream));
    for (int i = 0; i < 20; i++) {
        fork_here(&forker);
        CHECK(forker.status == 0);
    }
    hold_release(&hold);
    OK(cpu->gate_open(cpu, 0, forker.gate));
    OK(cpu->event_synchronize(cpu, 0, forker.event, NULL));
    CHECK(ran == 1001);
    load_over = true;
    pthread_join(thread, NULL);
    CHECK(load[0] == load[1] && load[0] > 0);

    OK(cpu->host_function(cpu, 0, forker.stream, fork_here, &forker));
    OK(cpu->stream_synchronize(cpu, 0, forker.stream, NULL));
    CHECK(forker.status == 0);
    /* If fork_here returns in the child, the worker ends there.  It is the
     * child's only thread, so the child ends, too. */
    forker.child_returns = !SANITIZED;
    forker.status = -1;
    OK(cpu->host_function(cpu, 0, forker.stream, fork_here, &forker));
    OK(cpu->stream_synchronize(cpu, 0, forker.stream, NULL));
    CHECK(forker.status == 0);
    fork_in_notification(&forker);
    fork_in_worker(&forker);
    OK(cpu->stream_destroy(cpu, 0, forker.stream));
    OK(cpu->event_destroy(cpu, 0, forker.event));
}

/* If the engine cannot start a worker, the call that needs it fails and queues
 * nothing. */
void
test_no_thread(void)
{
    if (SANITIZED) {
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        int ran = 0;
        struct rlimit limit;
        CHILD(cpu->event_record(cpu, 0, event_new(), 0) == PS_SUCCESS);
        getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = 1;
        setrlimit(RLIMIT_AS, &limit);
        ps_status status = cpu->host_function(cpu, 0, 0, count, &ran);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_AS, &limit);
        CHILD(status == PS_ERROR_OUT_OF_MEMORY);
        CHILD(cpu->stream_query(cpu, 0, 0) == PS_SUCCESS);
        CHILD(cpu->host_function(cpu, 0, 0, count, &ran) == PS_SUCCESS);
        CHILD(cpu->stream_synchronize(cpu, 0, 0, NULL) == PS_SUCCESS &&
              ran == 1);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

struct stopped {
    const struct ps_backend *backend;
    ps_handle stream, event;
};

static atomic_int returned;

static void *
wait_for_stream(void *argument)
{
    struct stopped *s = argument;
    s->backend->stream_synchronize(s->backend, 0, s->stream, NULL);
    returned++;
    return NULL;
}

static void *
wait_for_event(void *argument)
{
    struct stopped *s = argument;
    s->backend->event_synchronize(s->backend, 0, s->event, NULL);
    returned++;
    return NULL;
}

void
test_shutdown(void)
{
    const struct ps_backend *b = ps_cpu_backend("cpu", PS_DEVICE_CPU, 1, 0);
    /* Static, because the waiting threads use it until the program ends. */
    static struct stopped stopped;
    stopped.backend = b;
    ps_handle busy = 0, idle = 0, gated = 0, gates[4];
    struct hold hold;
    int ran = 0, reached = 0;
    char byte = 0;
    void *data = NULL;
    OK(b->stream_create(b, 0, 0, &busy));
    OK(b->stream_create(b, 0, 0, &idle));
    OK(b->stream_create(b, 0, 0, &gated));
    OK(b->stream_create(b, 0, 0, &stopped.stream));
    OK(b->event_create(b, 0, 0, &stopped.event));
    OK(b->memory_allocate(b, 0, idle, 1000, &data));
    hold_take(b, &hold, busy);
    OK(b->host_function(b, 0, busy, count, &ran));
    OK(b->stream_gate(b, 0, busy, count_reached, &ran, &gates[0]));
    OK(b->stream_gate(b, 0, gated, count_reached, &reached, &gates[1]));
    OK(b->stream_gate(b, 0, gated, count_reached, &reached, &gates[2]));
    OK(b->event_record(b, 0, stopped.event, busy));
    OK(b->sleep(b, 0, stopped.stream, UINT64_MAX));
    OK(b->host_function(b, 0, stopped.stream, count, &ran));
    pthread_t waiting[2];
    pthread_create(&waiting[0], NULL, wait_for_stream, &stopped);
    pthread_create(&waiting[1], NULL, wait_for_event, &stopped);
    pause_ms(20);
    CHECK_STATUS(b->shutdown(b, 20000000), PS_ERROR_NOT_READY);
    pthread_detach(waiting[0]);
    pthread_detach(waiting[1]);
    pause_ms(20);
    CHECK(returned == 0);
    CHECK_STATUS(b->device_synchronize(b, 0, NULL), PS_ERROR_SHUTTING_DOWN);
    CHECK_STATUS(b->host_function(b, 0, idle, count, &ran),
                 PS_ERROR_SHUTTING_DOWN);
    CHECK_STATUS(
        b->stream_gate(b, 0, idle, count_reached, &reached, &gates[3]),
        PS_ERROR_SHUTTING_DOWN);
    for (int i = 0; i < 3; i++) {
        OK(b->gate_open(b, 0, gates[i]));
    }
    CHECK_STATUS(b->stream_query(b, 0, gated), PS_ERROR_NOT_READY);
    CHECK_STATUS(b->stream_synchronize(b, 0, gated, LIMIT(1000)),
                 PS_ERROR_SHUTTING_DOWN);
    OK(b->memory_fill(b, 0, idle, &byte, 7, 1));
    CHECK(byte == 7);
    OK(b->event_record(b, 0, stopped.event, idle));
    OK(b->event_synchronize(b, 0, stopped.event, NULL));
    OK(b->stream_synchronize(b, 0, idle, NULL));
    OK(b->memory_free(b, 0, idle, data));
    OK(b->stream_destroy(b, 0, busy));
    hold_release(&hold);
    OK(b->shutdown(b, 10000000000));
    OK(b->shutdown(b, 0));
    CHECK(ran == 0 && reached == 1);
    OK(b->stream_destroy(b, 0, idle));
    OK(b->stream_destroy(b, 0, gated));
    OK(b->stream_destroy(b, 0, stopped.stream));
    OK(b->event_destroy(b, 0, stopped.event));
}
