/* Forks: which process of a family created an object. */
#ifndef PYSTREAMS_CORE_FORK_H
#define PYSTREAMS_CORE_FORK_H

#include <stdatomic.h>

/* The number of forks between the first process and this one.  An object of
 * another generation belongs to an ancestor. */
extern atomic_uint ps_fork_generation;

static inline unsigned
ps_generation(void)
{
    return atomic_load_explicit(&ps_fork_generation, memory_order_relaxed);
}

/* Begin the child's generation.  Call before anything else in the child. */
void ps_fork_begin_child(void);

#endif
