/* Devices: a machine without devices, the number of visible devices, their
 * properties, and which device is current or has a context. */
#include "check.h"
#include "tests.h"

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/backends/cuda/driver.h"

void
test_absent(void)
{
    int count = -7, runtime = -1, driver = -1;
    ps_status status = gpu->device_count(gpu, &count);
    printf("  %s: %s\n", gpu->status_name(gpu, status),
           gpu->status_text(gpu, status));
    CHECK(status == PS_ERROR_INSUFFICIENT_DRIVER ||
          status == PS_ERROR_NO_DEVICE);
    CHECK(count == -7);
    CHECK_STATUS(gpu->device_count(gpu, &count), status);
    OK(gpu->versions(gpu, &runtime, &driver));
    CHECK(runtime == CUDART_VERSION);
    if (dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
        CHECK(status == PS_ERROR_INSUFFICIENT_DRIVER);
        CHECK(strstr(gpu->status_text(gpu, status), "libcuda.so.1") != NULL);
        CHECK(driver == 0);
    }
}

void
test_status_text(void)
{
    CHECK(strcmp(gpu->status_name(gpu, PS_ERROR_INVALID_DEVICE),
                 "cudaErrorInvalidDevice") == 0);
    CHECK(strcmp(gpu->status_text(gpu, PS_ERROR_INVALID_DEVICE),
                 "invalid device ordinal") == 0);
    CHECK(strcmp(gpu->status_name(gpu, PS_ERROR_NOT_READY),
                 "cudaErrorNotReady") == 0);
    CHECK(gpu->status_text(gpu, PS_ERROR_INSUFFICIENT_DRIVER) != NULL);
    CHECK(gpu->status_name(gpu, -1) != NULL);
    CHECK(gpu->status_text(gpu, 123456) != NULL);
}

static void
use_after_fork(void)
{
    ps_handle stream = 0;
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    OK(gpu->stream_synchronize(gpu, 0, stream, NULL));
}

void
test_count(void)
{
    int count = 0, runtime, driver;
    OK(gpu->device_count(gpu, &count));
    CHECK(count == devices);
    OK(gpu->versions(gpu, &runtime, &driver));
    printf("  runtime %d, driver %d\n", runtime, driver);
    CHECK(runtime == CUDART_VERSION && driver >= runtime / 1000 * 1000);
    CHECK(current_device() == 0);
    CHECK(cuda_driver.context_get(&(CUcontext){NULL}) ==
          CUDA_ERROR_NOT_INITIALIZED);
    run(" in a forked child", use_after_fork);
    use_after_fork();
}

static char visible[256];

static void
test_visible(void)
{
    int ours = 0, theirs = 0;
    ps_status status;
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    status = gpu->device_count(gpu, &ours);
    CHECK(status == PS_SUCCESS || status == PS_ERROR_NO_DEVICE);
    if (cudaGetDeviceCount(&theirs) != cudaSuccess) {
        theirs = 0;
    }
    printf("  \"%s\": %d, the driver %d\n", visible, ours, theirs);
    CHECK(ours == theirs);
}

void
test_visible_all(void)
{
    /* %1$s is the UUID of the last device. */
    char lists[] = ";-1;0;0,0;0,-1;-1,0;99;0,99;x;0,x; 0;0 ;+0;00;0x0;0,,0;,0;"
                   "0,;0,1;1,0;1;0,1,0;1,1;GPU-;GPU-nonsense;MIG-GPU-x/0/0;"
                   "%1$s;%1$.12s;0,%1$s;%1$s,0;%1$s,%1$s;%1$s,GPU-x";
    int (*uuid_of)(void *, char *, unsigned);
    char uuid[96], *rest = lists, *list;
    void *handle;
    *(void **)&uuid_of = nvml_find("nvmlDeviceGetUUID", devices - 1, &handle);
    CHECK(uuid_of(handle, uuid, sizeof(uuid)) == 0);
    while ((list = strsep(&rest, ";")) != NULL) {
        snprintf(visible, sizeof(visible), list, uuid);
        run(" visible", test_visible);
    }
}

void
test_properties(void)
{
    struct ps_device_properties properties;
    for (int device = 0; device < devices; device++) {
        int accessible = -1;
        OK(gpu->device_properties(gpu, device, &properties));
        printf("  %d: %s, %d.%d, %llu MiB\n", device, properties.name,
               properties.major, properties.minor,
               (unsigned long long)(properties.total_memory / MIB));
        CHECK(properties.name[0] != '\0' && properties.major > 0);
        CHECK(properties.total_memory > 0 && properties.warp_size == 32);
        CHECK(properties.multi_processor_count > 0);
        OK(gpu->peer_accessible(gpu, device, 0, &accessible));
        CHECK(accessible == 0 || (accessible == 1 && device != 0));
    }
    for (int device = 0; device < devices; device++) {
        CHECK(!is_used(device));
    }
}

void
test_first_device(void)
{
    int device = 0;
    exercise(&device);
    for (int other = 1; other < devices; other++) {
        CHECK(!is_used(other));
    }
}

/* Create a context on the device.  Returns how many bytes are then in use on
 * device 0, because a context uses a little memory on every device. */
static long long
memory_beside_context(int device)
{
    CUcontext context;
    OK(cuda_context_retain(device, &context));
    return memory_in_use(0);
}

void
test_last_device(void)
{
    int device = devices - 1;
    long long before = memory_beside_context(device);
    pthread_t thread;
    exercise(&device);
    pthread_create(&thread, NULL, exercise, &device);
    pthread_join(thread, NULL);
    CHECK(is_used(device));
    CHECK(!is_used(0));
    printf("  memory in use on device 0: %lld bytes more\n",
           memory_in_use(0) - before);
    CHECK(memory_in_use(0) <= before);
    OK(gpu->device_set(gpu, 0));
    exercise(&device);
    OK(gpu->device_set(gpu, device));
    device = 0;
    exercise(&device);
}

static void *
set_and_restore(void *argument)
{
    int device = devices - 1, *used = argument;
    CHECK(current_device() == 0);
    OK(gpu->device_set(gpu, device));
    CHECK(current_device() == device);
    OK(gpu->stream_synchronize(gpu, device, 0, NULL));
    OK(gpu->device_restore(gpu, 0));
    CHECK(current_device() == 0);
    CHECK(is_used(0) == *used);
    return NULL;
}

void
test_set_and_restore(void)
{
    long long before = memory_beside_context(devices - 1);
    pthread_t thread;
    int used = 0, runtime = -1;
    set_and_restore(&used);
    set_and_restore(&used);
    pthread_create(&thread, NULL, set_and_restore, &used);
    pthread_join(thread, NULL);
    CHECK(memory_in_use(0) <= before);
    CHECK(cudaGetDevice(&runtime) == cudaSuccess && runtime == 0);
    CHECK(!is_used(0));
    OK(gpu->device_set(gpu, 0));
    used = 1;
    set_and_restore(&used);
    OK(gpu->device_set(gpu, devices - 1));
    CHECK(cudaGetDevice(&runtime) == cudaSuccess && runtime == devices - 1);
    OK(gpu->device_restore(gpu, devices - 1));
    CHECK(current_device() == devices - 1);
}
