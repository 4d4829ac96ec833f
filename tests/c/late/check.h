/* CHECK, the number of failed checks, pauses, and the backend under test, for
 * test programs that consist of a single file. */
#ifndef LATE_CHECK_H
#define LATE_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "../../../csrc/backends/backends.h"

#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call)         CHECK((call) == PS_SUCCESS)

static const struct ps_backend *const gpu = &ps_cuda_backend;
static atomic_int wrong;

static inline void
check(bool right, const char *what, int line)
{
    if (!right) {
        printf("line %d: %s\n", line, what);
        wrong++;
    }
}

static inline void
pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000L * milliseconds}, NULL);
}

/* Call this at the end of main: prints the number of checks that failed, and
 * returns the exit status. */
static inline int
report(void)
{
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

#endif
