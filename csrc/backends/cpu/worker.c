/* Workers: the few threads that serve all streams of an engine, an operation
 * at a time, and what they serve them by: the scheduler and the sleepers.
 * Nobody releases the lock before a worker is on its way to the work that is
 * left; a worker looks for more before it sleeps. */
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURN = 64 }; /* operations done before others may have the lock */

struct cpu_stream *
cpu_threaded_scheduler(struct cpu_engine *engine)
{
    struct cpu_stream *stream = NULL;
    for (int i = CPU_PRIORITIES - 1; i >= 0 && stream == NULL; i--) {
        stream = cpu_list_take(&engine->ready[i]);
    }
    return stream;
}

/* ---- Sleepers ---- */

/* Make one skew heap of two, either of which may be NULL. */
static struct cpu_stream *
sleepers_meld(struct cpu_stream *a, struct cpu_stream *b)
{
    struct cpu_stream *top = NULL, **link = &top;
    while (a != NULL && b != NULL) {
        struct cpu_stream *first = a->deadline <= b->deadline ? a : b;
        b = first == a ? b : a;
        a = first->right;
        first->right = first->left;
        *link = first;
        link = &first->left;
    }
    *link = a != NULL ? a : b;
    return top;
}

void
cpu_sleeper_add_locked(struct cpu_stream *stream, uint64_t duration)
{
    struct cpu_engine *engine = stream->engine;
    stream->deadline = cpu_deadline(engine, duration);
    stream->left = stream->right = NULL;
    engine->sleepers = sleepers_meld(engine->sleepers, stream);
}

static void
sleepers_expire_locked(struct cpu_engine *engine)
{
    if (engine->sleepers == NULL) {
        return;
    }
    int64_t now = engine->clock->now(engine);
    while (engine->sleepers != NULL && engine->sleepers->deadline <= now) {
        struct cpu_stream *stream = engine->sleepers;
        engine->sleepers = sleepers_meld(stream->left, stream->right);
        cpu_stream_ready_locked(stream);
    }
}

/* Whether a sleeper's time will come before any idle worker wakes up. */
static bool
sleepers_unwatched_locked(struct cpu_engine *engine)
{
    return engine->sleepers != NULL &&
           engine->sleepers->deadline < engine->watched;
}

/* ---- Workers ---- */

static void
worker_sleep_locked(struct cpu_engine *engine)
{
    int64_t deadline = CPU_FOREVER;
    if (sleepers_unwatched_locked(engine)) {
        deadline = engine->sleepers->deadline;
        engine->watched = deadline;
    }
    engine->idle++;
    engine->clock->wait_locked(engine, &engine->work, deadline);
    engine->idle--;
    engine->coming = false;
    if (engine->watched == deadline) {
        engine->watched = CPU_FOREVER;
    }
}

static void *
worker_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned served = 0;
    cpu_lock(engine);
    engine->coming = false;
    while (engine->phase == CPU_OPEN) {
        sleepers_expire_locked(engine);
        struct cpu_stream *stream = engine->scheduler(engine);
        if (stream == NULL) {
            worker_sleep_locked(engine);
            continue;
        }
        struct cpu_operation *operation = stream->first;
        engine->ready_count--;
        if (!cpu_stream_serve_locked(stream)) {
            return NULL;
        }
        if (operation->kind != CPU_FREE) {
            cpu_item_give_locked(engine, operation);
        }
        else {
            cpu_unlock(engine);
            free(operation);
            cpu_lock(engine);
        }
        if (++served % TURN == 0) {
            engine->coming = true;
            cpu_unlock(engine);
            cpu_lock(engine);
            engine->coming = false;
        }
    }
    engine->workers--;
    pthread_cond_broadcast(&engine->ended);
    cpu_unlock(engine);
    return NULL;
}

static bool
worker_start_locked(struct cpu_engine *engine)
{
    pthread_t thread;
    sigset_t all, before;
    char name[16];
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, worker_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        return false;
    }
    snprintf(name, sizeof(name), "ps-cpu-%u", engine->workers);
    pthread_setname_np(thread, name);
    pthread_detach(thread);
    engine->workers++;
    engine->coming = true;
    return true;
}

ps_status
cpu_engine_staff_locked(struct cpu_engine *engine)
{
    if (engine->phase != CPU_OPEN) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (engine->workers == 0 && !worker_start_locked(engine)) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

void
cpu_unlock(struct cpu_engine *engine)
{
    bool wanted =
        engine->phase == CPU_OPEN && !engine->coming &&
        (engine->ready_count > 0 || sleepers_unwatched_locked(engine));
    bool wake = wanted && engine->idle > 0;
    if (wake) {
        engine->coming = true;
    }
    else if (wanted && engine->workers < engine->worker_limit) {
        worker_start_locked(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    if (wake) {
        pthread_cond_signal(&engine->work);
    }
}
