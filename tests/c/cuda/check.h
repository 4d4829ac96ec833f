/* CHECK, the counts of passed and failed checks, the backend under test, and a
 * function that runs a test in its own process. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../../../csrc/backends/backends.h"

#define MIB     ((size_t)1 << 20)
#define A_WHILE UINT64_C(200000000) /* cycles; about 0.1 s */

#define CHECK(condition) check(condition, #condition, __FILE__, __LINE__)
#define CHECK_STATUS(call, want) \
    check_status(call, want, #call, __FILE__, __LINE__)
#define OK(call) CHECK_STATUS(call, PS_SUCCESS)

extern const struct ps_backend *const gpu;
extern int devices; /* the number of devices, as the backend counts them */
extern atomic_int passed, failed;

void check(bool right, const char *what, const char *file, int line);
void check_status(ps_status got, ps_status want, const char *what,
                  const char *file, int line);

/* Run a test in a child process, and add its counts to this process's. */
void run(const char *name, void (*test)(void));

int current_device(void);

/* Returns whether this process has a primary context on the device. */
int is_used(int device);

/* Returns the NVML function with this name.  *handle becomes NVML's handle for
 * the device, which the caller can pass to the function. */
void *nvml_find(const char *name, int device, void **handle);

/* Returns how many bytes of the device's memory all processes together use. */
long long memory_in_use(int device);

/* A host function that adds one to the int that it is given. */
void count(void *argument);

#endif
