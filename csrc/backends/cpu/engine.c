/* The engine as a whole: its making, its devices, the words for its statuses
 * and what a fork leaves of it.  A child's engine starts empty: the parent's
 * handles are stale in it, and what the parent still had queued is forgotten,
 * not run (blocks waiting to be freed and destroyed streams are leaked). */
#include "engine.h"
#include "../backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All engines, the newest first.  Its lock is taken before an engine's. */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cpu_engine *engines;

/* Each thread's current device, by the engine's number. */
static _Thread_local int current_device[CPU_ENGINES];

/* ---- Members ---- */

static const struct {
    ps_status status;
    const char *name;
    const char *text;
} statuses[] = {
    {PS_SUCCESS, "PS_SUCCESS", "no error"},
    {PS_ERROR_INVALID_VALUE, "PS_ERROR_INVALID_VALUE", "invalid argument"},
    {PS_ERROR_OUT_OF_MEMORY, "PS_ERROR_OUT_OF_MEMORY", "out of memory"},
    {PS_ERROR_NOT_INITIALIZED, "PS_ERROR_NOT_INITIALIZED",
     "initialization error"},
    {PS_ERROR_SHUTTING_DOWN, "PS_ERROR_SHUTTING_DOWN",
     "the engine is shutting down"},
    {PS_ERROR_INSUFFICIENT_DRIVER, "PS_ERROR_INSUFFICIENT_DRIVER",
     "the driver is too old"},
    {PS_ERROR_NO_DEVICE, "PS_ERROR_NO_DEVICE", "no device is available"},
    {PS_ERROR_INVALID_DEVICE, "PS_ERROR_INVALID_DEVICE",
     "invalid device ordinal"},
    {PS_ERROR_INVALID_HANDLE, "PS_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {PS_ERROR_NOT_READY, "PS_ERROR_NOT_READY", "device not ready"},
    {PS_ERROR_NOT_PERMITTED, "PS_ERROR_NOT_PERMITTED",
     "operation not permitted"},
    {PS_ERROR_NOT_SUPPORTED, "PS_ERROR_NOT_SUPPORTED",
     "operation not supported"},
    {PS_ERROR_UNKNOWN, "PS_ERROR_UNKNOWN", "unknown error"},
};

enum { STATUSES = sizeof(statuses) / sizeof(statuses[0]) };

static int
status_index(ps_status status)
{
    int i = 0;
    while (i < STATUSES - 1 && statuses[i].status != status)
        i++;
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
    *count = cpu_engine_of(backend)->device_count;
    return PS_SUCCESS;
}

static ps_status
cpu_device_current(const struct ps_backend *backend, int *device)
{
    *device = current_device[cpu_engine_of(backend)->number];
    return PS_SUCCESS;
}

static ps_status
cpu_device_set(const struct ps_backend *backend, int device)
{
    current_device[cpu_engine_of(backend)->number] = device;
    return PS_SUCCESS;
}

/* The processor's name, or just "CPU" where the system does not tell. */
static void
processor_name(char *name, size_t size)
{
    char line[256];
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) == 0 && value) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(name, size, "%s", value + 2);
            break;
        }
    }
    fclose(file);
}

static ps_status
cpu_device_properties(const struct ps_backend *backend, int device,
                      struct ps_device_properties *properties)
{
    (void)device;
    *properties = (struct ps_device_properties){
        .total_memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                        (uint64_t)sysconf(_SC_PAGESIZE),
        .multi_processor_count = (int)sysconf(_SC_NPROCESSORS_ONLN),
    };
    if (backend->flags & PS_BACKEND_EMULATED)
        snprintf(properties->name, sizeof(properties->name),
                 "CPU emulating %s", backend->name);
    else
        processor_name(properties->name, sizeof(properties->name));
    return PS_SUCCESS;
}

void
cpu_device_members(struct ps_backend *table)
{
    table->status_name = cpu_status_name;
    table->status_text = cpu_status_text;
    table->device_count = cpu_device_count;
    table->device_current = cpu_device_current;
    table->device_set = cpu_device_set;
    table->device_properties = cpu_device_properties;
}

/* ---- Making and forking ---- */

/* What a new engine and a forked child's have in common: no work, nobody who
 * waits, no workers.  The conditions may have had waiters, who are gone. */
static void
engine_begin_locked(struct cpu_engine *engine)
{
    engine->phase = CPU_OPEN;
    engine->waiters = NULL;
    memset(engine->ready, 0, sizeof(engine->ready));
    engine->ready_count = 0;
    engine->timer_count = 0;
    engine->stream_count = 0;
    engine->worker_count = 0;
    engine->worker_running = 0;
    engine->woken = 0;
    engine->idle = NULL;
    pthread_cond_init(&engine->ended, &engine->monotonic);
    for (int i = 0; i < CPU_WORKERS; i++) {
        engine->workers[i] = (struct cpu_worker){.engine = engine};
        pthread_cond_init(&engine->workers[i].wake, &engine->monotonic);
    }
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_device *device = &engine->devices[i];
        device->streams = NULL;
        device->lost = PS_SUCCESS;
        cpu_stream_init_locked(&device->standard, engine, i, 0);
    }
}

static struct cpu_engine *
engine_create(const char *name, int device_type, int device_count)
{
    struct cpu_engine *engine =
        calloc(1, sizeof(*engine) +
                      (size_t)device_count * sizeof(engine->devices[0]));
    if (!engine)
        return NULL;
    engine->table = (struct ps_backend){
        .abi_version = PS_ABI_VERSION,
        .flags = PS_BACKEND_FORKABLE |
                 (device_type == PS_DEVICE_CPU ? 0 : PS_BACKEND_EMULATED),
        .name = name,
        .device_type = device_type,
    };
    cpu_device_members(&engine->table);
    cpu_stream_members(&engine->table);
    cpu_event_members(&engine->table);
    cpu_memory_members(&engine->table);
    cpu_worker_members(&engine->table);
    engine->scheduler = &cpu_threaded_scheduler;
    engine->clock = &cpu_monotonic_clock;
    engine->operations.size = sizeof(struct cpu_operation);
    engine->records.size = sizeof(struct cpu_record);
    engine->device_count = device_count;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    engine->worker_limit = cores < 2             ? 2
                           : cores > CPU_WORKERS ? CPU_WORKERS
                                                 : (unsigned)cores;
    if (!cpu_timers_reserve_locked(engine, (size_t)device_count)) {
        free(engine);
        return NULL;
    }
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_init(&engine->monotonic);
    pthread_condattr_setclock(&engine->monotonic, CLOCK_MONOTONIC);
    engine_begin_locked(engine);
    return engine;
}

/* The locks are held over the fork, so that the child finds all in order. */
static void
fork_prepare(void)
{
    pthread_mutex_lock(&engines_lock);
    for (struct cpu_engine *engine = engines; engine; engine = engine->next)
        cpu_lock(engine);
}

static void
fork_parent(void)
{
    for (struct cpu_engine *engine = engines; engine; engine = engine->next)
        cpu_unlock(engine);
    pthread_mutex_unlock(&engines_lock);
}

static void
fork_child(void)
{
    cpu_serving = NULL;
    for (struct cpu_engine *engine = engines; engine; engine = engine->next) {
        engine->forks++;
        cpu_handles_reset_locked(engine);
        cpu_pool_reset_locked(&engine->operations);
        cpu_pool_reset_locked(&engine->records);
        engine_begin_locked(engine);
    }
    fork_parent();
}

const struct ps_backend *
ps_cpu_backend(const char *name, int device_type, int device_count)
{
    struct cpu_engine *engine = engine_create(name, device_type, device_count);
    if (!engine)
        return NULL;
    pthread_mutex_lock(&engines_lock);
    engine->number = engines ? engines->number + 1 : 0;
    if (engine->number < CPU_ENGINES &&
        (engines || !pthread_atfork(fork_prepare, fork_parent, fork_child))) {
        engine->next = engines;
        engines = engine;
        pthread_mutex_unlock(&engines_lock);
        return &engine->table;
    }
    pthread_mutex_unlock(&engines_lock);
    free(engine->timers);
    free(engine);
    return NULL;
}
