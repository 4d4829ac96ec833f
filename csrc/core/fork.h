/* Fork generations: they tell whether an object was created in this process or
 * in one of its ancestors. */
#ifndef PYSTREAMS_CORE_FORK_H
#define PYSTREAMS_CORE_FORK_H

#include <stdatomic.h>

/* The number of forks between the first process and this one.  Each object
 * stores the number of forks at the time of its creation.  If the stored
 * number differs from the present one, an ancestor of this process created the
 * object. */
extern atomic_uint ps_fork_generation;

static inline unsigned
ps_generation(void)
{
    return atomic_load_explicit(&ps_fork_generation, memory_order_relaxed);
}

/* Increment the generation.  Call this first in a forked child. */
void ps_fork_begin_child(void);

#endif
