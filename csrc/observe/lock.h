/* A macro that holds a mutex until the end of the enclosing block. */
#ifndef PYSTREAMS_OBSERVE_LOCK_H
#define PYSTREAMS_OBSERVE_LOCK_H

#include <pthread.h>

/* Lock the mutex now, and unlock it when control leaves the enclosing
 * block. */
#define PS_HOLD(mutex)                                                 \
    pthread_mutex_t *held_ __attribute__((cleanup(ps_lock_release))) = \
        ps_lock_take(mutex)

static inline pthread_mutex_t *
ps_lock_take(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void
ps_lock_release(pthread_mutex_t **held)
{
    pthread_mutex_unlock(*held);
}

#endif
