/* Threads that ask; poll.h says when. */
#include "poll.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "driver.h"

enum { SECOND = 1000 * CUDA_MILLISECOND };

int64_t
cuda_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

int64_t
cuda_rest_ns(int64_t waited)
{
    enum { LEAST = 20 * CUDA_MICROSECOND, MOST = 4 * CUDA_MILLISECOND };
    int64_t rest = waited / 250;

    return rest < LEAST ? LEAST : rest > MOST ? MOST : rest;
}

/* Sleep for a while, no shorter than it took to ask, or until something is
 * given that was not seen. */
static void
back_off(struct cuda_poller *poller, unsigned long long seen, bool idle,
         int64_t began)
{
    int64_t now = cuda_now_ns();
    int64_t rest = cuda_rest_ns(now - atomic_load(&poller->latest));
    int64_t end = now + (rest > now - began ? rest : now - began);
    struct timespec until = {end / SECOND, end % SECOND};

    atomic_store(&poller->asleep, true);
    if (atomic_load(&poller->given) == seen &&
        !atomic_load(&poller->stopping)) {
        if (idle) {
            sem_wait(&poller->call);
        }
        else {
            sem_clockwait(&poller->call, CLOCK_MONOTONIC, &until);
        }
    }
    atomic_store(&poller->asleep, false);
}

static void *
poller_main(void *argument)
{
    struct cuda_poller *poller = argument;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    /* Whatever other threads capture, asking does not disturb it. */
    cuda_driver.capture_mode(&mode);
    /* Otherwise the kernel may wake it 50 us late. */
    prctl(PR_SET_TIMERSLACK, 1);
    while (!atomic_load(&poller->stopping)) {
        unsigned long long seen = atomic_load(&poller->given);
        int64_t began = cuda_now_ns();
        bool more = poller->sweep(poller);
        back_off(poller, seen, !more, began);
    }
    return NULL;
}

static ps_status
start_locked(struct cuda_poller *poller)
{
    sigset_t all, before;
    int error;

    sem_init(&poller->call, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&poller->thread, NULL, poller_main, poller);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_setname_np(poller->thread, poller->name);
    poller->started = true;
    return PS_SUCCESS;
}

ps_status
cuda_poller_ensure(struct cuda_poller *poller)
{
    ps_status status = PS_ERROR_SHUTTING_DOWN;

    pthread_mutex_lock(&poller->lock);
    if (!cuda_poller_stopping(poller)) {
        status = poller->started ? PS_SUCCESS : start_locked(poller);
    }
    pthread_mutex_unlock(&poller->lock);
    return status;
}

void
cuda_poller_give(struct cuda_poller *poller)
{
    atomic_store(&poller->latest, cuda_now_ns());
    atomic_fetch_add(&poller->given, 1);
    if (atomic_exchange(&poller->asleep, false)) {
        sem_post(&poller->call);
    }
}

bool
cuda_poller_stopping(struct cuda_poller *poller)
{
    return atomic_load(&poller->stopping);
}

ps_status
cuda_poller_stop(struct cuda_poller *poller, int64_t deadline)
{
    struct timespec until = {deadline / SECOND, deadline % SECOND};
    ps_status status = PS_SUCCESS;

    pthread_mutex_lock(&poller->lock);
    atomic_store(&poller->stopping, true);
    if (poller->started) {
        sem_post(&poller->call);
        if (pthread_clockjoin_np(poller->thread, NULL, CLOCK_MONOTONIC,
                                 &until) == 0) {
            poller->started = false;
        }
        else {
            status = PS_ERROR_NOT_READY;
        }
    }
    pthread_mutex_unlock(&poller->lock);
    return status;
}
