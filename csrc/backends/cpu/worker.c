/* Workers: the few threads that serve all streams of an engine, an operation
 * at a time, as the scheduler says; and the timer, which wakes the sleepers on
 * time even while every worker is busy.  Nobody releases the lock before a
 * worker is on its way to the work that is left; a worker looks for more
 * before it sleeps. */
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

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
cpu_sleeper_add_locked(struct cpu_stream *stream, int64_t duration)
{
    struct cpu_engine *engine = stream->engine;
    stream->deadline = cpu_deadline(engine, duration);
    stream->left = stream->right = NULL;
    engine->sleepers = sleepers_meld(engine->sleepers, stream);
    if (engine->sleepers == stream) {
        pthread_cond_signal(&engine->early);
    }
}

static void *
timer_main(void *argument)
{
    struct cpu_engine *engine = argument;
    /* Otherwise the kernel may wake it 50 us late. */
    prctl(PR_SET_TIMERSLACK, 1);
    cpu_lock(engine);
    while (engine->phase == CPU_OPEN) {
        struct cpu_stream *stream = engine->sleepers;
        int64_t deadline = stream != NULL ? stream->deadline : CPU_FOREVER;
        if (engine->clock->now(engine) < deadline) {
            engine->clock->wait_locked(engine, &engine->early, deadline);
            continue;
        }
        engine->sleepers = sleepers_meld(stream->left, stream->right);
        if (!cpu_stream_serve_locked(stream) ||
            !cpu_stream_help_locked(stream) ||
            !cpu_engine_help_locked(engine)) {
            return NULL;
        }
        cpu_unlock(engine);
        cpu_lock(engine);
    }
    cpu_engine_leave_locked(engine);
    cpu_unlock(engine);
    return NULL;
}

/* ---- Workers ---- */

static void
worker_sleep_locked(struct cpu_engine *engine)
{
    engine->idle++;
    engine->clock->wait_locked(engine, &engine->work, CPU_FOREVER);
    engine->idle--;
    engine->coming = false;
}

static void *
worker_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned served = 0;
    cpu_lock(engine);
    engine->coming = false;
    while (engine->phase == CPU_OPEN) {
        struct cpu_stream *stream = engine->scheduler(engine);
        if (stream == NULL) {
            if (!cpu_may_notify(engine)) {
                worker_sleep_locked(engine);
            }
            else if (!cpu_notify_due_locked(engine)) {
                return NULL;
            }
            continue;
        }
        struct cpu_operation *operation = stream->first;
        bool frees = operation->kind == CPU_FREE;
        engine->ready_count--;
        if (!cpu_stream_serve_locked(stream)) {
            return NULL;
        }
        cpu_stream_settle_locked(stream);
        if (frees) {
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
    cpu_engine_leave_locked(engine);
    cpu_unlock(engine);
    return NULL;
}

bool
cpu_thread_start_locked(struct cpu_engine *engine, void *(*body)(void *),
                        const char *name)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, body, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        return false;
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread);
    engine->running++;
    return true;
}

static bool
worker_start_locked(struct cpu_engine *engine)
{
    char name[24];
    snprintf(name, sizeof(name), "ps-cpu-%u", engine->workers);
    if (!cpu_thread_start_locked(engine, worker_main, name)) {
        return false;
    }
    engine->workers++;
    engine->coming = true;
    return true;
}

void
cpu_engine_leave_locked(struct cpu_engine *engine)
{
    engine->running--;
    pthread_cond_broadcast(&engine->ended);
}

ps_status
cpu_engine_staff_locked(struct cpu_engine *engine, enum cpu_kind kind)
{
    if (engine->phase != CPU_OPEN) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (engine->workers == 0 && !worker_start_locked(engine)) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (kind == CPU_SLEEP && !engine->timer) {
        engine->timer =
            cpu_thread_start_locked(engine, timer_main, "ps-cpu-timer");
        return engine->timer ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

void
cpu_release(struct cpu_engine *engine)
{
    bool wanted = engine->phase == CPU_OPEN && !engine->coming &&
                  engine->ready_count > 0;
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
