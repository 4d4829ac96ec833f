/* How emulations are created, shown, left and reused. */
#include "emulation.h"

#include <stdlib.h>

#include "lock.h"
#include "notify.h"
#include "runtime.h"
#include "stream.h"
#include "thread_stream.h"

static void
destroy_event(struct ps_device *device, ps_handle event)
{
    struct ps_runtime *runtime = device->runtime;
    ps_runtime_note_failure(
        runtime, runtime->registered->event_destroy(runtime->registered,
                                                    device->index, event));
}

/* Destroy the native streams and events that the device keeps for reuse.  A
 * failure is stored for ps_runtime_take_failure. */
static void
drain_device(struct ps_device *device)
{
    struct ps_runtime *runtime = device->runtime;
    ps_handle event = atomic_exchange(&device->wait_event, 0);
    bool more = true;
    if (event != 0) {
        destroy_event(device, event);
    }
    pthread_mutex_lock(&device->mutex);
    struct ps_pooled_stream *streams = device->pooled_streams;
    int count = device->pooled_stream_count;
    device->pooled_streams = NULL;
    device->pooled_stream_count = device->pooled_stream_room = 0;
    /* Keep the side stream if there are other references to it: blocks that
     * were allocated on the side stream will be freed on it. */
    struct ps_stream *side = device->side;
    if (side != NULL && atomic_load(&side->refs) > 1) {
        side = NULL;
    }
    else {
        device->side = NULL;
    }
    pthread_mutex_unlock(&device->mutex);
    for (int i = 0; i < count; i++) {
        ps_runtime_note_failure(
            runtime, PS_CALL(device, stream_destroy, streams[i].handle));
    }
    free(streams);
    if (side != NULL) {
        ps_runtime_note_failure(runtime,
                                PS_CALL(device, stream_destroy, side->handle));
        ps_runtime_note_failure(runtime, ps_stream_unref(side));
    }
    for (int flags = 0; flags < PS_EVENT_POOLS; more ? 0 : flags++) {
        struct ps_idle_events *idle = &device->idle_events[flags];
        pthread_mutex_lock(&device->mutex);
        more = idle->count > 0;
        event = more ? idle->handles[--idle->count] : 0;
        pthread_mutex_unlock(&device->mutex);
        if (more) {
            destroy_event(device, event);
        }
    }
}

/* Returns whether core has no streams, notifications, partitions or allocated
 * blocks of the device any more.  The device's own default_stream and
 * callers_stream do not count. */
static bool
is_clean(struct ps_device *device)
{
    bool notifying = ps_device_is_notifying(device);
    PS_HOLD(&device->mutex);
    return LIST_EMPTY(&device->streams) && device->deferred == NULL &&
           device->side == NULL && !notifying && device->partitioned == 0 &&
           device->memory.blocks.current == 0;
}

static bool
has_no_blocks(struct ps_memory_pool *pool)
{
    PS_HOLD(&pool->mutex);
    return pool->retired == NULL && pool->sweeps == 0 && pool->idle == NULL &&
           pool->pinned.blocks.current == 0;
}

ps_status
ps_emulation_create(const struct ps_backend *backend,
                    const struct ps_faults *faults, struct ps_runtime **result)
{
    struct ps_runtime *runtime = calloc(1, sizeof(*runtime));
    struct ps_device *devices = calloc(PS_EMULATED_DEVICES, sizeof(*devices));
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    if (runtime != NULL && devices != NULL) {
        runtime->registered = runtime->backend = backend;
        runtime->faults = faults;
        runtime->devices = devices;
        runtime->room = PS_EMULATED_DEVICES;
        runtime->emulation = true;
        atomic_init(&runtime->hidden, true);
        atomic_init(&runtime->entered, true);
        ps_memory_pool_init(&runtime->memory);
        for (int i = 0; i < PS_EMULATED_DEVICES; i++) {
            ps_device_init(&devices[i], runtime, i, ps_generation());
        }
        status = ps_runtime_add(runtime);
    }
    if (status != PS_SUCCESS) {
        free(devices);
        free(runtime);
        return status;
    }
    *result = runtime;
    return PS_SUCCESS;
}

bool
ps_emulation_reuse(struct ps_runtime *runtime)
{
    if (!runtime->emulation || atomic_exchange(&runtime->entered, true)) {
        return false;
    }
    ps_memory_sweep(runtime);
    ps_pinned_trim(runtime);
    for (int i = 0; i < runtime->room; i++) {
        ps_device_give_up_deferred(&runtime->devices[i]);
    }
    bool clean = has_no_blocks(&runtime->memory);
    for (int i = 0; i < runtime->room && clean; i++) {
        drain_device(&runtime->devices[i]);
        clean = is_clean(&runtime->devices[i]);
    }
    if (!clean) {
        atomic_store(&runtime->entered, false);
    }
    return clean;
}

void
ps_emulation_reset(struct ps_runtime *runtime)
{
    for (int i = 0; i < runtime->room; i++) {
        struct ps_device *device = &runtime->devices[i];
        ps_device_take_failure(device);
        ps_memory_stats_reset_peak(device);
        ps_memory_stats_reset_totals(device);
    }
    ps_pinned_stats_reset_peak(runtime);
    ps_pinned_stats_reset_totals(runtime);
    atomic_store(&runtime->used, 0);
}

void
ps_emulation_show(struct ps_runtime *runtime, int devices,
                  struct ps_runtime *previous)
{
    atomic_store(&runtime->device_count, devices);
    atomic_store(&runtime->hidden, false);
    if (previous != NULL) {
        atomic_store(&previous->hidden, true);
    }
}

void
ps_emulation_hide(struct ps_runtime *runtime, struct ps_runtime *previous)
{
    if (previous != NULL) {
        atomic_store(&previous->hidden, false);
    }
    atomic_store(&runtime->hidden, true);
}

void
ps_emulation_leave(struct ps_runtime *runtime)
{
    if (ps_runtime_is_used(runtime)) {
        ps_runtime_note_failure(runtime,
                                ps_runtime_restore_device(runtime, 0));
    }
    ps_memory_sweep(runtime);
    ps_thread_streams_end(runtime);
    ps_memory_sweep(runtime);
    ps_pinned_trim(runtime);
    for (int i = 0; i < runtime->room; i++) {
        drain_device(&runtime->devices[i]);
    }
    atomic_store(&runtime->entered, false);
}

void
ps_emulations_leave_thread(void)
{
    if (ps_thread_word(PS_THREAD_STREAMS) == NULL) {
        return;
    }
    for (int i = 0; i < ps_runtime_count(); i++) {
        struct ps_runtime *runtime = ps_runtime_at(i);
        if (runtime->emulation && !atomic_load(&runtime->entered)) {
            ps_memory_sweep(runtime);
            ps_thread_streams_end(runtime);
        }
    }
}
