/* Events that several processes share.  The handles that were made here are
 * kept, so that none is opened here: runtimes differ in how they fail then. */
#include "ipc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "event.h"
#include "runtime.h"

struct ps_ipc {
    unsigned char handle[PS_IPC_HANDLE_BYTES];
    /* Neighbours among the exported; link is NULL in one that was opened. */
    struct ps_ipc *next;
    struct ps_ipc **link;
};

/* Guards exported.  Held for a few instructions. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ps_ipc *exported;

void
ps_ipc_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    exported = NULL;
}

static struct ps_ipc *
ipc_create(const unsigned char *handle)
{
    struct ps_ipc *ipc = calloc(1, sizeof(*ipc));
    if (ipc != NULL && handle != NULL) {
        memcpy(ipc->handle, handle, sizeof(ipc->handle));
    }
    return ipc;
}

static bool
publish(struct ps_event *event, struct ps_ipc *ipc)
{
    struct ps_ipc *none = NULL;
    pthread_mutex_lock(&mutex);
    bool first = atomic_compare_exchange_strong(&event->ipc, &none, ipc);
    if (first) {
        ipc->next = exported;
        ipc->link = &exported;
        if (exported != NULL) {
            exported->link = &ipc->next;
        }
        exported = ipc;
    }
    pthread_mutex_unlock(&mutex);
    return first;
}

static bool
is_exported(const unsigned char *handle)
{
    pthread_mutex_lock(&mutex);
    struct ps_ipc *ipc = exported;
    while (ipc != NULL &&
           memcmp(ipc->handle, handle, sizeof(ipc->handle)) != 0) {
        ipc = ipc->next;
    }
    pthread_mutex_unlock(&mutex);
    return ipc != NULL;
}

ps_status
ps_event_export(struct ps_event *event, struct ps_device *device,
                const unsigned char **handle)
{
    const struct ps_backend *backend = event->runtime->backend;
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (backend->event_export == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (atomic_load(&event->ipc) == NULL) {
        struct ps_ipc *ipc = ipc_create(NULL);
        ps_status status = ipc != NULL ? ps_event_bind(event, device)
                                       : PS_ERROR_OUT_OF_MEMORY;
        if (status == PS_SUCCESS) {
            status = backend->event_export(
                backend, atomic_load(&event->device)->index,
                atomic_load(&event->handle), ipc->handle);
        }
        if (status != PS_SUCCESS || !publish(event, ipc)) {
            free(ipc);
        }
        if (status != PS_SUCCESS) {
            return status;
        }
    }
    *handle = atomic_load(&event->ipc)->handle;
    return PS_SUCCESS;
}

ps_status
ps_event_open(struct ps_device *device,
              const unsigned char handle[PS_IPC_HANDLE_BYTES],
              struct ps_event **result)
{
    const struct ps_backend *backend = device->runtime->backend;
    struct ps_event *event;
    ps_handle native;
    if (backend->event_open == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (is_exported(handle)) {
        return PS_ERROR_OWN_HANDLE;
    }
    struct ps_ipc *ipc = ipc_create(handle);
    ps_status status =
        ipc != NULL
            ? ps_event_create(device->runtime, PS_EVENT_INTERPROCESS, &event)
            : PS_ERROR_OUT_OF_MEMORY;
    if (status != PS_SUCCESS) {
        free(ipc);
        return status;
    }
    atomic_store(&event->ipc, ipc);
    status = backend->event_open(backend, device->index, handle, &native);
    if (status != PS_SUCCESS) {
        ps_event_unref(event);
        return status;
    }
    ps_event_adopt(event, device, native);
    *result = event;
    return PS_SUCCESS;
}

void
ps_ipc_forget(struct ps_event *event)
{
    struct ps_ipc *ipc = atomic_load(&event->ipc);
    if (ipc != NULL && ipc->link != NULL &&
        event->generation == ps_generation()) {
        pthread_mutex_lock(&mutex);
        *ipc->link = ipc->next;
        if (ipc->next != NULL) {
            ipc->next->link = ipc->link;
        }
        pthread_mutex_unlock(&mutex);
    }
    free(ipc);
}
