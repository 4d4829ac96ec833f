/* Counts of references that several threads drop. */
#ifndef PYSTREAMS_CORE_REFS_H
#define PYSTREAMS_CORE_REFS_H

#include <stdatomic.h>
#include <stdbool.h>

/* Drop a reference that is not the last one.  False, with nothing done, if
 * it is: to look at the count first and then drop would let another thread
 * make it the last in between. */
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
