/* Locks for driver calls that begin, join and end captures. */
#include "captures.h"

#include <pthread.h>
#include <stdatomic.h>

#include "clock.h"

enum { LIMIT = 100 * CUDA_MILLISECOND, PAUSE = 50 * CUDA_MICROSECOND };

/* ---- All captures ---- */

static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER;
static atomic_int captures;

void
cuda_captures_hold(void)
{
    pthread_mutex_lock(&holding);
}

bool
cuda_captures_try_hold(void)
{
    struct timespec until =
        cuda_timespec(cuda_clock_ns(CLOCK_REALTIME) + LIMIT);

    return pthread_mutex_timedlock(&holding, &until) == 0;
}

void
cuda_captures_release(void)
{
    pthread_mutex_unlock(&holding);
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
    return atomic_load_explicit(&captures, memory_order_acquire) > 0;
}

/* ---- One stream ---- */

/* Guards the list of the streams that threads have entered. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_entered *entered_streams;

/* Add the entry to the list.  If another thread has entered the stream, return
 * false instead, unless `anyway` is true. */
static bool
try_enter(struct cuda_entered *entered, bool anyway)
{
    pthread_mutex_lock(&lock);
    const struct cuda_entered *other = entered_streams;
    while (other != NULL && other->stream != entered->stream) {
        other = other->next;
    }
    bool added = other == NULL || anyway;
    if (added) {
        entered->next = entered_streams;
        entered_streams = entered;
    }
    pthread_mutex_unlock(&lock);
    return added;
}

void
cuda_stream_enter(struct cuda_entered *entered, ps_handle stream)
{
    int64_t limit = cuda_now_ns() + LIMIT;

    entered->stream = stream;
    /* The handle of a default stream means a different stream on each device
     * or thread.  Those of devices are never captured, and those of threads
     * are used by one thread only. */
    while (!try_enter(entered, stream <= PS_STREAM_PER_THREAD ||
                                   cuda_now_ns() > limit)) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
    }
}

void
cuda_stream_leave(struct cuda_entered *entered)
{
    pthread_mutex_lock(&lock);
    struct cuda_entered **link = &entered_streams;
    while (*link != entered) {
        link = &(*link)->next;
    }
    *link = entered->next;
    pthread_mutex_unlock(&lock);
}
