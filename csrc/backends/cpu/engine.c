/* The engine as a whole: its beginning and end, devices, status texts, and
 * forks.  In a forked child the engine starts empty.  The parent's handles are
 * not valid there, and the work that the parent has queued does not run.  The
 * child leaks the memory of that work. */
#include "shared.h"
#include "../backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_WORKERS = 2, MOST_WORKERS = 8 };

/* The list of all engines, the newest first, and its lock.  A thread that
 * takes both this lock and an engine's lock takes this one first. */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cpu_engine *engines;

/* ---- Members ---- */

#define STATUS(name, text)           \
    {                                \
        PS_##name, "PS_" #name, text \
    }

static const struct {
    ps_status status;
    const char *name;
    const char *text;
} statuses[] = {
    STATUS(SUCCESS, "no error"),
    STATUS(ERROR_INVALID_VALUE, "invalid argument"),
    STATUS(ERROR_OUT_OF_MEMORY, "out of memory"),
    STATUS(ERROR_NOT_INITIALIZED, "initialization error"),
    STATUS(ERROR_SHUTTING_DOWN, "the engine is shutting down"),
    STATUS(ERROR_INSUFFICIENT_DRIVER, "the driver is too old"),
    STATUS(ERROR_NO_DEVICE, "CUDA_VISIBLE_DEVICES hides all devices"),
    STATUS(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    STATUS(ERROR_OPERATING_SYSTEM, "a call of the operating system failed"),
    STATUS(ERROR_INVALID_HANDLE, "invalid resource handle"),
    STATUS(ERROR_NOT_READY, "device not ready"),
    STATUS(ERROR_CONTEXT_DESTROYED,
           "the process of the record ended before its work"),
    STATUS(ERROR_ALREADY_PINNED,
           "part or all of the requested memory range is already mapped"),
    STATUS(ERROR_NOT_PERMITTED, "operation not permitted"),
    STATUS(ERROR_NOT_SUPPORTED, "operation not supported"),
    STATUS(ERROR_CAPTURE_UNSUPPORTED,
           "operation not permitted when stream is capturing"),
    STATUS(ERROR_CAPTURE_INVALIDATED,
           "operation failed due to a previous error during capture"),
    STATUS(ERROR_CAPTURE_MERGE,
           "operation would result in a merge of separate capture sequences"),
    STATUS(ERROR_CAPTURE_UNMATCHED,
           "capture was not ended in the same stream as it began"),
    STATUS(ERROR_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    STATUS(ERROR_CAPTURE_ISOLATION,
           "dependency created on uncaptured work in another stream"),
    STATUS(ERROR_CAPTURE_IMPLICIT,
           "operation would make the legacy stream depend on a capturing "
           "blocking stream"),
    STATUS(ERROR_CAPTURED_EVENT,
           "operation not permitted on an event last recorded in a capturing "
           "stream"),
    STATUS(ERROR_CAPTURE_WRONG_THREAD,
           "attempt to terminate a thread-local capture sequence from another "
           "thread"),
    STATUS(ERROR_GRAPH_UPDATE,
           "the graph update was not performed because it included changes "
           "which violated constraints specific to instantiated graph update"),
    STATUS(ERROR_INVALID_RESOURCE, "invalid resource configuration"),
    /* CUDA's names and texts for failures that tests inject. */
    {700, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    STATUS(ERROR_UNKNOWN, "unknown error"),
};

enum { STATUSES = sizeof(statuses) / sizeof(statuses[0]) };

static int
status_index(ps_status status)
{
    int i = 0;
    while (i < STATUSES - 1 && statuses[i].status != status) {
        i++;
    }
    return i;
}

static const char *
cpu_status_name(const struct ps_backend *backend, ps_status status)
{
    (void)backend;
    return statuses[status_index(status)].name;
}

static const char *
cpu_status_text(const struct ps_backend *backend, ps_status status)
{
    (void)backend;
    return statuses[status_index(status)].text;
}

static ps_status
cpu_device_count(const struct ps_backend *backend, int *count)
{
    int found = cpu_engine_of(backend)->device_count;
    if (backend->device_type == PS_DEVICE_CUDA) {
        uint64_t seen[MOST_VISIBLE / 64];
        found = visible_devices(found, NULL, NULL, seen);
    }
    if (found <= 0) {
        return PS_ERROR_NO_DEVICE;
    }
    *count = found;
    return PS_SUCCESS;
}

static ps_status
cpu_device_current(const struct ps_backend *backend, int *device)
{
    pthread_key_t key = cpu_engine_of(backend)->current_key;
    *device = (int)(intptr_t)pthread_getspecific(key);
    return PS_SUCCESS;
}

static ps_status
cpu_device_set(const struct ps_backend *backend, int device)
{
    pthread_key_t key = cpu_engine_of(backend)->current_key;
    return pthread_setspecific(key, (void *)(intptr_t)device) == 0
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

/* Get the processor's name; "CPU" if the system gives none. */
static void
processor_name(char name[256])
{
    char line[256];
    strcpy(name, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), file) != NULL &&
           sscanf(line, "model name : %255[^\n]", name) != 1) {
    }
    fclose(file);
}

static ps_status
cpu_device_properties(const struct ps_backend *backend, int device,
                      struct ps_device_properties *properties)
{
    (void)device;
    *properties = (struct ps_device_properties){
        .total_memory = cpu_engine_of(backend)->memory,
        .multi_processor_count = cpu_host_processors(),
    };
    if (backend->flags & PS_BACKEND_EMULATED) {
        snprintf(properties->name, sizeof(properties->name),
                 "CPU emulating %s", backend->name);
    }
    else {
        properties->total_memory = cpu_host_memory();
        processor_name(properties->name);
    }
    return PS_SUCCESS;
}

/* Emulated devices have different places on the PCI bus, because programs tell
 * devices apart by their places. */
static ps_status
cpu_device_attribute(const struct ps_backend *backend, int device,
                     int attribute, int *value)
{
    bool emulated = backend->flags & PS_BACKEND_EMULATED;
    switch (attribute) {
    case 16: /* cudaDevAttrMultiProcessorCount */
        *value = cpu_host_processors();
        return PS_SUCCESS;
    case 31:  /* cudaDevAttrConcurrentKernels */
    case 78:  /* cudaDevAttrStreamPrioritiesSupported */
    case 99:  /* cudaDevAttrHostRegisterSupported */
    case 125: /* cudaDevAttrIpcEventSupport */
        *value = 1;
        return PS_SUCCESS;
    case 33: /* cudaDevAttrPciBusId */
    case 34: /* cudaDevAttrPciDeviceId */
    case 50: /* cudaDevAttrPciDomainId */
        *value = attribute == 33   ? device % 256
                 : attribute == 50 ? device / 256
                                   : 0;
        return emulated ? PS_SUCCESS : PS_ERROR_INVALID_VALUE;
    case 41:  /* cudaDevAttrUnifiedAddressing */
    case 115: /* cudaDevAttrMemoryPoolsSupported */
        *value = 1;
        return emulated ? PS_SUCCESS : PS_ERROR_INVALID_VALUE;
    default:
        return PS_ERROR_INVALID_VALUE;
    }
}

static ps_status
cpu_shutdown(const struct ps_backend *backend, int64_t timeout_ns)
{
    CPU_ENTER(engine, backend);
    bool late = false;
    if (engine->phase < CPU_STOPPING) {
        engine->phase = CPU_STOPPING;
        engine->clock = &cpu_monotonic_clock;
    }
    int64_t deadline = cpu_deadline(engine, timeout_ns);
    pthread_cond_broadcast(&engine->work);
    pthread_cond_broadcast(&engine->early);
    cpu_poller_stop_locked(engine);
    while (engine->running > 0 && !late) {
        late = !engine->clock->wait_locked(engine, &engine->ended, deadline);
    }
    engine->phase = CPU_STOPPED;
    return engine->running > 0 ? PS_ERROR_NOT_READY : PS_SUCCESS;
}

/* ---- Making and forking ---- */

static void
devices_begin_locked(struct cpu_engine *engine)
{
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_device *device = &engine->devices[i];
        /* Store `known` atomically, because threads may read it without the
         * lock. */
        atomic_store(&device->known, CPU_UNKNOWN);
        memset(&device->default_stream, 0,
               sizeof(*device) - offsetof(struct cpu_device, default_stream));
        device->threshold = UINT64_MAX;
        cpu_stream_init_locked(&device->default_stream, engine, i, 0);
        device->default_stream.known = &device->known;
    }
}

/* Set a new engine, or the engine in a forked child, to its initial state: no
 * handles, no work, no workers.  In the child, the condition variables are
 * initialized anew, because threads of the parent may have waited for them. */
static void
engine_begin_locked(struct cpu_engine *engine)
{
    engine->phase = CPU_OPEN;
    cpu_slots_forget(engine);
    memset(engine->ready, 0, sizeof(engine->ready));
    engine->ready_count = 0;
    engine->due = NULL;
    engine->notifying = false;
    engine->sleepers = NULL;
    LIST_INIT(&engine->captures);
    engine->workers = 0;
    engine->idle = 0;
    engine->coming = false;
    engine->timer = false;
    engine->running = 0;
    struct cpu_file *file;
    LIST_FOREACH (file, &engine->files, neighbours) {
        close(file->number);
    }
    LIST_INIT(&engine->files);
    engine->ranges = NULL;
    engine->pinned = NULL;
    engine->poller.epoll.number = engine->poller.doorbell.number = -1;
    pthread_cond_init(&engine->work, &engine->monotonic);
    pthread_cond_init(&engine->early, &engine->monotonic);
    pthread_cond_init(&engine->ended, &engine->monotonic);
    memset(&engine->lazy, 0, sizeof(engine->lazy));
    pthread_cond_init(&engine->lazy_changed, &engine->monotonic);
    engine->clock = &cpu_monotonic_clock;
    devices_begin_locked(engine);
}

/* The flags of an engine that emulates devices.  In a build with
 * PS_EMULATE_SHARED, core calls such an engine with the GIL released, as it
 * calls the CUDA backend.  Then a sanitizer sees data races between these
 * calls. */
#ifdef PS_EMULATE_SHARED
enum { EMULATED_FLAGS = PS_BACKEND_EMULATED | PS_BACKEND_SHARED };
#else
enum { EMULATED_FLAGS = PS_BACKEND_EMULATED };
#endif

static struct cpu_engine *
engine_create(const char *name, int device_type, int device_count,
              uint64_t memory)
{
    struct cpu_engine *engine =
        calloc(1, sizeof(*engine) +
                      (size_t)device_count * sizeof(engine->devices[0]));
    if (engine == NULL) {
        return NULL;
    }
    struct ps_backend *table = &engine->table.base;
    *table = (struct ps_backend){
        .struct_size = sizeof(*table),
        .flags = PS_BACKEND_FORKABLE |
                 (device_type == PS_DEVICE_CPU ? PS_BACKEND_HOST_MEMORY
                                               : EMULATED_FLAGS),
        .name = name,
        .device_type = device_type,
        .status_name = cpu_status_name,
        .status_text = cpu_status_text,
        .device_count = cpu_device_count,
        .device_current = cpu_device_current,
        .device_set = cpu_device_set,
        .device_restore = cpu_device_set,
        .device_properties = cpu_device_properties,
        .shutdown = cpu_shutdown,
        .device_attribute = cpu_device_attribute,
    };
    cpu_partition_members(table);
    cpu_work_members(table);
    cpu_stream_members(table);
    cpu_thread_stream_members(table);
    cpu_event_members(table);
    cpu_notify_members(table);
    cpu_memory_members(table);
    cpu_shared_memory_members(table);
    cpu_times_members(table);
    cpu_graph_members(table);
    engine->table.engine = engine;
    engine->lazy_table = engine->table;
    engine->lazy_table.base.flags |= PS_BACKEND_SHARED;

    engine->device_count = device_count;
    if (device_type != PS_DEVICE_CPU) {
        /* The emulated devices share half of the machine's memory; the other
         * half is for the programs. */
        engine->memory = memory > 0
                             ? memory
                             : cpu_host_memory() / 2 / (uint64_t)device_count;
    }
    int cores = cpu_host_processors();
    engine->worker_limit = cores < LEAST_WORKERS  ? LEAST_WORKERS
                           : cores > MOST_WORKERS ? MOST_WORKERS
                                                  : (unsigned)cores;
    /* A thread that waits for an adaptive mutex spins before it sleeps.  This
     * is faster here, because the lock is held for less time than it takes to
     * sleep and wake up. */
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&engine->lock, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
    pthread_condattr_init(&engine->monotonic);
    pthread_condattr_setclock(&engine->monotonic, CLOCK_MONOTONIC);
    engine_begin_locked(engine);
    return engine;
}

/* Take all locks before a fork, so that the child's copy of what they guard is
 * consistent. */
static void
fork_prepare(void)
{
    pthread_mutex_lock(&engines_lock);
    for (struct cpu_engine *e = engines; e != NULL; e = e->next) {
        pthread_mutex_lock(&e->lock);
    }
}

static void
fork_parent(void)
{
    for (struct cpu_engine *e = engines; e != NULL; e = e->next) {
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&engines_lock);
}

static void
fork_child(void)
{
    pthread_setspecific(cpu_serving_key, NULL);
    cpu_forks++;
    for (struct cpu_engine *e = engines; e != NULL; e = e->next) {
        engine_begin_locked(e);
    }
    cpu_explore_reset_in_child();
    fork_parent();
}

/* Add the engine to the list, and create its keys.  Keys are used instead of
 * thread-local variables, because the process aborts if there is no memory for
 * the thread-local variables of a new thread.  Returns false if there are too
 * many engines, no key is left, or memory is short. */
static bool
add_locked(struct cpu_engine *engine)
{
    pthread_key_t key;
    engine->number = engines != NULL ? engines->number + 1 : 0;
    if (engine->number == CPU_ENGINES || pthread_key_create(&key, NULL) != 0) {
        return false;
    }
    engine->current_key = key;
    if (!cpu_thread_streams_init(engine)) {
        pthread_key_delete(engine->current_key);
        return false;
    }
    if (engines == NULL &&
        (pthread_key_create(&cpu_serving_key, NULL) != 0 ||
         pthread_key_create(&cpu_times_key, NULL) != 0 ||
         pthread_atfork(fork_prepare, fork_parent, fork_child) != 0)) {
        pthread_key_delete(engine->thread_key);
        pthread_key_delete(engine->current_key);
        return false;
    }
    engine->next = engines;
    engines = engine;
    cpu_explore_add(engine);
    return true;
}

static bool
is_unused_locked(const struct cpu_engine *engine)
{
    bool unused = engine->phase == CPU_OPEN && engine->due == NULL &&
                  !engine->notifying && engine->ready_count == 0 &&
                  engine->sleepers == NULL && LIST_EMPTY(&engine->captures) &&
                  engine->ranges == NULL && engine->pinned == NULL;
    unused = unused && !cpu_slots_any_locked(engine);
    for (int i = 0; i < engine->device_count; i++) {
        const struct cpu_stream *stream = &engine->devices[i].default_stream;
        unused = unused && LIST_FIRST(&engine->devices[i].streams) == stream &&
                 LIST_NEXT(stream, neighbours) == NULL &&
                 stream->first == NULL && stream->waiters == NULL &&
                 stream->notifications == NULL;
    }
    return unused;
}

bool
ps_cpu_renew(const struct ps_backend *backend, uint64_t memory)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    pthread_key_t key;
    cpu_lock(engine);
    cpu_thread_streams_trim_locked(engine);
    bool renewed =
        is_unused_locked(engine) && pthread_key_create(&key, NULL) == 0;
    if (renewed) {
        pthread_key_delete(engine->current_key);
        engine->current_key = key;
        engine->memory = memory;
        devices_begin_locked(engine);
    }
    cpu_unlock(engine);
    return renewed;
}

const struct ps_backend *
ps_cpu_backend(const char *name, int device_type, int device_count,
               uint64_t memory)
{
    struct cpu_engine *engine =
        engine_create(name, device_type, device_count, memory);
    if (engine == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&engines_lock);
    bool added = add_locked(engine);
    pthread_mutex_unlock(&engines_lock);
    if (!added) {
        free(engine);
        return NULL;
    }
    return &engine->table.base;
}
