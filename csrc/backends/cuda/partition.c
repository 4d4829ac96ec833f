/* Partitions: a partition is a green context.
 *
 * If a device's multiprocessors are split twice, both splits begin with the
 * same multiprocessors.  So each device is split only once, into the smallest
 * groups that the driver allows.  A partition takes groups that no other
 * partition has.
 *
 * The rule: a green context is never made current, because it may be current
 * on one thread only.  Its streams are used while the primary context is
 * current, and share that context's memory, events and kernels. */
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "table.h"

struct group {
    CUdevResource resource;
    const struct partition *owner; /* NULL if the group is free */
};

struct partition {
    CUgreenCtx context;
};

struct split {
    unsigned count;
    struct group groups[];
};

static pthread_mutex_t splits_lock = PTHREAD_MUTEX_INITIALIZER;
static struct split *splits[CUDA_DEVICES];

/* Split a device's multiprocessors into `count` groups, and one more group
 * with those that are left. */
static ps_status
split_into(const CUdevResource *all, unsigned count, struct split **result)
{
    CUdevResource *resources = calloc(count + 1, sizeof(*resources));
    struct split *split =
        calloc(1, sizeof(*split) + (count + 1) * sizeof(split->groups[0]));
    ps_status status = PS_ERROR_OUT_OF_MEMORY;

    if (resources != NULL && split != NULL) {
        status = cuda_driver.resource_split(resources, &count, all,
                                            &resources[count], 0,
                                            all->sm.minSmPartitionSize);
    }
    if (status != PS_SUCCESS) {
        free(split);
        free(resources);
        return status;
    }
    for (unsigned i = 0; i <= count; i++) {
        split->groups[i].resource = resources[i];
    }
    split->count = count + (resources[count].type == CU_DEV_RESOURCE_TYPE_SM &&
                            resources[count].sm.smCount > 0);
    free(resources);
    *result = split;
    return PS_SUCCESS;
}

static ps_status
split_locked(int device, struct split **result)
{
    CUdevResource all;
    unsigned count;
    ps_status status = PS_SUCCESS;

    if (splits[device] == NULL) {
        status =
            cuda_driver.resource_get(device, &all, CU_DEV_RESOURCE_TYPE_SM);
        if (status == PS_SUCCESS) {
            status = cuda_driver.resource_split(NULL, &count, &all, NULL, 0,
                                                all.sm.minSmPartitionSize);
        }
        if (status == PS_SUCCESS) {
            status = split_into(&all, count, &splits[device]);
        }
    }
    *result = splits[device];
    return status;
}

/* Create a green context from free groups that have at least `wanted`
 * multiprocessors together.  `partition` becomes the owner of these groups. */
static ps_status
create_locked(int device, unsigned wanted, struct partition *partition,
              int *granted)
{
    CUdevResourceDesc description;
    CUdevResource *taken;
    struct split *split;
    unsigned count = 0, found = 0;
    ps_status status = split_locked(device, &split);

    if (status != PS_SUCCESS) {
        return status;
    }
    taken = malloc(split->count * sizeof(*taken));
    if (taken == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    for (unsigned i = 0; i < split->count && found < wanted; i++) {
        struct group *group = &split->groups[i];
        if (group->owner == NULL) {
            group->owner = partition;
            taken[count++] = group->resource;
            found += group->resource.sm.smCount;
        }
    }
    status = found < wanted ? PS_ERROR_INVALID_RESOURCE : PS_SUCCESS;
    if (status == PS_SUCCESS) {
        status = cuda_driver.resource_describe(&description, taken, count);
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.green_create(&partition->context, description,
                                          device, CU_GREEN_CTX_DEFAULT_STREAM);
    }
    free(taken);
    *granted = (int)found;
    return status;
}

static void
give_back_locked(int device, const struct partition *partition)
{
    struct split *split = splits[device];

    for (unsigned i = 0; split != NULL && i < split->count; i++) {
        if (split->groups[i].owner == partition) {
            split->groups[i].owner = NULL;
        }
    }
}

ps_status
cuda_partition_create(const struct ps_backend *backend, int device, int count,
                      ps_handle *handle, int *granted)
{
    struct partition *partition;
    int found = 0;

    if (cuda_driver.green_stream == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    partition = calloc(1, sizeof(*partition));
    if (partition == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&splits_lock);
    ps_status status = ON_DEVICE(
        device, create_locked(device, (unsigned)count, partition, &found));
    if (status != PS_SUCCESS) {
        give_back_locked(device, partition);
    }
    pthread_mutex_unlock(&splits_lock);
    if (status != PS_SUCCESS) {
        free(partition);
        return status;
    }
    *handle = (ps_handle)partition;
    *granted = found;
    return PS_SUCCESS;
}

ps_status
cuda_partition_destroy(const struct ps_backend *backend, int device,
                       ps_handle handle)
{
    struct partition *partition = (struct partition *)handle;
    ps_status status =
        ON_DEVICE(device, cuda_driver.green_destroy(partition->context));

    pthread_mutex_lock(&splits_lock);
    give_back_locked(device, partition);
    pthread_mutex_unlock(&splits_lock);
    free(partition);
    return status;
}

ps_status
cuda_partition_stream_create(const struct ps_backend *backend, int device,
                             ps_handle handle, int priority, ps_handle *stream)
{
    const struct partition *partition = (const struct partition *)handle;
    CUstream created;
    ps_status status = ON_DEVICE(
        device, cuda_driver.green_stream(&created, partition->context,
                                         CU_STREAM_NON_BLOCKING, priority));

    if (status == PS_SUCCESS) {
        *stream = (ps_handle)created;
    }
    return status;
}
