/* Partitions of a device's multiprocessors. */
#include "partition.h"

#include <stdlib.h>

#include "capture.h"
#include "lock.h"
#include "runtime.h"

/* Add `more` to the number of multiprocessors that partitions have, and return
 * the sum. */
static int
count_taken(struct ps_device *device, int more)
{
    PS_HOLD(&device->mutex);
    return device->partitioned += more;
}

ps_status
ps_partition_create(struct ps_device *device, int count,
                    struct ps_partition **result, int *taken)
{
    if (count <= 0) {
        *taken = count_taken(device, 0);
        return PS_ERROR_INVALID_RESOURCE;
    }
    struct ps_partition *partition = calloc(1, sizeof(*partition));
    if (partition == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    atomic_init(&partition->refs, 1);
    partition->generation = ps_generation();
    partition->device = device;
    ps_status status = PS_CALL(device, partition_create, count,
                               &partition->handle, &partition->count);
    if (status != PS_SUCCESS) {
        *taken = count_taken(device, 0);
        free(partition);
        return status;
    }
    count_taken(device, partition->count);
    *result = partition;
    return PS_SUCCESS;
}

static ps_status
drop(void *partition)
{
    return ps_partition_unref(partition);
}

ps_status
ps_partition_keep(struct ps_partition *partition)
{
    if (partition == NULL || atomic_load(&ps_captures) == 0) {
        return PS_SUCCESS;
    }
    const struct ps_kept item = {partition, &partition->refs, drop};
    return ps_capture_keep(partition->device->runtime, &item);
}

ps_status
ps_partition_unref(struct ps_partition *partition)
{
    struct ps_device *device = partition->device;
    ps_status status = PS_SUCCESS;
    if (atomic_fetch_sub_explicit(&partition->refs, 1, memory_order_acq_rel) !=
        1) {
        return PS_SUCCESS;
    }
    if (partition->generation == ps_generation()) {
        status = PS_CALL(device, partition_destroy, partition->handle);
        count_taken(device, -partition->count);
    }
    free(partition);
    return status;
}
