/* The counts of checks, and the tests' helpers. */
#include "check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../csrc/backends/cuda/driver.h"

enum { TIME_OUT = 120 }; /* seconds for one test */

const struct ps_backend *const gpu = &ps_cuda_backend;
int devices;
atomic_int passed, failed;

void
check(bool right, const char *what, const char *file, int line)
{
    atomic_fetch_add(right ? &passed : &failed, 1);
    printf("  %s %s:%d: %s\n", right ? "ok  " : "FAIL", file, line, what);
}

void
check_status(ps_status got, ps_status want, const char *what, const char *file,
             int line)
{
    check(got == want, what, file, line);
    if (got != want) {
        printf("    status %s\n", gpu->status_name(gpu, got));
    }
}

void
run(const char *name, void (*test)(void))
{
    int counts[2] = {0, 1}, pipes[2];
    pid_t child;
    printf("%s\n", name);
    if (pipe(pipes) != 0 || (child = fork()) < 0) {
        perror("cuda_test");
        exit(2);
    }
    if (child == 0) {
        alarm(TIME_OUT);
        passed = failed = 0;
        test();
        counts[0] = passed;
        counts[1] = failed;
        _exit(write(pipes[1], counts, sizeof(counts)) != sizeof(counts));
    }
    close(pipes[1]);
    if (read(pipes[0], counts, sizeof(counts)) != sizeof(counts)) {
        printf("  FAIL the child died\n");
    }
    close(pipes[0]);
    waitpid(child, NULL, 0);
    passed += counts[0];
    failed += counts[1];
}

int
is_used(int device)
{
    unsigned flags;
    int active = -1;
    cuda_driver.context_state(device, &flags, &active);
    return active;
}

void *
nvml_find(const char *name, int device, void **handle)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = NULL;
    int (*get)(unsigned, void **) = NULL;
    if (library != NULL) {
        *(void **)&init = dlsym(library, "nvmlInit_v2");
        *(void **)&get = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    }
    if (init == NULL || init() != 0 || get(device, handle) != 0) {
        printf("  FAIL NVML has no device %d\n", device);
        exit(2);
    }
    return dlsym(library, name);
}

long long
memory_in_use(int device)
{
    int (*info)(void *, unsigned long long[3]);
    unsigned long long memory[3]; /* total, free, used */
    void *handle;
    *(void **)&info = nvml_find("nvmlDeviceGetMemoryInfo", device, &handle);
    return info(handle, memory) == 0 ? (long long)memory[2] : -1;
}

int
current_device(void)
{
    int device = -1;
    gpu->device_current(gpu, &device);
    return device;
}

void
count(void *argument)
{
    ++*(int *)argument;
}
