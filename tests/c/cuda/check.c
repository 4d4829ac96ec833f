/* The CUDA backend through its table, on whatever GPUs there are; without any,
 * the behaviour without one.
 *
 * One rule: this process only counts devices.  Each test runs in a child of
 * its own, which so begins with none of them used. */
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../csrc/backends/backends.h"
#include "../../csrc/backends/cuda_driver.h"

#define MIB      ((size_t)1 << 20)
#define A_WHILE  UINT64_C(200000000) /* cycles; about 0.1 s */
#define TIME_OUT 120                 /* seconds for one test */

static const struct ps_backend *const gpu = &ps_cuda_backend;
static int devices;
static atomic_int passed, failed;

static void
check(bool right, const char *what, int line)
{
    atomic_fetch_add(right ? &passed : &failed, 1);
    printf("  %s %d: %s\n", right ? "ok  " : "FAIL", line, what);
}

static void
check_status(ps_status got, ps_status want, const char *what, int line)
{
    check(got == want, what, line);
    if (got != want) {
        printf("    status %s\n", gpu->status_name(gpu, got));
    }
}

#define CHECK(condition)         check(condition, #condition, __LINE__)
#define CHECK_STATUS(call, want) check_status(call, want, #call, __LINE__)
#define OK(call)                 CHECK_STATUS(call, PS_SUCCESS)

/* Run a test in a child and add up what it counted. */
static void
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

/* Whether this process has a primary context on the device. */
static int
is_used(int device)
{
    unsigned flags;
    int active = -1;
    cuda_driver.context_state(device, &flags, &active);
    return active;
}

/* A function of NVML's and a device to call it with. */
static void *
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

/* Bytes in use on a device of the machine, by any process. */
static long long
memory_in_use(int device)
{
    int (*info)(void *, unsigned long long[3]);
    unsigned long long memory[3]; /* total, free, used */
    void *handle;
    *(void **)&info = nvml_find("nvmlDeviceGetMemoryInfo", device, &handle);
    return info(handle, memory) == 0 ? (long long)memory[2] : -1;
}

static int
current_device(void)
{
    int device = -1;
    gpu->device_current(gpu, &device);
    return device;
}

static void
count(void *argument)
{
    ++*(int *)argument;
}

static void
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

static void
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
    OK(gpu->stream_synchronize(gpu, 0, stream));
}

static void
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

static void
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

static void
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

static void
exercise_streams(int device)
{
    int least = -9, greatest = 9, answer = -1;
    ps_handle streams[8], event;
    OK(gpu->stream_priority_range(gpu, device, &least, &greatest));
    CHECK(least == 0 && greatest <= 0);
    for (int i = 0; i < 8; i++) {
        OK(gpu->stream_create(gpu, device, i % 2 ? greatest : least,
                              &streams[i]));
    }
    OK(gpu->stream_device(gpu, streams[0], &answer));
    CHECK(answer == device);
    OK(gpu->stream_device(gpu, 2, &answer));
    CHECK(answer == current_device());
    OK(gpu->event_create(gpu, device, 0, &event));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->stream_wait_event(gpu, device, streams[0], event));
    OK(gpu->sleep(gpu, device, streams[0], A_WHILE));
    OK(gpu->event_record(gpu, device, event, streams[0]));
    CHECK_STATUS(gpu->event_query(gpu, device, event), PS_ERROR_NOT_READY);
    CHECK_STATUS(gpu->stream_query(gpu, device, streams[0]),
                 PS_ERROR_NOT_READY);
    OK(gpu->stream_query(gpu, device, streams[1]));
    OK(gpu->stream_wait_event(gpu, device, streams[1], event));
    CHECK_STATUS(gpu->stream_query(gpu, device, streams[1]),
                 PS_ERROR_NOT_READY);
    OK(gpu->event_synchronize(gpu, device, event));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->stream_synchronize(gpu, device, streams[1]));
    /* Destroyed with work queued, which still runs. */
    OK(gpu->sleep(gpu, device, streams[2], A_WHILE));
    OK(gpu->event_record(gpu, device, event, streams[2]));
    for (int i = 0; i < 8; i++) {
        OK(gpu->stream_destroy(gpu, device, streams[i]));
    }
    CHECK_STATUS(gpu->event_query(gpu, device, event), PS_ERROR_NOT_READY);
    OK(gpu->device_synchronize(gpu, device));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->event_destroy(gpu, device, event));
    /* The default stream. */
    OK(gpu->stream_query(gpu, device, 0));
    OK(gpu->sleep(gpu, device, 0, A_WHILE));
    CHECK_STATUS(gpu->stream_query(gpu, device, 0), PS_ERROR_NOT_READY);
    OK(gpu->stream_synchronize(gpu, device, 0));
}

static void
exercise_events(int device)
{
    const unsigned never = PS_EVENT_TIMING | PS_EVENT_INTERPROCESS;
    ps_handle start, end, stream;
    float elapsed = -1;
    OK(gpu->stream_create(gpu, device, 0, &stream));
    for (unsigned flags = 0; flags < 8; flags++) {
        ps_handle event;
        if ((flags & never) == never) {
            continue;
        }
        OK(gpu->event_create(gpu, device, flags, &event));
        OK(gpu->event_record(gpu, device, event, stream));
        OK(gpu->event_synchronize(gpu, device, event));
        OK(gpu->event_destroy(gpu, device, event));
    }
    OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &start));
    OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &end));
    CHECK_STATUS(gpu->event_elapsed(gpu, device, start, end, &elapsed),
                 PS_ERROR_INVALID_HANDLE);
    OK(gpu->event_record(gpu, device, start, stream));
    OK(gpu->sleep(gpu, device, stream, A_WHILE));
    OK(gpu->event_record(gpu, device, end, stream));
    CHECK_STATUS(gpu->event_elapsed(gpu, device, start, end, &elapsed),
                 PS_ERROR_NOT_READY);
    CHECK(elapsed == -1);
    OK(gpu->event_synchronize(gpu, device, end));
    OK(gpu->event_elapsed(gpu, device, start, end, &elapsed));
    printf("  %.1f million cycles took %.3f ms\n", A_WHILE * 1e-6, elapsed);
    CHECK(elapsed > 20 && elapsed < 2000);
    OK(gpu->event_record(gpu, device, end, 0));
    OK(gpu->event_synchronize(gpu, device, end));
    OK(gpu->event_destroy(gpu, device, start));
    OK(gpu->event_destroy(gpu, device, end));
    OK(gpu->stream_destroy(gpu, device, stream));
}

static void
exercise_memory(int device)
{
    size_t nbytes = 3 * MIB + 5;
    unsigned char *pinned = NULL, *pageable = calloc(1, nbytes);
    uint64_t unused = 0, total = 0;
    int ran = 0;
    void *memory = NULL, *none = pageable;
    ps_handle stream;
    OK(gpu->stream_create(gpu, device, 0, &stream));
    OK(gpu->pinned_allocate(gpu, device, nbytes, (void **)&pinned));
    OK(gpu->memory_allocate(gpu, device, stream, nbytes, &memory));
    CHECK((uintptr_t)memory % 256 == 0);
    for (size_t i = 0; i < nbytes; i++) {
        pinned[i] = (unsigned char)(i * 31 >> 3);
    }
    OK(gpu->memory_copy(gpu, device, stream, memory, pinned, nbytes));
    OK(gpu->memory_copy(gpu, device, stream, pageable, memory, nbytes));
    OK(gpu->memory_fill(gpu, device, stream, memory, 0xa5, MIB));
    OK(gpu->host_function(gpu, device, stream, count, &ran));
    OK(gpu->memory_fill(gpu, device, stream, pinned, 0x5a, 7));
    OK(gpu->stream_synchronize(gpu, device, stream));
    CHECK(ran == 1);
    CHECK(memcmp(pinned, "ZZZZZZZ", 7) == 0);
    CHECK(memcmp(pinned + 7, pageable + 7, nbytes - 7) == 0);
    OK(gpu->memory_copy(gpu, device, stream, pageable, memory, nbytes));
    OK(gpu->stream_synchronize(gpu, device, stream));
    CHECK(pageable[0] == 0xa5 && pageable[MIB - 1] == 0xa5);
    CHECK(pageable[MIB] == pinned[MIB]);
    OK(gpu->memory_free(gpu, device, stream, memory));
    OK(gpu->pinned_free(gpu, device, pinned));
    OK(gpu->memory_info(gpu, device, &unused, &total));
    CHECK(0 < unused && unused < total);
    CHECK_STATUS(
        gpu->memory_allocate(gpu, device, stream, (size_t)1 << 50, &none),
        PS_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(gpu->pinned_allocate(gpu, device, (size_t)1 << 50, &none),
                 PS_ERROR_OUT_OF_MEMORY);
    CHECK(none == pageable);
    OK(gpu->memory_allocate(gpu, device, 0, 1, &memory));
    OK(gpu->memory_free(gpu, device, 0, memory));
    OK(gpu->stream_destroy(gpu, device, stream));
    OK(gpu->device_synchronize(gpu, device));
    free(pageable);
}

/* Everything on one device, with another one current or none. */
static void *
exercise(void *argument)
{
    int device = *(int *)argument, current = current_device();
    CUcontext before = NULL, after = NULL;
    cuda_driver.context_get(&before);
    exercise_streams(device);
    exercise_events(device);
    exercise_memory(device);
    CHECK(current_device() == current);
    /* A thread without a context is on device 0, and may be given it. */
    cuda_driver.context_get(&after);
    CHECK(before == after || (before == NULL && device == 0));
    return NULL;
}

static void
test_first_device(void)
{
    int device = 0;
    exercise(&device);
    for (int other = 1; other < devices; other++) {
        CHECK(!is_used(other));
    }
}

/* What is in use on device 0 once the driver has made a context on another,
 * which takes a little of every device. */
static long long
memory_beside_context(int device)
{
    CUcontext context;
    OK(cuda_context_retain(device, &context));
    return memory_in_use(0);
}

static void
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
    OK(gpu->stream_synchronize(gpu, device, 0));
    OK(gpu->device_restore(gpu, 0));
    CHECK(current_device() == 0);
    CHECK(is_used(0) == *used);
    return NULL;
}

static void
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

/* What is made lazily, made by several threads at once. */
static void *
first_use(void *argument)
{
    ps_handle stream;
    void *memory;
    (void)argument;
    for (int device = 0; device < devices; device++) {
        OK(gpu->stream_create(gpu, device, 0, &stream));
        OK(gpu->memory_allocate(gpu, device, stream, MIB, &memory));
        OK(gpu->sleep(gpu, device, stream, 1000));
        OK(gpu->memory_free(gpu, device, stream, memory));
        OK(gpu->stream_synchronize(gpu, device, stream));
        OK(gpu->stream_destroy(gpu, device, stream));
    }
    return NULL;
}

static void
test_threads(void)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        pthread_create(&threads[i], NULL, first_use, NULL);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void
test_across(void)
{
    int last = devices - 1;
    size_t nbytes = 512 * MIB;
    unsigned char *host = NULL;
    void *here, *there;
    ps_handle streams[2], ends[2], event;
    OK(gpu->stream_create(gpu, 0, 0, &streams[0]));
    OK(gpu->stream_create(gpu, last, 0, &streams[1]));
    OK(gpu->event_create(gpu, 0, 0, &event));
    OK(gpu->memory_allocate(gpu, 0, streams[0], nbytes, &here));
    OK(gpu->memory_allocate(gpu, last, streams[1], nbytes, &there));
    OK(gpu->pinned_allocate(gpu, 0, nbytes, (void **)&host));
    OK(gpu->memory_fill(gpu, last, streams[1], there, 1, nbytes));
    OK(gpu->stream_synchronize(gpu, last, streams[1]));
    OK(gpu->sleep(gpu, 0, streams[0], A_WHILE));
    OK(gpu->memory_fill(gpu, 0, streams[0], here, 77, nbytes));
    OK(gpu->event_record(gpu, 0, event, streams[0]));
    OK(gpu->stream_wait_event(gpu, last, streams[1], event));
    OK(gpu->memory_copy(gpu, last, streams[1], there, here, nbytes));
    OK(gpu->memory_copy(gpu, last, streams[1], host, there, nbytes));
    OK(gpu->stream_synchronize(gpu, last, streams[1]));
    CHECK(host[0] == 77 && memcmp(host, host + 1, nbytes - 1) == 0);
    for (int i = 0; i < 2; i++) {
        int device = i ? last : 0;
        float elapsed = 0;
        for (int n = 0; n < 2; n++) {
            OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &ends[n]));
            OK(gpu->event_record(gpu, device, ends[n], streams[i]));
            OK(gpu->memory_copy(gpu, device, streams[i], there, here, nbytes));
        }
        OK(gpu->stream_synchronize(gpu, device, streams[i]));
        OK(gpu->event_elapsed(gpu, device, ends[0], ends[1], &elapsed));
        printf("  0 to %d, on a stream of %d: %.1f GB/s\n", last, device,
               (double)nbytes / elapsed * 1e-6);
    }
    OK(gpu->memory_free(gpu, 0, streams[0], here));
    OK(gpu->memory_free(gpu, last, streams[1], there));
    OK(gpu->device_synchronize(gpu, 0));
    OK(gpu->device_synchronize(gpu, last));
    OK(gpu->pinned_free(gpu, 0, host));
}

static void
test_capture(void)
{
    ps_handle stream;
    cudaGraph_t graph;
    int capturing = -1;
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    OK(gpu->sleep(gpu, 0, stream, 1));
    CHECK(cudaStreamBeginCapture((cudaStream_t)stream,
                                 cudaStreamCaptureModeGlobal) == cudaSuccess);
    OK(gpu->stream_capturing(gpu, 0, stream, &capturing));
    CHECK(capturing == 1);
    OK(gpu->sleep(gpu, 0, stream, 1));
    CHECK(cudaStreamEndCapture((cudaStream_t)stream, &graph) == cudaSuccess);
    OK(gpu->stream_capturing(gpu, 0, stream, &capturing));
    CHECK(capturing == 0);
    OK(gpu->stream_capturing(gpu, 0, 0, &capturing));
    CHECK(capturing == 0);
}

int
main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu->device_count(gpu, &devices);
    run("status text", test_status_text);
    if (devices == 0) {
        run("no GPU", test_absent);
        printf("no GPU here: only the behaviour without one was tested\n");
    }
    else {
        run("count", test_count);
        run("CUDA_VISIBLE_DEVICES", test_visible_all);
        run("properties", test_properties);
        run("first device", test_first_device);
        run("threads", test_threads);
        run("capture", test_capture);
        if (devices > 1) {
            run("last device", test_last_device);
            run("set and restore", test_set_and_restore);
            run("across devices", test_across);
        }
        else {
            printf("one GPU here: nothing across devices was tested\n");
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
