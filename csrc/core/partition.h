/* Partitions of a device's multiprocessors.  References to a partition are
 * counted.  Each stream of the partition holds a reference, so that the
 * partition outlives its streams. */
#ifndef PYSTREAMS_CORE_PARTITION_H
#define PYSTREAMS_CORE_PARTITION_H

#include <pystreams/backend.h>

#include <stdatomic.h>

struct ps_device;

struct ps_partition {
    atomic_uint refs;
    /* The members from here on are constant.  `generation` is the fork
     * generation in which the partition was created. */
    unsigned generation;
    struct ps_device *device;
    ps_handle handle;
    int count; /* the number of the partition's multiprocessors */
};

/* Create a partition with the backend's partition_create.  Returns
 * PS_ERROR_INVALID_RESOURCE if count is 0 or negative, or if fewer than count
 * multiprocessors are left.  In these cases *taken becomes the number of
 * multiprocessors that other partitions have.  May block. */
ps_status ps_partition_create(struct ps_device *device, int count,
                              struct ps_partition **partition, int *taken);

static inline struct ps_partition *
ps_partition_ref(struct ps_partition *partition)
{
    atomic_fetch_add_explicit(&partition->refs, 1, memory_order_relaxed);
    return partition;
}

/* Make the runtime's captures in progress keep the partition alive, because
 * captured work of its streams needs it.  Accepts NULL.  Returns
 * PS_ERROR_OUT_OF_MEMORY on failure. */
ps_status ps_partition_keep(struct ps_partition *partition);

/* Drop a reference.  Dropping the last one destroys the partition, and may
 * block.  Returns the status of the destruction.  Even after a failure, the
 * reference is gone. */
ps_status ps_partition_unref(struct ps_partition *partition);

#endif
