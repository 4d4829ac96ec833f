/* Partitions of a device's multiprocessors.  A partition counts references.
 * Each of its streams holds one, so that it is destroyed after its last
 * stream. */
#ifndef PYSTREAMS_CORE_PARTITION_H
#define PYSTREAMS_CORE_PARTITION_H

#include <pystreams/backend.h>

#include <stdatomic.h>

struct ps_device;

struct ps_partition {
    atomic_uint refs;
    /* Constant: the fork generation that created it, and the rest. */
    unsigned generation;
    struct ps_device *device;
    ps_handle handle;
    int count; /* multiprocessors */
};

/* The member of the contract of this name, for any count.  *taken is how many
 * of the device's multiprocessors other partitions have, if the status is
 * PS_ERROR_INVALID_RESOURCE.  May block. */
ps_status ps_partition_create(struct ps_device *device, int count,
                              struct ps_partition **partition, int *taken);

static inline struct ps_partition *
ps_partition_ref(struct ps_partition *partition)
{
    atomic_fetch_add_explicit(&partition->refs, 1, memory_order_relaxed);
    return partition;
}

/* Make the captures in progress of the runtime keep the partition, which work
 * captured on its streams needs; accepts NULL.  PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_partition_keep(struct ps_partition *partition);

/* Dropping the last reference may block; the status is that of the clean-up,
 * and the partition is gone in any case. */
ps_status ps_partition_unref(struct ps_partition *partition);

#endif
