/* The uses of blocks by streams.  No stream is asked about while it is being
 * captured: its work with the block is not over. */
#include "memory_use.h"

#include <stdlib.h>

#include "capture.h"
#include "event.h"
#include "memory.h"
#include "runtime.h"
#include "stream.h"

static atomic_ullong last_mark;

ps_status
ps_use_drop(struct ps_block_use *use)
{
    ps_status status = ps_event_unref(use->done);
    status = ps_first_failure(status, ps_stream_unref(use->stream));
    free(use);
    return status;
}

/* compute-sanitizer takes no query of an event for an order, and would report
 * the block's end as one that nothing keeps behind its use. */
static bool
is_done(struct ps_event *event)
{
    const struct ps_backend *backend = event->runtime->backend;
    ps_status status = ps_event_query(event);
    if (status == PS_SUCCESS) {
        backend->event_synchronize(backend, atomic_load(&event->device)->index,
                                   atomic_load(&event->handle));
    }
    return status != PS_ERROR_NOT_READY;
}

/* Whether the stream's work with a block that was given up is done; a failure
 * of that work is the stream's to tell.  wait: so that it is. */
static bool
is_over(struct ps_block_use *use, bool wait)
{
    if (ps_stream_in_capture(use->stream)) {
        return false;
    }
    if (use->done != NULL && !use->recorded) {
        ps_status status = ps_event_record(use->done, use->stream);
        use->recorded = status == PS_SUCCESS;
        if (status == PS_ERROR_NOT_READY && !wait) {
            return false;
        }
        wait = wait || status != PS_SUCCESS;
    }
    if (use->done != NULL && wait) {
        ps_stream_synchronize(use->stream);
        return true;
    }
    return use->done == NULL || is_done(use->done);
}

ps_status
ps_uses_forget_finished(struct ps_block *block, bool wait)
{
    ps_status status = PS_SUCCESS;
    struct ps_block_use **link = &block->uses;
    while (*link != NULL) {
        struct ps_block_use *use = *link;
        if (is_over(use, wait)) {
            *link = use->next;
            status = ps_first_failure(status, ps_use_drop(use));
        }
        else {
            link = &use->next;
        }
    }
    return status;
}

struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status)
{
    struct ps_block_use **link = &uses;
    while (*link != NULL) {
        struct ps_block_use *use = *link;
        if (ps_stream_query_quietly(use->stream) == PS_ERROR_NOT_READY) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        *status = ps_first_failure(*status, ps_use_drop(use));
    }
    return uses;
}

void
ps_uses_retire(struct ps_block *block)
{
    for (struct ps_block_use *use = block->uses; use; use = use->next) {
        if (ps_event_create(block->device->runtime, 0, &use->done) !=
            PS_SUCCESS) {
            ps_stream_synchronize(use->stream);
        }
        else {
            use->done->internal = true;
        }
    }
}

/* Take the use out of the block's, unless it was marked again. */
static bool
unlink_use_locked(struct ps_block *block, struct ps_block_use *wanted,
                  unsigned long long mark)
{
    struct ps_block_use **link = &block->uses;
    while (*link != NULL && *link != wanted) {
        link = &(*link)->next;
    }
    if (*link == NULL || wanted->mark != mark || wanted->lasting) {
        return false;
    }
    *link = wanted->next;
    return true;
}

/* A block that meets many streams must not keep them all alive: forget a use
 * whose stream is idle, of those that were added last. */
static ps_status
forget_idle_uses(struct ps_block *block)
{
    enum { LOOKED_AT = 16 };
    struct ps_device *device = block->device;
    struct {
        struct ps_block_use *use;
        struct ps_stream *stream;
        unsigned long long mark;
    } seen[LOOKED_AT];
    int count = 0;
    ps_status status = PS_SUCCESS;

    pthread_mutex_lock(&device->mutex);
    for (struct ps_block_use *use = block->uses;
         use != NULL && count < LOOKED_AT; use = use->next) {
        if (!use->lasting) {
            seen[count].use = use;
            seen[count].stream = ps_stream_ref(use->stream);
            seen[count++].mark = use->mark;
        }
    }
    pthread_mutex_unlock(&device->mutex);
    for (int i = 0; i < count; i++) {
        if (ps_stream_query_quietly(seen[i].stream) != PS_ERROR_NOT_READY) {
            pthread_mutex_lock(&device->mutex);
            bool mine = unlink_use_locked(block, seen[i].use, seen[i].mark);
            pthread_mutex_unlock(&device->mutex);
            if (mine) {
                status = ps_first_failure(status, ps_use_drop(seen[i].use));
            }
        }
        status = ps_first_failure(status, ps_stream_unref(seen[i].stream));
    }
    return status;
}

ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting)
{
    struct ps_device *device = block->device;
    ps_status status = ps_stream_is_captured(stream)
                           ? ps_capture_keep_block(block)
                           : PS_SUCCESS;
    if (status != PS_SUCCESS || stream == block->stream) {
        return status;
    }
    pthread_mutex_lock(&device->mutex);
    struct ps_block_use *use = block->uses;
    while (use != NULL && use->stream != stream) {
        use = use->next;
    }
    if (use != NULL) {
        use->lasting = use->lasting || lasting;
        use->mark = atomic_fetch_add(&last_mark, 1);
    }
    pthread_mutex_unlock(&device->mutex);
    if (use != NULL) {
        return PS_SUCCESS;
    }

    use = calloc(1, sizeof(*use));
    if (use == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    use->stream = ps_stream_ref(stream);
    use->lasting = lasting;
    use->mark = atomic_fetch_add(&last_mark, 1);
    pthread_mutex_lock(&device->mutex);
    use->next = block->uses;
    block->uses = use;
    pthread_mutex_unlock(&device->mutex);
    return forget_idle_uses(block);
}

ps_status
ps_block_streams(struct ps_block *block, struct ps_stream ***result,
                 size_t *count)
{
    struct ps_device *device = block->device;
    for (size_t capacity = 8;; capacity *= 2) {
        struct ps_stream **streams = calloc(capacity, sizeof(*streams));
        size_t n = 0;
        if (streams == NULL) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        if (block->stream != NULL) {
            streams[n++] = ps_stream_ref(block->stream);
        }
        pthread_mutex_lock(&device->mutex);
        struct ps_block_use *use = block->uses;
        for (; use != NULL && n < capacity; use = use->next) {
            streams[n++] = ps_stream_ref(use->stream);
        }
        pthread_mutex_unlock(&device->mutex);
        if (use == NULL) {
            *result = streams;
            *count = n;
            return PS_SUCCESS;
        }
        while (n > 0) {
            ps_stream_unref(streams[--n]);
        }
        free(streams);
    }
}
