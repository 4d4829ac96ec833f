/* Partitions.  A partition limits how many workers serve its streams at a
 * time.  The limit is proportional to the partition's share of the machine's
 * processors, and at least 1.  Operations that need no worker, such as
 * records, waits and small copies, run even if the limit is reached.  queue.c
 * counts the busy workers and chooses the streams. */
#include "engine.h"

#include <stdlib.h>
#include <unistd.h>

int
cpu_host_processors(void)
{
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static ps_status
cpu_partition_create(const struct ps_backend *backend, int device, int count,
                     ps_handle *handle, int *granted)
{
    int processors = cpu_host_processors();
    struct cpu_partition *partition = calloc(1, sizeof(*partition));
    if (partition == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    CPU_ENTER(engine, backend);
    ps_status status = PS_ERROR_INVALID_RESOURCE;
    struct cpu_slot *slot = NULL;
    if (count <= processors - engine->devices[device].partitioned) {
        slot = cpu_slot_take_locked(engine, CPU_PARTITION, device);
        status = slot != NULL ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
    }
    if (status != PS_SUCCESS) {
        free(partition);
        return status;
    }
    unsigned most =
        (unsigned)count * engine->worker_limit / (unsigned)processors;
    engine->devices[device].partitioned += count;
    partition->refs = 1;
    partition->count = count;
    partition->most = most > 0 ? most : 1;
    slot->object = partition;
    *handle = slot->handle;
    *granted = count;
    return PS_SUCCESS;
}

static ps_status
cpu_partition_destroy(const struct ps_backend *backend, int device,
                      ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_PARTITION, device, handle);
    if (slot == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    struct cpu_partition *partition = slot->object;
    cpu_slot_give_locked(engine, slot);
    engine->devices[device].partitioned -= partition->count;
    cpu_partition_unref_locked(partition);
    return PS_SUCCESS;
}

void
cpu_partition_members(struct ps_backend *table)
{
    table->partition_create = cpu_partition_create;
    table->partition_destroy = cpu_partition_destroy;
}
