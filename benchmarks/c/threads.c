/* Measures the CPU engine's threads: queued operations, wake-ups and copies.
 * Wake-ups are compared with those of a futex, and copies with memcpy. */
#include "engine.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rows.h"

static ps_handle event;

int
prepare(void)
{
    return engine_start() || cpu->event_create(cpu, 0, 0, &event);
}

/* ---- Queued operations ---- */

static void
release_wait(void *semaphore)
{
    sem_wait(semaphore);
}

static void
count_one(void *counter)
{
    ++*(int *)counter;
}

/* Returns the nanoseconds to queue and do each operation.  A host function
 * that blocks comes first, so that all operations are queued and none runs
 * inline.  There must be fewer operations than CPU_QUEUE_LIMIT, so that the
 * queue has room for all of them. */
double
queued(int operations)
{
    sem_t hold;
    int ran = 0;
    sem_init(&hold, 0, 0);
    int failed = cpu->host_function(cpu, 0, first, release_wait, &hold);
    double start = now();
    for (int i = 0; i < operations; i++) {
        failed |= cpu->host_function(cpu, 0, first, count_one, &ran);
    }
    sem_post(&hold);
    failed |= cpu->stream_synchronize(cpu, 0, first, NULL);
    double spent = now() - start;
    sem_destroy(&hold);
    return failed || ran != operations ? -1 : spent / operations;
}

/* ---- Wake-ups ---- */

static _Atomic double given, taken;

static void
stamp(void *when)
{
    *(_Atomic double *)when = now();
}

/* Keeps its worker busy until the waiting stream has run, so that another
 * worker must run that stream. */
static void
stay_busy(void *unused)
{
    (void)unused;
    double limit = now() + 1e9;
    while (atomic_load(&taken) == 0 && now() < limit) {
    }
}

/* Returns the nanoseconds from the work before a record on one stream to the
 * work behind a wait for the record on another stream, which is parked at the
 * wait.  If `stays` is true, the worker of the first stream stays busy, so
 * that another worker must run the second stream. */
static double
hand_over(int stays)
{
    sem_t hold;
    sem_init(&hold, 0, 0);
    taken = 0;
    int failed = cpu->host_function(cpu, 0, first, release_wait, &hold);
    failed |= cpu->host_function(cpu, 0, first, stamp, (void *)&given);
    failed |= cpu->event_record(cpu, 0, event, first);
    if (stays) {
        failed |= cpu->host_function(cpu, 0, first, stay_busy, NULL);
    }
    failed |= cpu->stream_wait_event(cpu, 0, second, event);
    failed |= cpu->host_function(cpu, 0, second, stamp, (void *)&taken);
    usleep(500);
    sem_post(&hold);
    failed |= settle();
    sem_destroy(&hold);
    return failed ? -1 : taken - given;
}

double
parked(int count)
{
    (void)count;
    return hand_over(0);
}

double
handed(int count)
{
    (void)count;
    return hand_over(1);
}

static _Atomic int word;

/* Move this thread to any processor but this one, if there is another. */
static void
move_away_from(int processor)
{
    cpu_set_t others;
    if (sched_getaffinity(0, sizeof(others), &others) == 0 &&
        CPU_COUNT(&others) > 1) {
        CPU_CLR((size_t)processor, &others);
        sched_setaffinity(0, sizeof(others), &others);
    }
}

static void *
sleeper(void *processor)
{
    move_away_from(*(int *)processor);
    while (atomic_load(&word) == 0) {
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    }
    stamp((void *)&taken);
    return NULL;
}

/* Returns the nanoseconds from just before the wake-up of a futex until the
 * thread that sleeps on it runs.  As in handed(), the waking thread stays
 * busy, and the sleeping thread uses another processor. */
double
futex(int count)
{
    pthread_t thread;
    int processor = sched_getcpu();
    (void)count;
    atomic_store(&word, 0);
    taken = 0;
    if (pthread_create(&thread, NULL, sleeper, &processor)) {
        return -1;
    }
    usleep(500);
    stamp((void *)&given);
    atomic_store(&word, 1);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    stay_busy(NULL);
    pthread_join(thread, NULL);
    return taken - given;
}

/* ---- Copies ---- */

static char *from, *to;
static size_t nbytes;

static int
blocks(int mebibytes)
{
    size_t wanted = (size_t)mebibytes << 20;
    if (nbytes != wanted) {
        free(from);
        free(to);
        from = malloc(wanted);
        to = malloc(wanted);
        if (from == NULL || to == NULL) {
            return 0;
        }
        nbytes = wanted;
        memset(from, 1, nbytes);
        memset(to, 2, nbytes);
    }
    return 1;
}

double
plain_copy(int mebibytes)
{
    if (!blocks(mebibytes)) {
        return -1;
    }
    double start = now();
    memcpy(to, from, nbytes);
    __asm__ volatile("" : : "r"(to) : "memory");
    return now() - start;
}

double
queued_copy(int mebibytes)
{
    if (!blocks(mebibytes)) {
        return -1;
    }
    double start = now();
    int failed = cpu->memory_copy(cpu, 0, first, to, from, nbytes);
    failed |= cpu->stream_synchronize(cpu, 0, first, NULL);
    return failed ? -1 : now() - start;
}
