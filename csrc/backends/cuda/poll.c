/* Completions and their pollers; poll.h says why they are needed. */
#include "poll.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "clock.h"
#include "offers.h"
#include "side.h"
#include "table.h"

_Static_assert(offsetof(struct cuda_completion, notifications) == 0,
               "a ring's address is its completion's");

/* ---- Time ---- */

int64_t
cuda_rest_ns(int64_t waited)
{
    enum { LEAST = 20 * CUDA_MICROSECOND, MOST = 8 * CUDA_MILLISECOND };
    int64_t rest = waited / 125;

    return rest < LEAST ? LEAST : rest > MOST ? MOST : rest;
}

/* ---- Completions ---- */

/* For each device, a list of unused completions.  They keep their own events
 * for reuse. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_completion *spare[CUDA_DEVICES];

ps_status
cuda_completion_take(int device, struct cuda_completion **result)
{
    pthread_mutex_lock(&spare_lock);
    struct cuda_completion *taken = spare[device];
    if (taken != NULL) {
        spare[device] = taken->chain;
    }
    pthread_mutex_unlock(&spare_lock);
    if (taken == NULL && (taken = calloc(1, sizeof(*taken))) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *taken = (struct cuda_completion){
        .device = device, .kind = CUDA_ALONE, .own = taken->own};
    *result = taken;
    return PS_SUCCESS;
}

void
cuda_completion_release(struct cuda_completion *completion)
{
    int device = completion->device;

    if (completion->destroys) {
        (void)ON_DEVICE(device,
                        cudaEventDestroy((cudaEvent_t)completion->polled));
    }
    if (completion->side != NULL) {
        cuda_side_release(completion->side);
    }
    pthread_mutex_lock(&spare_lock);
    completion->chain = spare[device];
    spare[device] = completion;
    pthread_mutex_unlock(&spare_lock);
}

ps_status
cuda_completion_event(struct cuda_completion *completion)
{
    return completion->own != NULL
               ? PS_SUCCESS
               : (ps_status)cudaEventCreateWithFlags(&completion->own,
                                                     cudaEventDisableTiming);
}

ps_status
cuda_completion_record(struct cuda_completion *completion, ps_handle stream)
{
    ps_status status = cuda_completion_event(completion);

    if (status == PS_SUCCESS) {
        status = cuda_driver.event_record(completion->own, (CUstream)stream);
    }
    if (status == PS_SUCCESS) {
        completion->polled = completion->own;
    }
    return status;
}

/* Query a completion.  Returns PS_ERROR_NOT_READY, or the status of the work
 * if it is done. */
static ps_status
completion_query(const struct cuda_completion *completion)
{
    _Atomic uint32_t *word = completion->word;

    if (word == NULL) {
        return cuda_driver.event_query(completion->polled);
    }
    if ((int32_t)(atomic_load_explicit(word, memory_order_acquire) -
                  completion->number) < 0) {
        return PS_ERROR_NOT_READY;
    }
    if (completion->takes) {
        atomic_fetch_sub(word, 1);
    }
    return PS_SUCCESS;
}

/* ---- Queues ---- */

enum { CHAINS = 1024 };

/* A polling thread, and the queues that it polls. */
struct poller {
    const char *name; /* the thread's name */
    /* Guards the fields below.  Not held during CUDA calls. */
    pthread_mutex_t lock;
    /* Signalled when there is new work, when the thread must stop, and when it
     * ends.  The condition uses the monotonic clock, which a static
     * initializer cannot select.  So the condition is initialized again when
     * the thread is started. */
    pthread_cond_t wake;
    pthread_cond_t left; /* signalled when the use of a completion ends */
    bool started;
    bool ended;
    pthread_t thread;
    atomic_bool stopping;
    /* The number of notifications that were ever added. */
    unsigned long long given;
    int64_t latest; /* the time when the latest notification was added */
    /* A hash table of the queues by their handles.  The queues with the same
     * hash form a chain.  The table's element points to the first completion
     * of the first queue in the chain.  The member `chain` of that completion
     * points to the first completion of the next queue, and so on. */
    struct cuda_completion *chains[CHAINS];
};

#define POLLER(thread_name)                                                \
    {                                                                      \
        .name = thread_name, .lock = PTHREAD_MUTEX_INITIALIZER,            \
        .wake = PTHREAD_COND_INITIALIZER, .left = PTHREAD_COND_INITIALIZER \
    }

/* Two pollers are needed, because a query of an event may block until another
 * thread's copy is done.  That copy may be waiting for a gate that is opened
 * only after a poller has seen a word. */
static struct poller events = POLLER("ps-cuda-events");
static struct poller words = POLLER("ps-cuda-words");

atomic_int cuda_events_polled;

static struct poller *
poller_of(const struct cuda_completion *completion)
{
    return completion->word != NULL ? &words : &events;
}

static struct cuda_completion **
chain_of(struct poller *poller, ps_handle handle)
{
    /* Handles are addresses, whose lowest bits are all alike, so these are
     * left out of the hash. */
    return &poller->chains[((handle >> 6) + (handle >> 12)) % CHAINS];
}

/* Find the queue of a handle.  Returns the address of a pointer to the queue's
 * first completion.  This pointer is an element of chains[] or, if other
 * queues come before it in the chain, the member `chain` of another queue's
 * first completion.  If there is no such queue, the pointer is the NULL
 * pointer at the end of the chain. */
static struct cuda_completion **
find_locked(struct poller *poller, enum cuda_completion_kind kind, int device,
            ps_handle handle)
{
    struct cuda_completion **link = chain_of(poller, handle), *first;

    while ((first = *link) != NULL &&
           (kind == CUDA_ALONE || first->kind != kind ||
            first->device != device || first->handle != handle)) {
        link = &first->chain;
    }
    return link;
}

/* Append the completion to the handle's queue. */
static void
append_locked(struct poller *poller, struct cuda_completion *completion,
              enum cuda_completion_kind kind, ps_handle handle)
{
    completion->kind = kind;
    completion->handle = kind != CUDA_ALONE ? handle : (ps_handle)completion;
    struct cuda_completion **link =
        find_locked(poller, kind, completion->device, completion->handle);
    struct cuda_completion *first = *link;
    if (first == NULL) {
        completion->next = completion->previous = completion;
        *link = completion;
    }
    else {
        completion->next = first;
        completion->previous = first->previous;
        first->previous->next = completion;
        first->previous = completion;
    }
    if (kind == CUDA_OF_EVENT) {
        atomic_fetch_add(&cuda_events_polled, 1);
    }
}

/* Make sure that find_locked does not find the completion by its handle any
 * more. */
static void
hide_locked(struct cuda_completion *completion)
{
    if (completion->kind == CUDA_OF_EVENT) {
        atomic_fetch_sub(&cuda_events_polled, 1);
    }
    completion->kind = CUDA_ALONE;
}

/* Remove the completion from its queue. */
static void
remove_locked(struct poller *poller, struct cuda_completion *completion)
{
    struct cuda_completion **link = chain_of(poller, completion->handle);
    struct cuda_completion *next = completion->next;

    while (*link != NULL && *link != completion) {
        link = &(*link)->chain;
    }
    if (*link == completion) {
        *link = next != completion ? next : completion->chain;
        next->chain = completion->chain;
    }
    next->previous = completion->previous;
    completion->previous->next = next;
    hide_locked(completion);
}

/* If the completion has no notifications and is not in use, remove it from its
 * queue and return true; the caller must release it.  Otherwise return
 * false. */
static bool
trim_locked(struct poller *poller, struct cuda_completion *completion)
{
    bool removed =
        completion->notifications == NULL && completion->use == CUDA_UNUSED;

    if (removed) {
        remove_locked(poller, completion);
    }
    return removed;
}

/* ---- The threads ---- */

/* Query the first completion of a queue.  The lock is released during the
 * query.  Returns true if the completion can be removed, because it has
 * occurred or has no notifications left. */
static bool
is_over_locked(struct poller *poller, struct cuda_completion *first)
{
    if (first->use == CUDA_ENTERED) {
        return false;
    }
    first->use = CUDA_POLLED;
    pthread_mutex_unlock(&poller->lock);
    first->status = completion_query(first);
    pthread_mutex_lock(&poller->lock);
    first->use = CUDA_UNUSED;
    pthread_cond_broadcast(&poller->left);
    return first->status != PS_ERROR_NOT_READY || first->notifications == NULL;
}

/* Turn the completion's ring of notifications into a list.  After this call,
 * these notifications cannot be cancelled any more. */
static void
detach_locked(struct cuda_completion *completion)
{
    struct ps_notification *last = completion->notifications;

    if (last != NULL) {
        completion->notifications = last->next;
        last->next = NULL;
    }
    for (last = completion->notifications; last != NULL; last = last->next) {
        last->ring = NULL;
    }
}

/* Do one round of polling.  Polls the completions of each queue in order, up
 * to the first one that has not occurred.  Removes the completions that have
 * occurred or have no notifications left, and returns them as a list linked by
 * `chain`.  *more becomes true if any completions are left, and false
 * otherwise. */
static struct cuda_completion *
sweep_locked(struct poller *poller, bool *more)
{
    struct cuda_completion *over = NULL, **tail = &over;

    *more = false;
    for (int i = 0; i < CHAINS; i++) {
        struct cuda_completion *c = poller->chains[i];
        while (c != NULL) {
            if (!is_over_locked(poller, c)) {
                *more = true;
                c = c->chain;
                continue;
            }
            struct cuda_completion *next = c->next != c ? c->next : c->chain;
            remove_locked(poller, c);
            detach_locked(c);
            *tail = c;
            tail = &c->chain;
            c = next;
        }
    }
    *tail = NULL;
    return over;
}

/* Call the completion's notifications, and release the completion.  As soon as
 * a notification is called, its memory belongs to its owner again. */
static void
complete(struct cuda_completion *completion)
{
    struct ps_notification *n = completion->notifications, *next;

    for (; n != NULL; n = next) {
        next = n->next;
        n->reached(n->argument, completion->status);
    }
    cuda_completion_release(completion);
}

/* Sleep until a notification is added or the poller must stop.  If `more` is
 * true, the sleep also ends after the time that cuda_rest_ns returns, or after
 * the time that the last round of polling took, whichever is longer.  That
 * round began at the time `began`, when poller->given was `seen`. */
static void
back_off_locked(struct poller *poller, unsigned long long seen, bool more,
                int64_t began)
{
    int64_t now = cuda_now_ns(), took = now - began;
    int64_t rest = cuda_rest_ns(now - poller->latest);
    struct timespec until =
        cuda_timespec(more ? now + (rest > took ? rest : took) : INT64_MAX);
    int error = 0;

    while (error == 0 && poller->given == seen &&
           !atomic_load(&poller->stopping)) {
        error = pthread_cond_timedwait(&poller->wake, &poller->lock, &until);
    }
}

static void *
poller_main(void *argument)
{
    struct poller *poller = argument;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    /* Set the relaxed mode, so that polling invalidates no capture of another
     * thread. */
    cuda_driver.capture_mode(&mode);
    /* With the default timer slack, the kernel may end a sleep 50 us too
     * late. */
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&poller->lock);
    while (!atomic_load(&poller->stopping)) {
        unsigned long long seen = poller->given;
        int64_t began = cuda_now_ns();
        bool more;
        struct cuda_completion *over = sweep_locked(poller, &more), *c;
        pthread_mutex_unlock(&poller->lock);
        while ((c = over) != NULL && !atomic_load(&poller->stopping)) {
            over = c->chain;
            complete(c);
        }
        pthread_mutex_lock(&poller->lock);
        back_off_locked(poller, seen, more, began);
    }
    poller->ended = true;
    pthread_cond_broadcast(&poller->wake);
    pthread_mutex_unlock(&poller->lock);
    return NULL;
}

/* Start the poller's thread if it is not running. */
static ps_status
start_locked(struct poller *poller)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;

    if (atomic_load(&poller->stopping)) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (!poller->started) {
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&poller->wake, &monotonic);
        pthread_condattr_destroy(&monotonic);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        poller->started =
            pthread_create(&poller->thread, NULL, poller_main, poller) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!poller->started) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        pthread_setname_np(poller->thread, poller->name);
    }
    return PS_SUCCESS;
}

/* End the poller's thread.  Returns PS_ERROR_NOT_READY if it has not ended by
 * the deadline. */
static ps_status
poller_stop(struct poller *poller, int64_t deadline)
{
    struct timespec until = cuda_timespec(deadline);
    int error = 0;

    pthread_mutex_lock(&poller->lock);
    atomic_store(&poller->stopping, true);
    pthread_cond_broadcast(&poller->wake);
    while (poller->started && !poller->ended && error == 0) {
        error = pthread_cond_timedwait(&poller->wake, &poller->lock, &until);
    }
    bool over = !poller->started || poller->ended;
    pthread_mutex_unlock(&poller->lock);
    if (!over) {
        return PS_ERROR_NOT_READY;
    }
    if (poller->started) {
        pthread_join(poller->thread, NULL);
    }
    poller->started = false;
    return PS_SUCCESS;
}

ps_status
cuda_shutdown(const struct ps_backend *backend, int64_t timeout_ns)
{
    static pthread_mutex_t stopping = PTHREAD_MUTEX_INITIALIZER;
    int64_t deadline = cuda_now_ns() + timeout_ns;

    pthread_mutex_lock(&stopping);
    ps_status status = poller_stop(&words, deadline);
    ps_status other = poller_stop(&events, deadline);
    cuda_offers_stop();
    pthread_mutex_unlock(&stopping);
    return status != PS_SUCCESS ? status : other;
}

/* ---- Entering and leaving ---- */

static void
give_locked(struct poller *poller, struct cuda_completion *completion,
            struct ps_notification *notification)
{
    ps_notification_append(&completion->notifications, notification);
    poller->given++;
    poller->latest = cuda_now_ns();
}

ps_status
cuda_poll_enter(int device, ps_handle stream, _Atomic uint32_t *word,
                struct cuda_completion **result)
{
    enum cuda_completion_kind kind =
        stream != CUDA_NO_STREAM ? CUDA_OF_STREAM : CUDA_ALONE;
    struct cuda_completion *entered, *first;
    ps_status status = cuda_completion_take(device, &entered);

    if (status != PS_SUCCESS) {
        return status;
    }
    entered->word = word;
    struct poller *poller = poller_of(entered);
    pthread_mutex_lock(&poller->lock);
    while ((first = *find_locked(poller, kind, device, stream)) != NULL &&
           first->previous->use == CUDA_ENTERED) {
        pthread_cond_wait(&poller->left, &poller->lock);
    }
    status = start_locked(poller);
    if (status == PS_SUCCESS) {
        entered->use = CUDA_ENTERED;
        append_locked(poller, entered, kind, stream);
    }
    pthread_mutex_unlock(&poller->lock);
    if (status != PS_SUCCESS) {
        cuda_completion_release(entered);
        return status;
    }
    *result = entered;
    return PS_SUCCESS;
}

void
cuda_poll_leave(struct cuda_completion *completion,
                struct ps_notification *notification)
{
    struct poller *poller = poller_of(completion);

    pthread_mutex_lock(&poller->lock);
    completion->use = CUDA_UNUSED;
    if (completion->polled == completion->own &&
        completion->kind == CUDA_OF_EVENT) {
        hide_locked(completion);
    }
    if (notification != NULL) {
        give_locked(poller, completion, notification);
    }
    bool removed = trim_locked(poller, completion);
    pthread_mutex_unlock(&poller->lock);
    pthread_cond_broadcast(&poller->left);
    if (notification != NULL) {
        pthread_cond_signal(&poller->wake);
    }
    if (removed) {
        cuda_completion_release(completion);
    }
}

ps_status
cuda_poll_event(int device, ps_handle event,
                struct ps_notification *notification)
{
    pthread_mutex_lock(&events.lock);
    struct cuda_completion *completion =
        *find_locked(&events, CUDA_OF_EVENT, device, event);
    ps_status status = start_locked(&events);
    if (completion == NULL && status == PS_SUCCESS) {
        status = cuda_completion_take(device, &completion);
        if (status == PS_SUCCESS) {
            completion->polled = (CUevent)event;
            append_locked(&events, completion, CUDA_OF_EVENT, event);
        }
    }
    if (status == PS_SUCCESS) {
        give_locked(&events, completion, notification);
    }
    pthread_mutex_unlock(&events.lock);
    pthread_cond_signal(&events.wake);
    return status;
}

struct cuda_completion *
cuda_poll_enter_event(int device, ps_handle event)
{
    struct cuda_completion *found;

    pthread_mutex_lock(&events.lock);
    while ((found = *find_locked(&events, CUDA_OF_EVENT, device, event)) !=
               NULL &&
           found->use != CUDA_UNUSED) {
        pthread_cond_wait(&events.left, &events.lock);
    }
    if (found != NULL) {
        found->use = CUDA_ENTERED;
    }
    pthread_mutex_unlock(&events.lock);
    return found;
}

bool
cuda_poll_adopt(int device, ps_handle event)
{
    pthread_mutex_lock(&events.lock);
    struct cuda_completion *found =
        *find_locked(&events, CUDA_OF_EVENT, device, event);
    if (found != NULL) {
        hide_locked(found);
        found->destroys = true;
    }
    pthread_mutex_unlock(&events.lock);
    return found != NULL;
}

static ps_status
cancel(struct poller *poller, struct ps_notification *notification)
{
    struct cuda_completion *completion = NULL;
    ps_status status = PS_ERROR_TOO_LATE;
    bool removed = false;

    pthread_mutex_lock(&poller->lock);
    if (notification->ring != NULL) {
        completion = (struct cuda_completion *)notification->ring;
        ps_notification_remove(notification);
        removed = trim_locked(poller, completion);
        status = PS_SUCCESS;
    }
    pthread_mutex_unlock(&poller->lock);
    if (removed) {
        cuda_completion_release(completion);
    }
    return status;
}

ps_status
cuda_notify_cancel(const struct ps_backend *backend, int device,
                   struct ps_notification *notification)
{
    return cancel(&events, notification);
}

void
cuda_poll_withdraw(struct ps_notification *notification)
{
    (void)cancel(&words, notification);
}
