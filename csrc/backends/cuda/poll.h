/* Threads that ask, again and again, whether something is done, because
 * nothing tells them: often at first, less often the longer it takes. */
#ifndef PYSTREAMS_CUDA_POLL_H
#define PYSTREAMS_CUDA_POLL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <pystreams/backend.h>

enum {
    CUDA_MICROSECOND = 1000,
    CUDA_MILLISECOND = 1000 * CUDA_MICROSECOND,
};

int64_t cuda_now_ns(void);

/* How long not to ask after so long a wait: a part in 250 of it, so that what
 * is late is late by little, for less than a hundredth of a core. */
int64_t cuda_rest_ns(int64_t waited);

struct cuda_poller {
    const char *name; /* of the thread */
    /* Ask for everything; whether there is something left to ask for. */
    bool (*sweep)(struct cuda_poller *poller);
    pthread_mutex_t lock; /* guards starting and ending the thread */
    bool started;
    pthread_t thread;
    atomic_bool stopping;
    /* Posted when there is something new while the thread sleeps. */
    sem_t call;
    atomic_bool asleep;
    atomic_ullong given;    /* things to ask for, ever */
    _Atomic int64_t latest; /* when the latest was given */
};

/* See to it that there is a thread.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status cuda_poller_ensure(struct cuda_poller *poller);

/* There is one thing more to ask for, which sweep may have met already. */
void cuda_poller_give(struct cuda_poller *poller);

/* Whether sweep is to leave things as they are. */
bool cuda_poller_stopping(struct cuda_poller *poller);

/* End the thread for good; PS_ERROR_NOT_READY after the deadline. */
ps_status cuda_poller_stop(struct cuda_poller *poller, int64_t deadline);

#endif
