/* A lock for calls of the driver that begin and end captures. */
#include "captures.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static atomic_int captures;

void
cuda_captures_hold(void)
{
    pthread_rwlock_wrlock(&lock);
}

void
cuda_captures_share(void)
{
    pthread_rwlock_rdlock(&lock);
    if (cuda_captures_exist()) {
        pthread_rwlock_unlock(&lock);
        pthread_rwlock_wrlock(&lock);
    }
}

void
cuda_captures_release(void)
{
    pthread_rwlock_unlock(&lock);
}

void
cuda_captures_count(void)
{
    atomic_fetch_add(&captures, 1);
}

void
cuda_captures_uncount(void)
{
    atomic_fetch_sub(&captures, 1);
}

bool
cuda_captures_exist(void)
{
    return atomic_load_explicit(&captures, memory_order_relaxed) > 0;
}
