/* The uses of blocks by streams.  A stream that is being captured is never
 * queried.  Its uses are not over, because its captured work has not begun. */
#include "memory_use.h"

#include <stdlib.h>

#include "capture.h"
#include "event.h"
#include "lock.h"
#include "memory.h"
#include "runtime.h"
#include "stream.h"
#include "thread_stream.h"

static atomic_ullong last_mark;

ps_status
ps_use_drop(struct ps_block_use *use)
{
    ps_status status = ps_event_unref(use->done);
    status = ps_first_failure(status, ps_stream_unref(use->stream));
    free(use);
    return status;
}

/* Returns whether the status of a query means that the work is over.  Work
 * that has failed is over, too; other calls report the failure to the program.
 * A status about captures is possible because another thread may begin a
 * capture at any time.  After such a status, the work may still be pending. */
static bool
says_over(ps_status status)
{
    return status != PS_ERROR_NOT_READY &&
           !(status >= PS_ERROR_CAPTURE_UNSUPPORTED &&
             status <= PS_ERROR_CAPTURE_WRONG_THREAD);
}

static bool
is_done(struct ps_block_use *use)
{
    bool own = ps_own_begin(use->stream->device->runtime);
    ps_status status = ps_event_query(use->done);
    ps_own_end(own);
    /* If the record was captured, it never completes.  Then the next check
     * usually records the event again. */
    use->recorded = status != PS_ERROR_CAPTURED_EVENT;
    return says_over(status);
}

/* Called for a use by the default stream of another thread.  If that thread
 * has ended, take the stream's event of_thread.latest as the event of the
 * use. */
static void
adopt_latest(struct ps_block_use *use)
{
    if (!use->recorded && atomic_load(&use->stream->of_thread.ended)) {
        ps_runtime_note_failure(use->stream->device->runtime,
                                ps_event_unref(use->done));
        use->done = ps_event_ref(use->stream->of_thread.latest);
        use->recorded = true;
    }
}

/* Record the event of the use, unless it was recorded already.  If that is not
 * possible now, do nothing. */
static void
record(struct ps_block_use *use)
{
    if (ps_stream_is_remote(use->stream)) {
        adopt_latest(use);
        return;
    }
    if (use->done == NULL && ps_event_create(use->stream->device->runtime, 0,
                                             &use->done) == PS_SUCCESS) {
        use->done->internal = true;
    }
    if (use->done != NULL && !use->recorded) {
        bool own = ps_own_begin(use->stream->device->runtime);
        use->recorded = ps_event_record(use->done, use->stream) == PS_SUCCESS;
        ps_own_end(own);
    }
}

static ps_status
wait_for(struct ps_block_use *use, const struct ps_limit *limit)
{
    bool own = ps_own_begin(use->stream->device->runtime);
    ps_status status = use->recorded
                           ? ps_event_synchronize(use->done, limit)
                           : ps_stream_synchronize(use->stream, limit);
    ps_own_end(own);
    return status;
}

bool
ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait)
{
    ps_status waited = PS_ERROR_NOT_READY;

    bool remote = ps_stream_is_remote(use->stream);
    if (!remote && ps_stream_in_capture(use->stream)) {
        return false;
    }
    record(use);
    if (remote && !use->recorded) {
        return false;
    }
    if (wait != NULL) {
        waited = wait_for(use, wait);
    }
    if (waited == PS_ERROR_NOT_SUPPORTED) {
        waited = wait_for(use, NULL);
    }
    if (use->recorded) {
        return is_done(use);
    }
    /* No event could be recorded.  The use is over if the wait for the stream
     * has succeeded, or if the stream is idle now. */
    return waited == PS_SUCCESS ||
           says_over(ps_stream_query_quietly(use->stream));
}

void
ps_uses_record(struct ps_block *block)
{
    for (struct ps_block_use *use = block->uses; use; use = use->next) {
        if (!ps_stream_is_out_of_reach(use->stream)) {
            record(use);
        }
    }
}

struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status)
{
    struct ps_block_use **link = &uses;
    while (*link != NULL) {
        struct ps_block_use *use = *link;
        if (!says_over(ps_stream_query_quietly(use->stream))) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        *status = ps_first_failure(*status, ps_use_drop(use));
    }
    return uses;
}

/* Remove the use from the block's list.  Returns false if the use is not in
 * the list any more, or if it must stay because the stream has got more work
 * with the block since the caller read `mark`. */
static bool
unlink_use_locked(struct ps_block *block, struct ps_block_use *wanted,
                  unsigned long long mark)
{
    struct ps_block_use **link = &block->uses;
    while (*link != NULL && *link != wanted) {
        link = &(*link)->next;
    }
    if (*link == NULL || wanted->mark != mark || wanted->lasting ||
        wanted->begun > 0) {
        return false;
    }
    *link = wanted->next;
    return true;
}

void
ps_block_forget_idle(struct ps_block *block)
{
    enum { LOOKED_AT = 16 };
    struct ps_device *device = block->device;
    struct {
        struct ps_block_use *use;
        struct ps_stream *stream;
        unsigned long long mark;
    } seen[LOOKED_AT];
    int count = 0;

    pthread_mutex_lock(&device->mutex);
    for (struct ps_block_use *use = block->uses;
         use != NULL && count < LOOKED_AT; use = use->next) {
        if (!use->lasting && use->begun == 0) {
            seen[count].use = use;
            seen[count].stream = ps_stream_ref(use->stream);
            seen[count++].mark = use->mark;
        }
    }
    pthread_mutex_unlock(&device->mutex);
    for (int i = 0; i < count; i++) {
        if (says_over(ps_stream_query_quietly(seen[i].stream))) {
            pthread_mutex_lock(&device->mutex);
            bool mine = unlink_use_locked(block, seen[i].use, seen[i].mark);
            pthread_mutex_unlock(&device->mutex);
            if (mine) {
                ps_runtime_note_failure(device->runtime,
                                        ps_use_drop(seen[i].use));
            }
        }
        ps_runtime_note_failure(device->runtime,
                                ps_stream_unref(seen[i].stream));
    }
}

static void
mark_locked(struct ps_block_use *use, bool lasting, unsigned begun)
{
    use->lasting = use->lasting || lasting;
    use->begun += begun;
    use->mark = atomic_fetch_add(&last_mark, 1);
}

ps_status
ps_use_mark(struct ps_block *block, struct ps_stream *stream, bool lasting,
            unsigned begun, bool *added)
{
    struct ps_device *device = block->device;
    *added = false;
    if (stream == block->stream) {
        return PS_SUCCESS;
    }
    pthread_mutex_lock(&device->mutex);
    struct ps_block_use *use = block->uses;
    while (use != NULL && use->stream != stream) {
        use = use->next;
    }
    if (use != NULL) {
        mark_locked(use, lasting, begun);
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
    mark_locked(use, lasting, begun);
    pthread_mutex_lock(&device->mutex);
    use->next = block->uses;
    block->uses = use;
    pthread_mutex_unlock(&device->mutex);
    *added = true;
    return PS_SUCCESS;
}

void
ps_block_use_end(struct ps_block *block, struct ps_stream *stream)
{
    struct ps_device *device = block->device;
    if (stream->kind == PS_STREAM_THREADS) {
        ps_thread_stream_mark(stream);
    }
    if (stream == block->stream) {
        return;
    }
    PS_HOLD(&device->mutex);
    struct ps_block_use *use = block->uses;
    /* If two threads began to use the block on one stream at the same time,
     * each may have added a use.  It does not matter which of these ends
     * first. */
    while (use->stream != stream || use->begun == 0) {
        use = use->next;
    }
    use->begun--;
    use->mark = atomic_fetch_add(&last_mark, 1);
}

ps_status
ps_block_streams(struct ps_block *block, bool lasting,
                 struct ps_stream ***result, size_t *count)
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
            if (use->lasting || !lasting) {
                streams[n++] = ps_stream_ref(use->stream);
            }
        }
        pthread_mutex_unlock(&device->mutex);
        if (use == NULL) {
            *result = streams;
            *count = n;
            return PS_SUCCESS;
        }
        while (n > 0) {
            ps_runtime_note_failure(device->runtime,
                                    ps_stream_unref(streams[--n]));
        }
        free(streams);
    }
}
