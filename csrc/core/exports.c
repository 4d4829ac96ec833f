/* The exported handles are in a list.  The mutex that guards the list is held
 * only briefly, and never across a call to a backend. */
#include "exports.h"

#include <pthread.h>
#include <string.h>

#include "lock.h"

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
    PS_HOLD(&mutex);
    LIST_INSERT_HEAD(&all, exported, neighbours);
}

void
ps_export_remove(struct ps_export *exported)
{
    PS_HOLD(&mutex);
    LIST_REMOVE(exported, neighbours);
}

bool
ps_is_exported(const unsigned char handle[PS_IPC_HANDLE_BYTES])
{
    struct ps_export *exported;
    PS_HOLD(&mutex);
    LIST_FOREACH (exported, &all, neighbours) {
        if (memcmp(exported->handle, handle, PS_IPC_HANDLE_BYTES) == 0) {
            break;
        }
    }
    return exported != NULL;
}
