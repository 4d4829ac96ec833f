/* The counts of checks, and helpers that the tests share; see check.h. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { THREADS = 8 };

const struct ps_backend *cpu;
atomic_int passed, failed;

bool
check(bool right, const char *what, const char *file, int line)
{
    atomic_fetch_add(right ? &passed : &failed, 1);
    if (!right) {
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    }
    return right;
}

void
check_status(ps_status got, ps_status want, const char *what, const char *file,
             int line)
{
    if (!check(got == want, what, file, line)) {
        fprintf(stderr, "    status %d, expected %d\n", got, want);
    }
}

int64_t
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void
pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000L}, NULL);
}

void
run_threads(void *(*body)(void *))
{
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, body, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}
