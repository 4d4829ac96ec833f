/* The captures in progress are in one list.  A mutex guards the list, and is
 * never held across a call to a backend. */
#include "capture.h"

#include <pthread.h>
#include <stdlib.h>

#include "lock.h"
#include "runtime.h"

static pthread_mutex_t captures_mutex = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ps_capture) captures;

atomic_int ps_captures;

void
ps_capture_add(struct ps_capture *capture)
{
    PS_HOLD(&captures_mutex);
    LIST_INSERT_HEAD(&captures, capture, neighbours);
    atomic_fetch_add(&ps_captures, 1);
}

void
ps_capture_remove(struct ps_capture *capture)
{
    PS_HOLD(&captures_mutex);
    LIST_REMOVE(capture, neighbours);
    atomic_fetch_sub(&ps_captures, 1);
}

void
ps_captures_reset_in_child(void)
{
    pthread_mutex_init(&captures_mutex, NULL);
    LIST_INIT(&captures);
    atomic_store(&ps_captures, 0);
}

bool
ps_stream_in_capture(struct ps_stream *stream)
{
    int capturing = 0;
    if (stream->device->runtime->backend->stream_capturing == NULL) {
        return false;
    }
    ps_status status =
        PS_CALL(stream->device, stream_capturing, stream->handle, &capturing);
    return capturing || status == PS_ERROR_CAPTURE_IMPLICIT;
}

ps_status
ps_capture_refuse_device(struct ps_device *device)
{
    PS_HOLD(&captures_mutex);
    struct ps_capture *capture;
    LIST_FOREACH (capture, &captures, neighbours) {
        if (capture->device == device) {
            break;
        }
    }
    return capture != NULL ? PS_ERROR_CAPTURE_UNSUPPORTED : PS_SUCCESS;
}

ps_status
ps_keep_add(struct ps_keep *keep, const struct ps_kept *item)
{
    for (size_t i = keep->count; i-- > 0;) {
        if (keep->items[i].object == item->object) {
            return PS_SUCCESS;
        }
    }
    /* The array has no room left when the count is 0 or a power of two.  Then
     * double its size. */
    if ((keep->count & (keep->count - 1)) == 0) {
        size_t room = keep->count == 0 ? 1 : 2 * keep->count;
        struct ps_kept *items =
            realloc(keep->items, room * sizeof(*keep->items));
        if (items == NULL) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        keep->items = items;
    }
    atomic_fetch_add(item->refs, 1);
    keep->items[keep->count++] = *item;
    return PS_SUCCESS;
}

ps_status
ps_capture_keep(struct ps_runtime *runtime, const struct ps_kept *item)
{
    ps_status status = PS_SUCCESS;
    PS_HOLD(&captures_mutex);
    struct ps_capture *c;
    LIST_FOREACH (c, &captures, neighbours) {
        if (c->device->runtime == runtime && status == PS_SUCCESS) {
            status = ps_keep_add(&c->keep, item);
        }
    }
    return status;
}

ps_status
ps_capture_keep_in(struct ps_capture *capture, const struct ps_kept *item)
{
    PS_HOLD(&captures_mutex);
    return ps_keep_add(&capture->keep, item);
}

ps_status
ps_keep_drop(struct ps_keep *keep)
{
    ps_status status = PS_SUCCESS;
    for (size_t i = 0; i < keep->count; i++) {
        struct ps_kept *item = &keep->items[i];
        status = ps_first_failure(status, item->drop(item->object));
    }
    free(keep->items);
    *keep = (struct ps_keep){0};
    return status;
}

enum ps_capture_mode
ps_capture_mode_swap(struct ps_runtime *runtime, enum ps_capture_mode mode)
{
    const struct ps_backend *backend = runtime->backend;
    if (backend->capture_mode_exchange != NULL) {
        backend->capture_mode_exchange(backend, &mode);
    }
    return mode;
}
