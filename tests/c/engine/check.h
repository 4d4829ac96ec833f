/* CHECK, the counts of passed and failed checks, the engine under test, and
 * helpers for time and threads. */
#ifndef ENGINE_CHECK_H
#define ENGINE_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../../csrc/backends/backends.h"

#define CHECK(condition) check(condition, #condition, __FILE__, __LINE__)
#define CHECK_STATUS(call, want) \
    check_status(call, want, #call, __FILE__, __LINE__)
#define OK(call) CHECK_STATUS(call, PS_SUCCESS)

#define LIMIT(nanoseconds) (&(struct ps_limit){.timeout_ns = nanoseconds})

extern const struct ps_backend *cpu; /* two devices */
extern atomic_int passed, failed;

/* Count the check as passed or failed, and print it if it has failed.  Returns
 * `right`. */
bool check(bool right, const char *what, const char *file, int line);
void check_status(ps_status got, ps_status want, const char *what,
                  const char *file, int line);

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. */
int64_t now(void);
void pause_ms(int milliseconds);

/* Run body on eight threads, and wait until all have ended.  Its argument is
 * the number of the thread, 0 to 7. */
void run_threads(void *(*body)(void *));

#endif
