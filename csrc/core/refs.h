/* Reference counts that several threads change. */
#ifndef PYSTREAMS_CORE_REFS_H
#define PYSTREAMS_CORE_REFS_H

#include <stdatomic.h>
#include <stdbool.h>

/* Drop a reference unless it is the last one.  Returns false, and changes
 * nothing, if it is the last one.  The test and the decrement are one atomic
 * step, because another thread could drop its reference between two separate
 * steps, and then this call would drop the last one. */
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
