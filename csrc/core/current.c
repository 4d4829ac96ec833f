/* Current streams.  A `struct ps_currents` is used by one thread at a time, so
 * there is no lock here. */
#include "current.h"

#include <stdlib.h>
#include <string.h>

#include "runtime.h"
#include "stream.h"

/* What the end of a `with stream:` block must restore.  The beginning of the
 * block has made the stream `entered` current, and has switched from the
 * device `left` to the device of that stream.  stream_on_left and
 * stream_on_entered are the streams that were current on these two devices
 * before.  If the two devices are the same, so are the two streams. */
struct scope {
    struct ps_stream *entered;
    struct ps_device *left;
    struct ps_stream *stream_on_left;
    struct ps_stream *stream_on_entered;
};

struct ps_currents {
    /* The current streams, indexed by runtime and device.  A NULL stands for
     * the device's first_current.  The row of a runtime is allocated when a
     * stream of the runtime is first set. */
    struct ps_stream **streams[PS_MAX_RUNTIMES];
    struct scope *scopes;
    size_t depth;
    size_t capacity;
    unsigned generation;
};

static size_t
devices_of(int runtime)
{
    return (size_t)ps_runtime_at(runtime)->room;
}

struct ps_stream *
ps_current_take(struct ps_currents *currents, int runtime)
{
    struct ps_stream *taken = NULL;
    struct ps_stream **row = currents->streams[runtime];
    for (size_t d = 0; row != NULL && d < devices_of(runtime); d++) {
        if (row[d] != NULL) {
            taken = row[d];
            row[d] = NULL;
            return taken;
        }
    }
    return NULL;
}

/* Remove any one stream from the scopes or the rows, and return it.  The
 * caller gets the reference.  Returns NULL if no stream is left. */
static struct ps_stream *
take_any(struct ps_currents *currents)
{
    struct ps_stream *taken = NULL;
    while (currents->depth > 0) {
        struct scope *scope = &currents->scopes[currents->depth - 1];
        struct ps_stream **held[] = {&scope->entered, &scope->stream_on_left,
                                     &scope->stream_on_entered};
        for (int i = 0; i < 3; i++) {
            if (*held[i] != NULL) {
                taken = *held[i];
                *held[i] = NULL;
                return taken;
            }
        }
        currents->depth--;
    }
    for (int i = 0; i < PS_MAX_RUNTIMES && taken == NULL; i++) {
        taken = ps_current_take(currents, i);
    }
    return taken;
}

static void
free_currents(struct ps_currents *currents)
{
    for (int i = 0; i < PS_MAX_RUNTIMES; i++) {
        free(currents->streams[i]);
    }
    free(currents->scopes);
    free(currents);
}

void
ps_currents_destroy(struct ps_currents *currents,
                    void (*drop)(struct ps_stream *stream))
{
    struct ps_stream *stream;
    while ((stream = take_any(currents)) != NULL) {
        drop(stream);
    }
    free_currents(currents);
}

/* In a forked child, drop the streams that were set in the parent, because
 * they are not current in the child.  Dropping a stream of the parent calls no
 * backend. */
static void
forget_ancestors_streams(struct ps_currents *currents)
{
    struct ps_stream *stream;
    currents->generation = ps_generation();
    while ((stream = take_any(currents)) != NULL) {
        ps_stream_unref(stream);
    }
}

/* Allocate rows and scopes of the same sizes as in `others`.  Returns false if
 * out of memory. */
static bool
reserve_as(struct ps_currents *currents, const struct ps_currents *others)
{
    for (int i = 0; i < PS_MAX_RUNTIMES; i++) {
        if (others->streams[i] != NULL &&
            (currents->streams[i] = calloc(
                 devices_of(i), sizeof(*currents->streams[i]))) == NULL) {
            return false;
        }
    }
    if (others->depth > 0) {
        currents->scopes = malloc(others->depth * sizeof(*currents->scopes));
        currents->capacity = others->depth;
    }
    return others->depth == 0 || currents->scopes != NULL;
}

static void
copy(struct ps_currents *currents, const struct ps_currents *others)
{
    for (int i = 0; i < PS_MAX_RUNTIMES; i++) {
        struct ps_stream **row = others->streams[i];
        for (size_t d = 0; row != NULL && d < devices_of(i); d++) {
            currents->streams[i][d] =
                row[d] != NULL ? ps_stream_ref(row[d]) : NULL;
        }
    }
    for (; currents->depth < others->depth; currents->depth++) {
        struct scope *scope = &others->scopes[currents->depth];
        ps_stream_ref(scope->entered);
        ps_stream_ref(scope->stream_on_left);
        ps_stream_ref(scope->stream_on_entered);
        currents->scopes[currents->depth] = *scope;
    }
}

struct ps_currents *
ps_currents_create(struct ps_currents *others)
{
    struct ps_currents *currents = calloc(1, sizeof(*currents));
    if (currents == NULL) {
        return NULL;
    }
    currents->generation = ps_generation();
    if (others == NULL || others->generation != currents->generation) {
        return currents;
    }
    if (!reserve_as(currents, others)) {
        free_currents(currents);
        return NULL;
    }
    copy(currents, others);
    return currents;
}

struct ps_stream *
ps_current_stream(struct ps_currents *currents, struct ps_device *device)
{
    if (currents != NULL) {
        if (currents->generation != ps_generation()) {
            forget_ancestors_streams(currents);
        }
        struct ps_stream **row = currents->streams[device->runtime->index];
        if (row != NULL && row[device->index] != NULL) {
            return row[device->index];
        }
    }
    return device->first_current;
}

/* Allocate the runtime's row, so that replace() cannot fail later. */
static ps_status
reserve_row(struct ps_currents *currents, struct ps_runtime *runtime)
{
    struct ps_stream ***row = &currents->streams[runtime->index];
    if (*row == NULL) {
        *row = calloc(devices_of(runtime->index), sizeof(**row));
    }
    return *row != NULL ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

/* Make the stream current.  Steals the caller's reference to it.  Returns the
 * reference to the stream that was set before, or NULL if none was set.  The
 * runtime's row must exist. */
static struct ps_stream *
replace(struct ps_currents *currents, struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    struct ps_stream **place =
        &currents->streams[device->runtime->index][device->index];
    struct ps_stream *old = *place;
    *place = stream;
    return old;
}

/* Returns the stream to store when the program makes `stream` current.  If
 * `stream` is a thread's default stream, this is the device's callers_stream,
 * because a thread's default stream ends with its thread or its emulation.
 * Otherwise it is `stream` itself. */
static struct ps_stream *
standing_for(struct ps_stream *stream)
{
    return stream->kind == PS_STREAM_THREADS ? &stream->device->callers_stream
                                             : stream;
}

static ps_status
switch_device(struct ps_device *target, struct ps_device *left)
{
    const struct ps_backend *backend = target->runtime->backend;
    return left == target ? PS_SUCCESS
                          : backend->device_set(backend, target->index);
}

/* Make all checks and allocations that setting the stream needs, so that
 * nothing can fail after the first change. */
static ps_status
prepare(struct ps_currents *currents, struct ps_stream *stream)
{
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (currents->generation != ps_generation()) {
        forget_ancestors_streams(currents);
    }
    return reserve_row(currents, stream->device->runtime);
}

ps_status
ps_current_set(struct ps_currents *currents, struct ps_stream *stream,
               struct ps_device *left, struct ps_stream **replaced)
{
    ps_status status = prepare(currents, stream);
    if (status == PS_SUCCESS) {
        status = switch_device(stream->device, left);
    }
    if (status == PS_SUCCESS) {
        *replaced = replace(currents, ps_stream_ref(standing_for(stream)));
    }
    return status;
}

static ps_status
reserve_scope(struct ps_currents *currents)
{
    if (currents->depth < currents->capacity) {
        return PS_SUCCESS;
    }
    size_t capacity = currents->capacity < 8 ? 8 : 2 * currents->capacity;
    struct scope *scopes =
        realloc(currents->scopes, capacity * sizeof(*currents->scopes));
    if (scopes == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    currents->scopes = scopes;
    currents->capacity = capacity;
    return PS_SUCCESS;
}

ps_status
ps_current_enter(struct ps_currents *currents, struct ps_stream *stream,
                 struct ps_device *left, struct ps_stream **replaced)
{
    struct ps_device *entered = stream->device;
    ps_status status = prepare(currents, stream);
    if (status == PS_SUCCESS) {
        status = reserve_scope(currents);
    }
    if (status == PS_SUCCESS) {
        status = switch_device(entered, left);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    currents->scopes[currents->depth++] = (struct scope){
        .entered = ps_stream_ref(standing_for(stream)),
        .left = left,
        .stream_on_left = ps_stream_ref(ps_current_stream(currents, left)),
        .stream_on_entered =
            ps_stream_ref(ps_current_stream(currents, entered)),
    };
    *replaced = replace(currents, ps_stream_ref(standing_for(stream)));
    return PS_SUCCESS;
}

/* Find the latest scope of the stream with this handle, and remove it.
 * Returns false if the stream has no scope.  The scope that is removed need
 * not be the innermost one: with generators and exit stacks, a program may
 * leave its scopes in any order. */
static bool
take_scope(struct ps_currents *currents, struct ps_device *device,
           ps_handle handle, struct scope *scope)
{
    for (size_t i = currents->depth; i-- > 0;) {
        struct ps_stream *entered = currents->scopes[i].entered;
        if (entered->device == device && entered->handle == handle) {
            *scope = currents->scopes[i];
            memmove(&currents->scopes[i], &currents->scopes[i + 1],
                    (currents->depth - i - 1) * sizeof(*currents->scopes));
            currents->depth--;
            return true;
        }
    }
    return false;
}

ps_status
ps_current_exit(struct ps_currents *currents, struct ps_device *device,
                ps_handle handle, struct ps_stream *dropped[PS_EXIT_DROPS])
{
    struct scope scope;
    if (currents == NULL || !take_scope(currents, device, handle, &scope)) {
        return PS_ERROR_INVALID_VALUE;
    }
    dropped[0] = replace(currents, scope.stream_on_entered);
    dropped[1] = replace(currents, scope.stream_on_left);
    dropped[2] = scope.entered;
    return ps_runtime_restore_device(device->runtime, scope.left->index);
}
