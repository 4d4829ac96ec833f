/* CHECK and what goes with it: the engine under test, the counts of what held
 * and what did not, and time and threads for the tests. */
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

/* Count it, and report what is wrong; returns right. */
bool check(bool right, const char *what, const char *file, int line);
void check_status(ps_status got, ps_status want, const char *what,
                  const char *file, int line);

/* Monotonic nanoseconds. */
int64_t now(void);
void pause_ms(int milliseconds);

/* Run body in eight threads, each with its number, to their end. */
void run_threads(void *(*body)(void *));

#endif
