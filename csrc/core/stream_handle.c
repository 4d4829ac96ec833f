/* From a handle to a stream: one made here, or one that somebody else owns. */
#include "stream.h"

#include "runtime.h"
#include "status.h"

/* A reference unless the last one is being dropped. */
static bool
try_ref(struct ps_stream *stream)
{
    unsigned refs = atomic_load(&stream->refs);
    while (refs != 0 &&
           !atomic_compare_exchange_weak(&stream->refs, &refs, refs + 1)) {
    }
    return refs != 0;
}

/* A new reference to a live owned stream, or NULL.  Its handle may be used
 * where that is not seen. */
static struct ps_stream *
find_locked(struct ps_device *device, ps_handle handle)
{
    struct ps_stream *stream = device->streams;
    while (stream != NULL && !(stream->handle == handle && try_ref(stream))) {
        stream = stream->next;
    }
    if (stream != NULL) {
        atomic_store_explicit(&stream->used, true, memory_order_relaxed);
    }
    return stream;
}

static bool
is_pooled_locked(struct ps_device *device, ps_handle handle)
{
    bool found = false;
    for (int i = 0; i < device->pooled_stream_count; i++) {
        found = found || device->pooled_streams[i].handle == handle;
    }
    return found;
}

struct ps_stream *
ps_stream_find(struct ps_device *device, ps_handle handle)
{
    pthread_mutex_lock(&device->mutex);
    struct ps_stream *stream = find_locked(device, handle);
    pthread_mutex_unlock(&device->mutex);
    return stream;
}

ps_status
ps_stream_wrap(struct ps_device *device, ps_handle handle, void *owner,
               void (*release_owner)(void *owner), struct ps_stream **result)
{
    pthread_mutex_lock(&device->mutex);
    struct ps_stream *shared = find_locked(device, handle);
    bool given_up = shared == NULL && is_pooled_locked(device, handle);
    pthread_mutex_unlock(&device->mutex);
    if (given_up) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (shared != NULL && owner == NULL) {
        *result = shared;
        return PS_SUCCESS;
    }
    struct ps_stream *stream = ps_stream_new(device, PS_STREAM_EXTERNAL);
    if (stream == NULL) {
        return ps_first_failure(PS_ERROR_OUT_OF_MEMORY,
                                ps_stream_unref(shared));
    }
    stream->handle = handle;
    stream->priority = shared != NULL ? shared->priority : 0;
    stream->owner = owner;
    stream->release_owner = release_owner;
    stream->shared = shared;
    *result = stream;
    return PS_SUCCESS;
}
