/* The initialization of core, its fork handlers, and the synchronization of a
 * whole device. */
#include "device.h"

#include <pthread.h>

#include "capture.h"
#include "exports.h"
#include "notify.h"
#include "runtime.h"
#include "thread.h"

/* In a forked child, reset the runtime's state.  At the fork, another thread
 * may have held a lock or may have been changing the state, and that thread
 * does not exist in the child. */
static void
reset_in_child(struct ps_runtime *runtime)
{
    bool usable = atomic_load(&runtime->used) == 0 ||
                  (runtime->backend->flags & PS_BACKEND_FORKABLE);
    if (usable) {
        atomic_store(&runtime->used, 0);
    }
    ps_memory_pool_init(&runtime->memory);
    atomic_store(&runtime->failure, PS_SUCCESS);
    for (int i = 0; i < runtime->room; i++) {
        struct ps_device *device = &runtime->devices[i];
        ps_device_init(device, runtime, i,
                       usable ? ps_generation()
                              : device->default_stream.generation);
    }
}

static void
after_fork_in_child(void)
{
    ps_fork_begin_child();
    ps_runtime_reset_in_child();
    ps_captures_reset_in_child();
    ps_exports_reset_in_child();
    ps_notify_reset_in_child();
    for (int i = 0; i < ps_runtime_count(); i++) {
        reset_in_child(ps_runtime_at(i));
    }
}

ps_status
ps_core_init(void)
{
    static bool handles_forks;
    ps_status status = ps_thread_init();
    if (status == PS_SUCCESS && !handles_forks) {
        handles_forks = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
        status = handles_forks ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
    }
    return status;
}

ps_status
ps_device_synchronize(struct ps_device *device, const struct ps_limit *limit)
{
    ps_status status = ps_capture_refuse_device(device);
    if (status == PS_SUCCESS) {
        /* First destroy the pooled streams that have failed; otherwise
         * device_synchronize would report their failures again. */
        ps_device_forget_failed(device);
        status = PS_CALL(device, device_synchronize, limit);
    }
    if (status == PS_SUCCESS && atomic_load(&device->deferred) != NULL) {
        ps_device_give_up_deferred(device);
    }
    return status == PS_SUCCESS ? ps_device_take_failure(device) : status;
}
