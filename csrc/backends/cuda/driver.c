/* Looks up the functions of libcuda and NVML, counts devices, and handles
 * contexts.
 *
 * The rule: libcuda stays loaded once it was found.  NVML is loaded only while
 * devices are being counted. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../backends.h"
#include "driver.h"

#define NVML_FUNCTIONS(X)                                           \
    X(init, "nvmlInit_v2", (void))                                  \
    X(shutdown, "nvmlShutdown", (void))                             \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *))                 \
    X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned, void **)) \
    X(uuid, "nvmlDeviceGetUUID", (void *, char *, unsigned))

/* Functions of NVML for MIG.  The members are NULL if this version of NVML
 * lacks them. */
#define NVML_EXTRAS(X)                                                    \
    X(mig_mode, "nvmlDeviceGetMigMode", (void *, unsigned *, unsigned *)) \
    X(mig_most, "nvmlDeviceGetMaxMigDeviceCount", (void *, unsigned *))   \
    X(mig_device, "nvmlDeviceGetMigDeviceHandleByIndex",                  \
      (void *, unsigned, void **))

struct nvml {
    NVML_FUNCTIONS(CUDA_FUNCTION_MEMBER)
    NVML_EXTRAS(CUDA_FUNCTION_MEMBER)
};

#define LOOK_UP_EXTRA(member, name, parameters) \
    *(void **)&table->member = dlsym(library, name);

#define LOOK_UP(member, name, parameters)   \
    LOOK_UP_EXTRA(member, name, parameters) \
    complete &= table->member != NULL;

struct cuda_driver cuda_driver;

static char driver_failure[80];

static void
driver_look_up(void)
{
    struct cuda_driver *table = &cuda_driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int complete = 1, version = 0;

    if (library == NULL) {
        snprintf(driver_failure, sizeof(driver_failure),
                 "no NVIDIA driver was found (libcuda.so.1)");
        return;
    }
    CUDA_DRIVER_FUNCTIONS(LOOK_UP)
    CUDA_DRIVER_EXTRAS(LOOK_UP_EXTRA)
    if (table->event_elapsed == NULL) {
        /* Drivers before CUDA 12.8 have only this function.  It is slower than
         * the newer one, because it first queries both events. */
        LOOK_UP(event_elapsed, "cuEventElapsedTime", )
    }
    if (table->version != NULL) {
        table->version(&version);
    }
    if (!complete || version / 1000 < CUDA_VERSION / 1000) {
        snprintf(driver_failure, sizeof(driver_failure),
                 "the driver supports CUDA %d.%d, this build needs %d.0",
                 version / 1000, version % 1000 / 10, CUDA_VERSION / 1000);
    }
}

ps_status
cuda_driver_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, driver_look_up);
    return driver_failure[0] == '\0' ? PS_SUCCESS
                                     : PS_ERROR_INSUFFICIENT_DRIVER;
}

const char *
cuda_driver_failure(void)
{
    return driver_failure;
}

static int
find_uuid(const void *devices, int total, const char *text, size_t length)
{
    const struct nvml *nvml = devices;
    int found = -1;

    for (int i = 0; i < total; i++) {
        void *device;
        char uuid[96];
        if (nvml->device(i, &device) != 0 ||
            nvml->uuid(device, uuid, sizeof(uuid)) != 0 ||
            strncmp(text, uuid, length) != 0) {
            continue;
        }
        if (found >= 0) {
            return -1;
        }
        found = i;
    }
    return found;
}

/* Returns the number of usable MIG devices of a GPU; -1 if MIG is off. */
static int
mig_count(const struct nvml *nvml, int index)
{
    unsigned enabled, pending, most;
    void *device, *part;
    int count = 0;

    if (nvml->mig_mode == NULL || nvml->mig_most == NULL ||
        nvml->mig_device == NULL || nvml->device(index, &device) != 0 ||
        nvml->mig_mode(device, &enabled, &pending) != 0 || !enabled ||
        nvml->mig_most(device, &most) != 0) {
        return -1;
    }
    for (unsigned i = 0; i < most; i++) {
        count += nvml->mig_device(device, i, &part) == 0;
    }
    return count;
}

/* Returns the number of GPUs that the driver will show to this process; -1 if
 * only the driver can tell.  According to NVIDIA's MIG guide, a process that
 * can see MIG devices sees exactly one of them and nothing else.  A GPU in MIG
 * mode that has no MIG devices is not shown. */
static int
visible_count(const struct nvml *nvml, int total)
{
    uint64_t seen[MOST_VISIBLE / 64];
    int count = 0, visible = visible_devices(total, find_uuid, nvml, seen);

    if (visible <= 0) {
        return visible;
    }
    for (int i = 0; i < total; i++) {
        if (!(seen[i / 64] & UINT64_C(1) << i % 64)) {
            continue;
        }
        int parts = mig_count(nvml, i);
        if (parts > 0) {
            return 1;
        }
        count += parts < 0;
    }
    return count;
}

int
cuda_driver_count(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    struct nvml nvml, *table = &nvml;
    int complete = 1, count = -1;
    unsigned total;

    if (library == NULL) {
        return -1;
    }
    NVML_FUNCTIONS(LOOK_UP)
    NVML_EXTRAS(LOOK_UP_EXTRA)
    if (complete && nvml.init() == 0) {
        if (nvml.count(&total) == 0) {
            count = visible_count(&nvml, total < CUDA_DEVICES ? (int)total
                                                              : CUDA_DEVICES);
        }
        nvml.shutdown();
    }
    dlclose(library);
    return count;
}

ps_status
cuda_context_retain(int device, CUcontext *context)
{
    static _Atomic(CUcontext) retained[CUDA_DEVICES];

    *context = atomic_load(&retained[device]);
    if (*context != NULL) {
        return PS_SUCCESS;
    }
    /* Several threads may each retain the context; that is harmless. */
    ps_status status = cuda_driver.init(0);
    if (status == PS_SUCCESS) {
        status = cuda_driver.context_retain(context, device);
    }
    if (status == PS_SUCCESS) {
        atomic_store(&retained[device], *context);
    }
    return status;
}

struct cuda_scope
cuda_scope_enter(int device)
{
    struct cuda_scope scope = {0};
    CUcontext context;

    scope.status = cuda_context_retain(device, &context);
    if (scope.status == PS_SUCCESS) {
        scope.status = cuda_driver.context_get(&scope.previous);
    }
    if (scope.status != PS_SUCCESS || scope.previous == context) {
        return scope;
    }
    scope.status = cuda_driver.context_set(context);
    /* If the thread had no context and the device is 0, the context stays
     * current after the scope.  This is harmless, because cudart regards
     * device 0 as the current device of a thread that has no context. */
    scope.switched =
        scope.status == PS_SUCCESS && (scope.previous != NULL || device != 0);
    return scope;
}
