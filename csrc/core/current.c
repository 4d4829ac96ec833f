/* Current streams.  A thread touches only its own `struct ps_thread`, so
 * there is no lock here. */
#include "current.h"

#include <stdlib.h>
#include <string.h>

#include "runtime.h"
#include "stream.h"

/* What a `with stream:` found.  On one and the same device the two streams
 * are the same. */
struct scope {
    struct ps_stream *entered;
    struct ps_device *left;
    struct ps_stream *stream_on_left;
    struct ps_stream *stream_on_entered;
};

struct ps_thread {
    /* By runtime and device index; NULL for the default stream.  A row is
     * made when a stream is first set on its runtime. */
    struct ps_stream **streams[PS_MAX_RUNTIMES];
    struct scope *scopes;
    size_t depth;
    size_t capacity;
    unsigned generation;
};

static _Thread_local struct ps_thread *self;

struct ps_thread *
ps_thread_self(void)
{
    return self;
}

ps_status
ps_thread_create(struct ps_thread **thread)
{
    struct ps_thread *created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    created->generation = ps_generation();
    self = created;
    *thread = created;
    return PS_SUCCESS;
}

/* Take one of the streams that the thread holds; NULL when it holds none. */
static struct ps_stream *
take_any(struct ps_thread *thread)
{
    struct ps_stream *taken = NULL;
    while (thread->depth > 0) {
        struct scope *scope = &thread->scopes[thread->depth - 1];
        struct ps_stream **held[] = {&scope->entered, &scope->stream_on_left,
                                     &scope->stream_on_entered};
        for (int i = 0; i < 3; i++) {
            if (*held[i] != NULL) {
                taken = *held[i];
                *held[i] = NULL;
                return taken;
            }
        }
        thread->depth--;
    }
    for (int i = 0; i < PS_MAX_RUNTIMES; i++) {
        struct ps_stream **row = thread->streams[i];
        int count =
            row == NULL ? 0 : atomic_load(&ps_runtime_at(i)->device_count);
        for (int d = 0; d < count; d++) {
            if (row[d] != NULL) {
                taken = row[d];
                row[d] = NULL;
                return taken;
            }
        }
    }
    return NULL;
}

void
ps_thread_destroy(struct ps_thread *thread,
                  void (*drop)(struct ps_stream *stream, void *context),
                  void *context)
{
    struct ps_stream *stream;
    if (thread == self) {
        self = NULL;
    }
    while ((stream = take_any(thread)) != NULL) {
        drop(stream, context);
    }
    for (int i = 0; i < PS_MAX_RUNTIMES; i++) {
        free(thread->streams[i]);
    }
    free(thread->scopes);
    free(thread);
}

/* An ancestor's streams are not current in a forked child.  Dropping them
 * calls no device. */
static void
forget_ancestors_streams(struct ps_thread *thread)
{
    struct ps_stream *stream;
    thread->generation = ps_generation();
    while ((stream = take_any(thread)) != NULL) {
        ps_stream_unref(stream);
    }
}

struct ps_stream *
ps_current_stream(struct ps_device *device)
{
    if (self != NULL) {
        if (self->generation != ps_generation()) {
            forget_ancestors_streams(self);
        }
        struct ps_stream **row = self->streams[device->runtime->index];
        if (row != NULL && row[device->index] != NULL) {
            return row[device->index];
        }
    }
    return &device->default_stream;
}

/* Give the thread its row for the runtime, so that setting cannot fail. */
static ps_status
reserve_row(struct ps_runtime *runtime)
{
    struct ps_stream ***row = &self->streams[runtime->index];
    if (*row == NULL) {
        int count = atomic_load(&runtime->device_count);
        *row = calloc((size_t)count, sizeof(**row));
    }
    return *row != NULL ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

/* Takes over the caller's reference and hands over that of the stream in its
 * place before; the row exists. */
static struct ps_stream *
replace(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    struct ps_stream **place =
        &self->streams[device->runtime->index][device->index];
    struct ps_stream *old = *place;
    *place = stream;
    return old;
}

static ps_status
switch_device(struct ps_device *target, struct ps_device *left)
{
    const struct ps_backend *backend = target->runtime->backend;
    return left == target ? PS_SUCCESS
                          : backend->device_set(backend, target->index);
}

/* What every change of the current stream checks and makes ready first. */
static ps_status
prepare(struct ps_stream *stream)
{
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (self->generation != ps_generation()) {
        forget_ancestors_streams(self);
    }
    return reserve_row(stream->device->runtime);
}

ps_status
ps_current_set(struct ps_stream *stream, struct ps_device *left,
               struct ps_stream **replaced)
{
    ps_status status = prepare(stream);
    if (status == PS_SUCCESS) {
        status = switch_device(stream->device, left);
    }
    if (status == PS_SUCCESS) {
        *replaced = replace(ps_stream_ref(stream));
    }
    return status;
}

static ps_status
reserve_scope(void)
{
    if (self->depth < self->capacity) {
        return PS_SUCCESS;
    }
    size_t capacity = self->capacity == 0 ? 8 : 2 * self->capacity;
    struct scope *scopes =
        realloc(self->scopes, capacity * sizeof(*self->scopes));
    if (scopes == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    self->scopes = scopes;
    self->capacity = capacity;
    return PS_SUCCESS;
}

ps_status
ps_current_enter(struct ps_stream *stream, struct ps_device *left,
                 struct ps_stream **replaced)
{
    ps_status status = prepare(stream);
    if (status == PS_SUCCESS) {
        status = reserve_scope();
    }
    if (status == PS_SUCCESS) {
        status = switch_device(stream->device, left);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    self->scopes[self->depth++] = (struct scope){
        .entered = ps_stream_ref(stream),
        .left = left,
        .stream_on_left = ps_stream_ref(ps_current_stream(left)),
        .stream_on_entered = ps_stream_ref(ps_current_stream(stream->device)),
    };
    *replaced = replace(ps_stream_ref(stream));
    return PS_SUCCESS;
}

/* Generators and exit stacks may leave in another order than they entered,
 * so the stream's scope need not be the innermost. */
static bool
take_scope(struct ps_device *device, ps_handle handle, struct scope *scope)
{
    for (size_t i = self->depth; i-- > 0;) {
        struct ps_stream *entered = self->scopes[i].entered;
        if (entered->device == device && entered->handle == handle) {
            *scope = self->scopes[i];
            memmove(&self->scopes[i], &self->scopes[i + 1],
                    (self->depth - i - 1) * sizeof(*self->scopes));
            self->depth--;
            return true;
        }
    }
    return false;
}

ps_status
ps_current_exit(struct ps_device *device, ps_handle handle,
                struct ps_stream *dropped[PS_EXIT_DROPS])
{
    struct scope scope;
    if (self == NULL || !take_scope(device, handle, &scope)) {
        return PS_ERROR_INVALID_VALUE;
    }
    dropped[0] = replace(scope.stream_on_entered);
    dropped[1] = replace(scope.stream_on_left);
    dropped[2] = scope.entered;
    return ps_runtime_restore_device(device->runtime, scope.left->index);
}
