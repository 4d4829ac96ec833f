/* A list of handles; its mutex is held for a few instructions. */
#include "ipc.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ps_export) all;

void
ps_exports_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    LIST_INIT(&all);
}

void
ps_export_add(struct ps_export *exported)
{
    pthread_mutex_lock(&mutex);
    LIST_INSERT_HEAD(&all, exported, neighbours);
    pthread_mutex_unlock(&mutex);
}

void
ps_export_remove(struct ps_export *exported)
{
    pthread_mutex_lock(&mutex);
    LIST_REMOVE(exported, neighbours);
    pthread_mutex_unlock(&mutex);
}

bool
ps_is_exported(const unsigned char handle[PS_IPC_HANDLE_BYTES])
{
    struct ps_export *exported;
    pthread_mutex_lock(&mutex);
    LIST_FOREACH (exported, &all, neighbours) {
        if (memcmp(exported->handle, handle, PS_IPC_HANDLE_BYTES) == 0) {
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    return exported != NULL;
}
