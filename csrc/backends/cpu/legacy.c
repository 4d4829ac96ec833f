/* The order between the work of a device's default stream and that of its
 * blocking streams, which is the same as with CUDA's legacy default stream.
 * Before work other than a CPU_FREE is queued on the default stream, the
 * default stream is made to wait for the work that was queued on the blocking
 * streams since it last waited for them.  Likewise, before such work is queued
 * on a blocking stream, that stream is made to wait for the default stream. */
#include "engine.h"

/* Returns whether another stream must wait for this stream.  `known` is the
 * value that `given` had when the other stream last waited for this stream.
 * Work was queued since then if `given` is greater now.  While no schedule is
 * explored, no wait is needed if this stream is idle and has not failed.
 * While a schedule is explored, the result depends neither on whether this
 * stream is idle, nor on work that was queued before the schedule began, so
 * that the same program always gets the same order. */
static bool
has_given(const struct cpu_stream *stream, uint64_t known)
{
    const struct cpu_engine *engine = stream->engine;
    if (stream->given <= known) {
        return false;
    }
    return cpu_is_lazy(engine)
               ? stream->given > engine->lazy.first
               : stream->first != NULL || stream->status != PS_SUCCESS;
}

bool
cpu_stream_is_ahead_locked(const struct cpu_stream *blocking)
{
    return has_given(blocking, blocking->followed);
}

void
cpu_stream_block_locked(struct cpu_stream *stream)
{
    struct cpu_device *device = &stream->engine->devices[stream->device];
    struct cpu_stream *legacy = &device->default_stream;
    bool worked = cpu_is_lazy(stream->engine) ? !cpu_is_earlier(legacy)
                                              : legacy->first != NULL;
    if (LIST_EMPTY(&device->blocking) && worked) {
        legacy->given = stream->engine->tickets;
    }
    stream->follows = worked ? 0 : legacy->given;
    stream->blocking = true;
    cpu_stream_forget_locked(legacy);
    LIST_INSERT_HEAD(&device->blocking, stream, siblings);
}

ps_status
cpu_legacy_check_locked(const struct cpu_stream *stream)
{
    const struct cpu_device *device = &stream->engine->devices[stream->device];
    const struct cpu_stream *blocking;
    if (cpu_stream_is_legacy_locked(stream)) {
        LIST_FOREACH (blocking, &device->blocking, siblings) {
            if (blocking->capture != NULL) {
                return PS_ERROR_CAPTURE_IMPLICIT;
            }
        }
    }
    return PS_SUCCESS;
}

/* Append an operation to the stream's queue, even if the queue is full.  The
 * caller has reserved an item for the operation.  Returns false if the stream
 * was idle.  In that case the caller has taken the stream, and must settle
 * it. */
static bool
push_locked(struct cpu_stream *stream, enum cpu_kind kind,
            struct cpu_record *record)
{
    bool busy = stream->first != NULL;
    struct cpu_operation *operation = cpu_item_take_locked(stream->engine);
    *operation = (struct cpu_operation){.kind = kind, .record = record};
    record->refs++;
    cpu_stream_push_locked(stream, operation);
    return busy;
}

/* Make the stream wait for the work of `other`, unless it already waits for
 * all of that work.  *known is the value that other->given had when the stream
 * last waited for `other`.  If this call succeeds, it updates *known.
 * Succeeds even if the queues are full. */
static ps_status
follow_locked(struct cpu_stream *stream, struct cpu_stream *other,
              uint64_t *known)
{
    struct cpu_engine *engine = stream->engine;
    if (!has_given(other, *known)) {
        return PS_SUCCESS;
    }
    ps_status status = cpu_engine_staff_locked(engine, CPU_WAIT);
    if (status == PS_SUCCESS) {
        status = cpu_items_reserve_locked(engine, 3);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    struct cpu_record *record = cpu_item_take_locked(engine);
    *record = (struct cpu_record){.refs = 1, .source = other};
    if (other->first == NULL && !cpu_is_lazy(engine)) {
        cpu_record_complete_locked(engine, record, other->status);
    }
    else if (!push_locked(other, CPU_RECORD, record)) {
        cpu_stream_settle_locked(other);
    }
    if (!push_locked(stream, CPU_WAIT, record)) {
        cpu_stream_help_locked(stream);
    }
    cpu_record_unref_locked(engine, record);
    *known = other->given;
    return PS_SUCCESS;
}

/* Invalidate the captures of all blocking streams of the device, because the
 * program has used the default stream.  Returns PS_ERROR_CAPTURE_IMPLICIT. */
static ps_status
invalidate_locked(struct cpu_device *device)
{
    struct cpu_stream *blocking;
    LIST_FOREACH (blocking, &device->blocking, siblings) {
        if (blocking->capture != NULL) {
            blocking->capture->status = PS_ERROR_CAPTURE_INVALIDATED;
        }
    }
    return PS_ERROR_CAPTURE_IMPLICIT;
}

ps_status
cpu_legacy_order_locked(struct cpu_stream *stream)
{
    struct cpu_device *device = &stream->engine->devices[stream->device];
    ps_status status = PS_SUCCESS;
    if (stream->capture != NULL ||
        (!stream->blocking && !cpu_stream_is_legacy_locked(stream))) {
        return PS_SUCCESS;
    }
    if (stream->blocking) {
        status =
            follow_locked(stream, &device->default_stream, &stream->follows);
    }
    else if (cpu_legacy_check_locked(stream) != PS_SUCCESS) {
        status = invalidate_locked(device);
    }
    else {
        struct cpu_stream *blocking;
        LIST_FOREACH (blocking, &device->blocking, siblings) {
            if (status == PS_SUCCESS) {
                status = follow_locked(stream, blocking, &blocking->followed);
            }
        }
    }
    if (status == PS_SUCCESS) {
        stream->given = stream->engine->tickets + 1;
    }
    return status;
}
