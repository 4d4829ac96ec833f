/* The list of runtimes.  Entries are added under a mutex and never removed.
 * The list may be read without the mutex, because an entry is complete before
 * the count includes it. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "lock.h"

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ps_runtime *registry[PS_MAX_RUNTIMES];
static atomic_int registry_count;

bool ps_default_per_thread;

static ps_status
add_locked(struct ps_runtime *runtime)
{
    int count = ps_runtime_count();
    if (count == PS_MAX_RUNTIMES) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    runtime->index = count;
    registry[count] = runtime;
    atomic_store_explicit(&registry_count, count + 1, memory_order_release);
    return PS_SUCCESS;
}

static ps_status
register_locked(const struct ps_backend *backend,
                const struct ps_faults *faults, struct ps_refusal *refusal)
{
    int count = ps_runtime_count();
    for (int i = 0; i < count; i++) {
        const struct ps_backend *other = registry[i]->backend;
        if (strcmp(other->name, backend->name) == 0) {
            return ps_refuse(refusal,
                             "the name '%s' is taken, by the backend with "
                             "device type %d",
                             other->name, other->device_type);
        }
        if (other->device_type == backend->device_type) {
            return ps_refuse(refusal,
                             "the device type %d of the %s backend is taken, "
                             "by the %s backend",
                             other->device_type, backend->name, other->name);
        }
    }
    if (count == PS_MAX_RUNTIMES) {
        return ps_refuse(refusal,
                         "there is no place for the %s backend: %d are "
                         "registered, and that is the most",
                         backend->name, count);
    }
    struct ps_runtime *runtime = calloc(1, sizeof(*runtime));
    if (runtime == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    runtime->registered = runtime->backend = backend;
    runtime->faults = faults;
    ps_memory_pool_init(&runtime->memory);
    return add_locked(runtime);
}

ps_status
ps_runtime_add(struct ps_runtime *runtime)
{
    PS_HOLD(&registry_mutex);
    return add_locked(runtime);
}

ps_status
ps_runtime_register(const struct ps_backend *backend,
                    const struct ps_faults *faults, struct ps_refusal *refusal)
{
    const struct ps_backend *whole;
    ps_status status = ps_table_complete(backend, &whole, refusal);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = ps_table_check(whole, refusal);
    if (status == PS_SUCCESS && faults != NULL) {
        status = ps_table_check_faults(whole, faults, refusal);
    }
    if (status == PS_SUCCESS) {
        pthread_mutex_lock(&registry_mutex);
        status = register_locked(whole, faults, refusal);
        pthread_mutex_unlock(&registry_mutex);
    }
    if (status != PS_SUCCESS && whole != backend) {
        free((void *)whole);
    }
    return status;
}

void
ps_runtime_reset_in_child(void)
{
    pthread_mutex_init(&registry_mutex, NULL);
}

int
ps_runtime_count(void)
{
    return atomic_load_explicit(&registry_count, memory_order_acquire);
}

struct ps_runtime *
ps_runtime_at(int index)
{
    return registry[index];
}

struct ps_runtime *
ps_runtime_find(int device_type)
{
    int count = ps_runtime_count();
    for (int i = 0; i < count; i++) {
        if (registry[i]->backend->device_type == device_type &&
            !atomic_load(&registry[i]->hidden)) {
            return registry[i];
        }
    }
    return NULL;
}

void
ps_device_init(struct ps_device *device, struct ps_runtime *runtime, int index,
               unsigned generation)
{
    memset(device, 0, sizeof(*device));
    device->runtime = runtime;
    device->index = index;
    pthread_mutex_init(&device->mutex, NULL);
    device->default_stream.kind = PS_STREAM_DEFAULT;
    device->default_stream.generation = generation;
    device->default_stream.device = device;
    device->callers_stream.kind = PS_STREAM_CALLERS;
    device->callers_stream.generation = generation;
    device->callers_stream.device = device;
    device->callers_stream.handle = PS_STREAM_PER_THREAD;
    device->first_current =
        ps_default_per_thread && runtime->registered->thread_stream != NULL
            ? &device->callers_stream
            : &device->default_stream;
}

static ps_status
make_devices_locked(struct ps_runtime *runtime, int count)
{
    if (atomic_load(&runtime->device_count) != 0) {
        return PS_SUCCESS;
    }
    struct ps_device *devices = calloc((size_t)count, sizeof(*devices));
    if (devices == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    for (int i = 0; i < count; i++) {
        ps_device_init(&devices[i], runtime, i, ps_generation());
    }
    runtime->devices = devices;
    runtime->room = count;
    atomic_store_explicit(&runtime->device_count, count, memory_order_release);
    return PS_SUCCESS;
}

ps_status
ps_runtime_devices(struct ps_runtime *runtime, int *count)
{
    int known =
        atomic_load_explicit(&runtime->device_count, memory_order_acquire);
    if (known == 0) {
        const struct ps_backend *backend = runtime->backend;
        ps_status status = backend->device_count(backend, &known);
        if (status != PS_SUCCESS) {
            return status;
        }
        if (known <= 0) {
            return PS_ERROR_NO_DEVICE;
        }
    }
    *count = known;
    return PS_SUCCESS;
}

ps_status
ps_runtime_use(struct ps_runtime *runtime)
{
    unsigned mark = ps_generation() + 1;
    unsigned used = atomic_load_explicit(&runtime->used, memory_order_acquire);
    if (used == mark) {
        return PS_SUCCESS;
    }
    if (used != 0) {
        return PS_ERROR_FOREIGN;
    }
    int count;
    ps_status status = ps_runtime_devices(runtime, &count);
    if (status == PS_SUCCESS) {
        pthread_mutex_lock(&registry_mutex);
        status = make_devices_locked(runtime, count);
        pthread_mutex_unlock(&registry_mutex);
    }
    if (status == PS_SUCCESS) {
        atomic_store_explicit(&runtime->used, mark, memory_order_release);
    }
    return status;
}

ps_status
ps_runtime_device(struct ps_runtime *runtime, int index,
                  struct ps_device **device)
{
    int count =
        atomic_load_explicit(&runtime->device_count, memory_order_acquire);
    if (index < 0 || index >= count) {
        return PS_ERROR_INVALID_DEVICE;
    }
    *device = &runtime->devices[index];
    return PS_SUCCESS;
}

ps_status
ps_runtime_current_device(struct ps_runtime *runtime,
                          struct ps_device **device)
{
    const struct ps_backend *backend = runtime->backend;
    int index;
    if (atomic_load_explicit(&runtime->device_count, memory_order_acquire) ==
        1) {
        /* The only device is always current, so the backend need not be
         * asked. */
        *device = runtime->devices;
        return PS_SUCCESS;
    }
    ps_status status = backend->device_current(backend, &index);
    if (status != PS_SUCCESS) {
        return status;
    }
    return ps_runtime_device(runtime, index, device);
}

ps_status
ps_runtime_restore_device(struct ps_runtime *runtime, int previous)
{
    const struct ps_backend *backend = runtime->backend;
    int current;
    ps_status status = backend->device_current(backend, &current);
    if (status != PS_SUCCESS || current == previous) {
        return status;
    }
    return backend->device_restore != NULL
               ? backend->device_restore(backend, previous)
               : backend->device_set(backend, previous);
}
