/* The fork generation, which changes only while a forked child has its one
 * thread. */
#include "fork.h"

atomic_uint ps_fork_generation;

void
ps_fork_begin_child(void)
{
    atomic_fetch_add(&ps_fork_generation, 1);
}
