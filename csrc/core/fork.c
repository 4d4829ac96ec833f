/* The fork generation.  It is changed only in a forked child, while the child
 * has a single thread. */
#include "fork.h"

atomic_uint ps_fork_generation;

void
ps_fork_begin_child(void)
{
    atomic_fetch_add(&ps_fork_generation, 1);
}
