/* Counts of references that several threads drop. */
#ifndef PYSTREAMS_CORE_REFS_H
#define PYSTREAMS_CORE_REFS_H

#include <stdatomic.h>
#include <stdbool.h>

/* Drop a reference unless it is the last one; false, with nothing done, if it
 * is.  One atomic step: between a test of the count and a drop, another thread
 * could make the reference the last one. */
static inline bool
ps_refs_drop_shared(atomic_uint *refs)
{
    unsigned count = atomic_load(refs);
    while (count > 1) {
        if (atomic_compare_exchange_weak(refs, &count, count - 1)) {
            return true;
        }
    }
    return false;
}

#endif
