/* The default streams of threads (PS_STREAM_PER_THREAD).  Each thread has a
 * blocking stream of its own on each device, which is created when the thread
 * first uses it.  The handles of these streams are thread-local.  The streams
 * are destroyed at the latest when their thread ends. */
#include "engine.h"

#include <stdlib.h>

/* The destructor of engine->thread_key.  Destroys the default streams of a
 * thread that ends. */
static void
thread_ends(void *value)
{
    struct cpu_thread *thread = value;
    struct cpu_engine *engine = thread->engine;
    cpu_lock(engine);
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_slot *slot =
            thread->forks == cpu_forks
                ? cpu_slot_find_locked(engine, CPU_STREAM, i,
                                       thread->handles[i])
                : NULL;
        if (slot != NULL) {
            cpu_stream_give_up_locked(slot);
        }
    }
    cpu_unlock(engine);
    free(thread);
}

bool
cpu_thread_streams_init(struct cpu_engine *engine)
{
    return pthread_key_create(&engine->thread_key, thread_ends) == 0;
}

/* Returns the calling thread's struct cpu_thread.  Allocates it if the thread
 * has none yet.  Returns NULL if out of memory. */
static struct cpu_thread *
this_thread(struct cpu_engine *engine)
{
    struct cpu_thread *thread = pthread_getspecific(engine->thread_key);
    if (thread != NULL) {
        return thread;
    }
    thread = calloc(1, sizeof(*thread) + (size_t)engine->device_count *
                                             sizeof(thread->handles[0]));
    if (thread == NULL) {
        return NULL;
    }
    thread->engine = engine;
    if (pthread_setspecific(engine->thread_key, thread) != 0) {
        free(thread);
        return NULL;
    }
    return thread;
}

void
cpu_thread_streams_trim_locked(struct cpu_engine *engine)
{
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_stream *next;
        struct cpu_stream *stream = LIST_FIRST(&engine->devices[i].blocking);
        for (; stream != NULL; stream = next) {
            next = LIST_NEXT(stream, siblings);
            struct cpu_slot *slot =
                cpu_slot_find_locked(engine, CPU_STREAM, i,
                                     stream->handle & ~PS_THREAD_STREAM_NAME);
            if ((stream->handle & PS_THREAD_STREAM_NAME) && slot != NULL &&
                stream->first == NULL && stream->capture == NULL) {
                cpu_stream_give_up_locked(slot);
            }
        }
    }
}

static ps_status
cpu_thread_stream(const struct ps_backend *backend, int device,
                  ps_handle *name)
{
    CPU_ENTER(engine, backend);
    struct cpu_thread *thread = this_thread(engine);
    if (thread == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (thread->forks != cpu_forks) {
        thread->forks = cpu_forks;
        memset(thread->handles, 0,
               (size_t)engine->device_count * sizeof(thread->handles[0]));
    }
    ps_handle *handle = &thread->handles[device];
    if (cpu_slot_find_locked(engine, CPU_STREAM, device, *handle) == NULL) {
        struct cpu_stream *stream =
            cpu_stream_make_locked(engine, device, 0, true);
        if (stream == NULL) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        *handle = stream->handle;
        stream->handle |= PS_THREAD_STREAM_NAME;
    }
    *name = *handle | PS_THREAD_STREAM_NAME;
    return PS_SUCCESS;
}

void
cpu_thread_stream_members(struct ps_backend *table)
{
    table->thread_stream = cpu_thread_stream;
}
