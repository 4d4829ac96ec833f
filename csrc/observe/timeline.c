/* One mutex guards the log.  Hooks are called with the mutex unlocked.  Slices
 * are never moved, so the code that added a slice fills it in without the
 * mutex. */
#include "timeline.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "array.h"
#include "lock.h"
#include "map.h"
#include "names.h"
#include "reports.h"
#include "stamps.h"

enum { CHUNK = 1024 };

struct chunk {
    struct chunk *next; /* the next chunk in the list `unfinished` */
    struct ps_slice slices[CHUNK];
};

struct stream {
    struct ps_actor_name name;
    uint64_t latest;  /* 1 + the index of its latest slice; 0 if it has none */
    uint64_t capture; /* the number of the capture that it belongs to, or 0 */
    /* These are set only for a blocking stream.  Each refers to a slice as
     * ps_slice.source does.  `follows` refers to the default stream's slice
     * for which this stream last waited.  `followed` refers to this stream's
     * slice for which the default stream last waited. */
    uint64_t follows;
    uint64_t followed;
};

struct ps_timeline {
    LIST_ENTRY(ps_timeline) neighbours;
    /* The index of its first slice.  It continues the indices of earlier logs,
     * so that an index belongs to only one log. */
    uint64_t first;
    struct chunk **chunks;
    uint64_t count;
    struct stream *streams;
    uint32_t stream_count;
    bool any_blocking;
    /* `by_name` maps the handle of a stream to 1 + the stream's index, and
     * `by_number` maps the stream's number in reports to the same.  `events`
     * maps an event to its mark; see record_mark. */
    struct ps_map by_name, by_number, events;
    uint64_t captures;
    struct ps_node *nodes;
    uint64_t node_count;
    /* The greatest error of measured times, set when the log ends. */
    int64_t error;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ps_timeline *current;
static LIST_HEAD(, ps_timeline) logs = LIST_HEAD_INITIALIZER(logs);
static atomic_bool on;
static atomic_bool all_by_events;
static const struct ps_timeline_hooks *_Atomic hooks;
/* Chunks of logs that were freed.  Each of these chunks has slices to which
 * other code may still write. */
static struct chunk *unfinished;
static uint64_t next_index; /* the index of the next log's first slice */
/* The thread-specific value of this key is the argument of the thread's last
 * call to set_queued_slice. */
static pthread_key_t queued_slice;
static bool has_key;
/* The timeline's tables; see ps_observer_table. */
static struct ps_observer observers[PS_MOST_RUNTIMES][2];

/* ---- Time ---- */

int64_t
ps_timeline_now(void)
{
    const struct ps_timeline_hooks *called = atomic_load(&hooks);
    if (called == NULL || !called->is_virtual()) {
        return ps_stamps_now();
    }
    int64_t latest = 0, now;
    for (int i = 0; i < PS_MOST_RUNTIMES; i++) {
        const struct ps_backend *backend = observers[i][1].inner;
        if (backend != NULL && backend->time_now != NULL &&
            backend->time_now(backend, &now) == PS_SUCCESS && now > latest) {
            latest = now;
        }
    }
    return latest;
}

static int64_t
time_of(const int64_t *time)
{
    return __atomic_load_n(time, __ATOMIC_ACQUIRE);
}

static void
set_time(int64_t *time, int64_t value)
{
    __atomic_store_n(time, value, __ATOMIC_RELEASE);
}

void
ps_slice_publish(struct ps_slice *slice, int64_t queued)
{
    set_time(&slice->queued, queued);
}

void
ps_slice_begin(struct ps_slice *slice)
{
    set_time(&slice->times.begin, ps_timeline_now());
}

void
ps_slice_end(struct ps_slice *slice)
{
    set_time(&slice->times.end, ps_timeline_now());
}

static uint8_t
kind_of(const struct ps_slice *slice)
{
    return __atomic_load_n(&slice->kind, __ATOMIC_ACQUIRE);
}

static void
set_kind(struct ps_slice *slice, uint8_t kind)
{
    __atomic_store_n(&slice->kind, kind, __ATOMIC_RELEASE);
}

void
ps_slice_drop(struct ps_slice *slice)
{
    set_kind(slice, PS_SLICE_NONE);
}

/* ---- The log's life ---- */

/* Returns whether other code may still write to the slice. */
static bool
is_pending(const struct ps_slice *slice)
{
    uint8_t kind = kind_of(slice);
    if (kind != PS_SLICE_NONE && time_of(&slice->queued) == 0) {
        return true;
    }
    if (slice->reported) {
        return false;
    }
    switch (kind) {
    case PS_SLICE_NONE:
    case PS_SLICE_SPAN_END:
    case PS_SLICE_RECORD:
    case PS_SLICE_WAIT:
    case PS_SLICE_MEMORY:
    case PS_SLICE_MARK:
        return false;
    case PS_SLICE_SPAN:
        return (slice->stream == 0 || slice->timed) &&
               time_of(&slice->times.end) == 0;
    default:
        return time_of(&slice->times.end) == 0;
    }
}

static bool
any_pending(const struct chunk *chunk)
{
    int i = 0;
    while (i < CHUNK && !is_pending(&chunk->slices[i])) {
        i++;
    }
    return i < CHUNK;
}

/* The list `unfinished` holds chunks of logs that were freed.  Free those
 * chunks whose slices have all ended by now. */
static void
free_finished_locked(void)
{
    struct chunk **link = &unfinished;
    while (*link != NULL) {
        struct chunk *chunk = *link;
        if (any_pending(chunk)) {
            link = &chunk->next;
        }
        else {
            *link = chunk->next;
            free(chunk);
        }
    }
}

void
ps_timeline_free(struct ps_timeline *timeline)
{
    pthread_mutex_lock(&mutex);
    LIST_REMOVE(timeline, neighbours);
    for (uint64_t i = 0; i * CHUNK < timeline->count; i++) {
        timeline->chunks[i]->next = unfinished;
        unfinished = timeline->chunks[i];
    }
    free_finished_locked();
    if (LIST_EMPTY(&logs)) {
        ps_reports_reset();
    }
    pthread_mutex_unlock(&mutex);
    free(timeline->chunks);
    free(timeline->streams);
    free(timeline->nodes);
    ps_map_clear(&timeline->by_name);
    ps_map_clear(&timeline->by_number);
    ps_map_clear(&timeline->events);
    free(timeline);
}

static void
lock(void)
{
    pthread_mutex_lock(&mutex);
    ps_reports_lock();
    ps_names_lock();
}

static void
fork_parent(void)
{
    ps_names_unlock();
    ps_reports_unlock();
    pthread_mutex_unlock(&mutex);
}

/* The mutexes are held during a fork, so that the child does not see a change
 * that another thread had only half made. */
static void
fork_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    ps_stamps_forget();
    ps_reports_forget();
    ps_names_reset_in_child();
}

static void
prepare(void)
{
    pthread_atfork(lock, fork_parent, fork_child);
    has_key = pthread_key_create(&queued_slice, NULL) == 0;
}

void
ps_timeline_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
}

struct ps_timeline *
ps_timeline_start(const struct ps_timeline_hooks *called, bool by_events)
{
    struct ps_timeline *made = calloc(1, sizeof(*made));
    ps_timeline_prepare();
    if (made != NULL) {
        ps_stamps_collect();
        ps_stamps_reset();
        atomic_store(&all_by_events, by_events);
        pthread_mutex_lock(&mutex);
        free_finished_locked();
        made->first = next_index;
        LIST_INSERT_HEAD(&logs, made, neighbours);
        current = made;
        pthread_mutex_unlock(&mutex);
        atomic_store(&hooks, called);
        atomic_store(&on, true);
    }
    return made;
}

static int64_t
error_locked(const struct ps_timeline *timeline)
{
    return timeline != current ? timeline->error : ps_stamps_error();
}

void
ps_timeline_stop(void)
{
    atomic_store(&on, false);
    PS_HOLD(&mutex);
    if (current != NULL) {
        current->error = error_locked(current);
        next_index = current->first + current->count;
    }
    current = NULL;
}

bool
ps_timeline_is_on(void)
{
    return atomic_load_explicit(&on, memory_order_relaxed);
}

/* ---- Adding slices ---- */

/* Append a slice of the kind PS_SLICE_NONE, with all other fields 0.  Returns
 * NULL if out of memory. */
static struct ps_slice *
append_locked(struct ps_timeline *timeline, uint64_t *index)
{
    uint64_t at = timeline->count / CHUNK, offset = timeline->count % CHUNK;
    if (offset == 0 &&
        (!PS_ARRAY_GROW(timeline->chunks, at) ||
         (timeline->chunks[at] = calloc(1, sizeof(struct chunk))) == NULL)) {
        return NULL;
    }
    *index = timeline->first + timeline->count++;
    return &timeline->chunks[at]->slices[offset];
}

static struct ps_slice *
slice_at(const struct ps_timeline *timeline, uint64_t index)
{
    index -= timeline->first;
    return &timeline->chunks[index / CHUNK]->slices[index % CHUNK];
}

/* Returns the slice with the index source - 1; NULL if it is not in this
 * log. */
static struct ps_slice *
source_at(const struct ps_timeline *timeline, uint64_t source)
{
    return source > timeline->first &&
                   source <= timeline->first + timeline->count
               ? slice_at(timeline, source - 1)
               : NULL;
}

static struct stream *
find_stream_locked(struct ps_timeline *timeline,
                   const struct ps_actor_name *name)
{
    uintptr_t known = (uintptr_t)ps_map_get(
        &timeline->by_name, ps_actor_place(name), name->stream);
    return known != 0 ? &timeline->streams[known - 1] : NULL;
}

/* Add a stream to the log.  *number is the stream's number in reports;
 * `number` is NULL if it has none.  If a report added this stream earlier,
 * before its name was known, only stores the name.  Returns NULL if out of
 * memory. */
static struct stream *
add_stream_locked(struct ps_timeline *timeline,
                  const struct ps_actor_name *name, const uint64_t *number)
{
    uintptr_t index = timeline->stream_count;
    uintptr_t known =
        number != NULL ? (uintptr_t)ps_map_get(&timeline->by_number,
                                               ps_actor_place(name), *number)
                       : 0;
    if (known != 0 &&
        timeline->streams[known - 1].name.stream & PS_TIMELINE_NUMBER) {
        timeline->streams[known - 1].name = *name;
        ps_map_set(&timeline->by_name, ps_actor_place(name), name->stream,
                   (void *)known);
        return &timeline->streams[known - 1];
    }
    if (!PS_ARRAY_GROW(timeline->streams, index) ||
        !ps_map_set(&timeline->by_name, ps_actor_place(name), name->stream,
                    (void *)(index + 1))) {
        return NULL;
    }
    if (number != NULL) {
        ps_map_set(&timeline->by_number, ps_actor_place(name), *number,
                   (void *)(index + 1));
    }
    timeline->stream_count++;
    timeline->streams[index] = (struct stream){.name = *name};
    return &timeline->streams[index];
}

/* Add the stream to the current log.  Returns false if no log is active or
 * memory is short. */
static bool
add_stream(const struct ps_actor_name *name)
{
    uint64_t number;
    bool has_number =
        name->stream != PS_TIMELINE_MEMORY && ps_reports_stream(name, &number);
    uint32_t index = 0;
    pthread_mutex_lock(&mutex);
    struct stream *stream =
        current != NULL ? find_stream_locked(current, name) : NULL;
    bool fresh = current != NULL && stream == NULL;
    if (fresh) {
        stream = add_stream_locked(current, name, has_number ? &number : NULL);
    }
    if (stream != NULL) {
        index = (uint32_t)(stream - current->streams);
    }
    pthread_mutex_unlock(&mutex);
    if (fresh && stream != NULL) {
        atomic_load(&hooks)->stream(name, index);
    }
    return stream != NULL;
}

/* Lock the mutex, and return the current log.  *stream becomes the stream with
 * this name, which is added to the log if necessary.  It becomes NULL if
 * `name` is NULL.  If no log is active or memory is short, returns NULL with
 * the mutex unlocked. */
static struct ps_timeline *
lock_with(const struct ps_actor_name *name, struct stream **stream)
{
    pthread_mutex_lock(&mutex);
    *stream = current != NULL && name != NULL
                  ? find_stream_locked(current, name)
                  : NULL;
    if (current != NULL && (name == NULL || *stream != NULL)) {
        return current;
    }
    bool on_log = current != NULL;
    pthread_mutex_unlock(&mutex);
    return on_log && add_stream(name) ? lock_with(name, stream) : NULL;
}

static bool
is_wanted(void)
{
    return ps_timeline_is_on() && !atomic_load(&hooks)->is_internal();
}

static void
add_wait_locked(struct ps_timeline *timeline, const struct ps_slice *like,
                uint64_t source, uint64_t *known)
{
    uint64_t index;
    struct ps_slice *slice =
        source > *known ? append_locked(timeline, &index) : NULL;
    if (slice != NULL) {
        *slice = *like;
        slice->kind = PS_SLICE_WAIT;
        slice->name = 0;
        slice->source = source;
        ps_slice_publish(slice, ps_timeline_now());
        *known = source;
    }
}

/* Add slices for the waits that serialize the stream with others.  A blocking
 * stream waits for the default stream, and the default stream waits for the
 * blocking streams. */
static void
serialize_locked(struct ps_timeline *timeline, const struct stream *stream,
                 const struct ps_slice *like)
{
    for (uint32_t i = 0; i < timeline->stream_count; i++) {
        struct stream *other = &timeline->streams[i];
        bool near =
            ps_actor_place(&other->name) == ps_actor_place(&stream->name) &&
            other->capture == 0;
        if (near && stream->name.stream == 0 && other->name.blocking) {
            add_wait_locked(timeline, like, other->latest, &other->followed);
        }
        if (near && stream->name.blocking && other->name.stream == 0) {
            add_wait_locked(timeline, like, other->latest,
                            &timeline->streams[like->stream - 1].follows);
        }
    }
}

struct ps_slice *
ps_timeline_add(const struct ps_actor_name *name, enum ps_slice_kind kind,
                uint64_t *index)
{
    struct ps_slice like = {.kind = kind};
    struct ps_slice *slice = NULL;
    struct stream *stream;
    uint64_t made;
    if (!is_wanted()) {
        return NULL;
    }
    atomic_load(&hooks)->origin(&like);
    struct ps_timeline *timeline = lock_with(name, &stream);
    if (timeline == NULL) {
        return NULL;
    }
    if (stream != NULL) {
        like.stream = (uint32_t)(stream - timeline->streams) + 1;
        stream->name.blocking = stream->name.blocking || name->blocking;
        timeline->any_blocking |= name->blocking;
    }
    if (stream == NULL || stream->capture == 0) {
        /* A wait by the host queues nothing on the stream, so the stream waits
         * for no other stream.  But a host wait for the default stream
         * includes the blocking streams. */
        if (stream != NULL && timeline->any_blocking &&
            (kind != PS_SLICE_SYNCHRONIZE || stream->name.stream == 0)) {
            serialize_locked(timeline, stream, &like);
        }
        slice = append_locked(timeline, &made);
    }
    if (slice != NULL) {
        *slice = like;
        if (stream != NULL && kind != PS_SLICE_SYNCHRONIZE) {
            stream->latest = made + 1;
        }
        if (index != NULL) {
            *index = made;
        }
    }
    pthread_mutex_unlock(&mutex);
    return slice;
}

int64_t
ps_timeline_idle_since(uint64_t index, uint64_t source, int64_t since)
{
    PS_HOLD(&mutex);
    if (current == NULL || source_at(current, source) == NULL ||
        source_at(current, index + 1) == NULL) {
        return since;
    }
    uint32_t thread = slice_at(current, index)->thread;
    while (index-- >= source) {
        const struct ps_slice *slice = slice_at(current, index);
        bool waited = kind_of(slice) == PS_SLICE_SYNCHRONIZE;
        int64_t last = time_of(waited ? &slice->times.end : &slice->queued);
        if (slice->thread == thread && last > 0) {
            return last > since ? last : since;
        }
    }
    return since;
}

/* ---- Activities of other libraries ---- */

/* Returns the value of ps_slice.name for the number of a name (see names.h).
 * Returns 0 if the number is 0. */
static uint32_t
foreign_name(uint32_t number)
{
    return number != 0 ? number | PS_TIMELINE_NAME : 0;
}

/* Add a slice for a call that another library makes on this thread.  The
 * thread may hold any lock, such as a lock of the driver.  Returns 1 + the
 * index of the slice, or 0 if none was added. */
static uint64_t
add_foreign(const struct ps_slice *like)
{
    uint64_t index;
    if (!is_wanted()) {
        return 0;
    }
    uint32_t thread = atomic_load(&hooks)->known_thread();
    int64_t now = ps_timeline_now();
    PS_HOLD(&mutex);
    struct ps_slice *slice =
        current != NULL ? append_locked(current, &index) : NULL;
    if (slice == NULL) {
        return 0;
    }
    *slice = *like;
    slice->reported = slice->foreign = true;
    slice->thread = thread;
    slice->source = thread == 0 ? (uint64_t)pthread_self() : 0;
    slice->times.begin = like->kind != PS_SLICE_NONE ? now : 0;
    slice->times.end = like->kind == PS_SLICE_MARK ? now : 0;
    ps_slice_publish(slice, now);
    return index + 1;
}

uint64_t
ps_timeline_range(enum ps_slice_kind kind, uint32_t name, uint32_t domain)
{
    return add_foreign(&(struct ps_slice){
        .kind = kind, .nbytes = domain, .name = foreign_name(name)});
}

static struct ps_timeline *
log_of_locked(uint64_t source)
{
    struct ps_timeline *timeline;
    LIST_FOREACH (timeline, &logs, neighbours) {
        if (source_at(timeline, source) != NULL) {
            break;
        }
    }
    return timeline;
}

void
ps_timeline_range_end(uint64_t source)
{
    /* If the hooks are NULL, no log was ever begun, so this range identifier
     * comes from another tool. */
    if (source == 0 || atomic_load(&hooks) == NULL) {
        return;
    }
    int64_t now = ps_timeline_now();
    PS_HOLD(&mutex);
    struct ps_timeline *timeline = log_of_locked(source);
    if (timeline != NULL) {
        struct ps_slice *range = source_at(timeline, source);
        int64_t begin = time_of(&range->times.begin);
        if (kind_of(range) == PS_SLICE_SPAN &&
            time_of(&range->times.end) == 0) {
            /* `begin` may be later than `now` if the range began in the
             * virtual time of a schedule that has ended since. */
            set_time(&range->times.end, now > begin ? now : begin);
        }
    }
}

/* ---- Order of streams ---- */

/* Returns an event's mark, which describes the event's latest record.  If the
 * record has a slice, the mark is twice the source that refers to this slice.
 * If the record was captured, the mark is twice the capture's number, plus
 * 1. */
static uintptr_t
record_mark(uint64_t source)
{
    return (uintptr_t)source << 1;
}

static uint64_t
record_of(uintptr_t mark)
{
    return mark & 1 ? 0 : mark >> 1;
}

static uintptr_t
capture_mark(uint64_t capture)
{
    return (uintptr_t)capture << 1 | 1;
}

static uintptr_t
event_mark_locked(struct ps_timeline *timeline, int runtime, ps_handle event)
{
    return (uintptr_t)ps_map_get(&timeline->events, (uint64_t)runtime, event);
}

void
ps_timeline_record(const struct ps_actor_name *name, ps_handle event)
{
    uint64_t index;
    struct stream *stream;
    struct ps_slice *slice = ps_timeline_add(name, PS_SLICE_RECORD, &index);
    if (slice != NULL) {
        ps_slice_publish(slice, ps_timeline_now());
    }
    struct ps_timeline *timeline =
        is_wanted() ? lock_with(name, &stream) : NULL;
    if (timeline != NULL) {
        uintptr_t mark = slice != NULL ? record_mark(index + 1)
                                       : capture_mark(stream->capture);
        ps_map_set(&timeline->events, (uint64_t)name->runtime, event,
                   (void *)mark);
        pthread_mutex_unlock(&mutex);
    }
}

uint64_t
ps_timeline_recorded(int runtime, ps_handle event)
{
    PS_HOLD(&mutex);
    return current != NULL
               ? record_of(event_mark_locked(current, runtime, event))
               : 0;
}

uint64_t
ps_timeline_latest(const struct ps_actor_name *name)
{
    struct stream *stream;
    struct ps_timeline *timeline = lock_with(name, &stream);
    uint64_t latest = timeline != NULL ? stream->latest : 0;
    if (timeline != NULL) {
        pthread_mutex_unlock(&mutex);
    }
    return latest;
}

void
ps_timeline_know(const struct ps_actor_name *name)
{
    ps_timeline_latest(name);
}

/* Returns whether any stream still belongs to the capture. */
static bool
is_lasting_locked(const struct ps_timeline *timeline, uint64_t capture)
{
    uint32_t i = 0;
    while (i < timeline->stream_count &&
           timeline->streams[i].capture != capture) {
        i++;
    }
    return capture != 0 && i < timeline->stream_count;
}

void
ps_timeline_wait(const struct ps_actor_name *name, ps_handle event)
{
    struct stream *stream;
    struct ps_timeline *timeline =
        is_wanted() ? lock_with(name, &stream) : NULL;
    if (timeline == NULL) {
        return;
    }
    uintptr_t mark = event_mark_locked(timeline, name->runtime, event);
    if (mark & 1 && is_lasting_locked(timeline, mark >> 1)) {
        stream->capture = mark >> 1;
    }
    pthread_mutex_unlock(&mutex);
    struct ps_slice *slice = ps_timeline_add(name, PS_SLICE_WAIT, NULL);
    if (slice != NULL) {
        slice->source = record_of(mark);
        ps_slice_publish(slice, ps_timeline_now());
    }
}

void
ps_timeline_forget_stream(const struct ps_actor_name *name)
{
    PS_HOLD(&mutex);
    if (current != NULL) {
        ps_map_take(&current->by_name, ps_actor_place(name), name->stream);
    }
}

static void
begin_capture(const struct ps_actor_name *name)
{
    struct stream *stream;
    struct ps_timeline *timeline = lock_with(name, &stream);
    if (timeline != NULL) {
        stream->capture = ++timeline->captures;
        pthread_mutex_unlock(&mutex);
    }
}

static void
end_capture(const struct ps_actor_name *name)
{
    struct stream *stream;
    struct ps_timeline *timeline = lock_with(name, &stream);
    if (timeline != NULL) {
        uint64_t capture = stream->capture;
        for (uint32_t i = 0; i < timeline->stream_count; i++) {
            if (timeline->streams[i].capture == capture) {
                timeline->streams[i].capture = 0;
            }
        }
        pthread_mutex_unlock(&mutex);
    }
}

/* ---- The table ---- */

/* An operation that is being queued, and its slice. */
struct queueing {
    struct ps_slice *slice; /* NULL if the operation is not recorded */
    bool by_events;
    bool reported;
    struct ps_stamps *stamps;
    /* The time just before the call that queues the operation.  0 if queued()
     * chooses the time of queueing. */
    int64_t time;
};

/* Returns whether the times of the backend's operations are measured by
 * events. */
static bool
times_by_events(const struct ps_backend *inner)
{
    return atomic_load(&all_by_events) || inner->operation_times == NULL;
}

/* Set the slice for reports about the driver calls that this thread makes
 * next.  `source` is 1 + the slice's index.  If it is NO_SLICE, no reports
 * about the calls are wanted.  If it is 0, each call counts as a call by
 * another library and gets a new slice. */
static void
set_queued_slice(uint64_t source)
{
    if (has_key) {
        pthread_setspecific(queued_slice, (void *)(uintptr_t)source);
    }
}

/* An argument for set_queued_slice, which means that no reports are wanted. */
#define NO_SLICE UINT64_MAX

/* Returns whether the device reports each operation of this kind, usually as
 * one activity, so that its report can set the slice's times. */
static bool
is_reported(int runtime, enum ps_slice_kind kind, size_t nbytes)
{
    return has_key && ps_reports_are_on(runtime) &&
           (kind == PS_SLICE_SLEEP ||
            ((kind == PS_SLICE_COPY || kind == PS_SLICE_FILL) && nbytes > 0));
}

static struct queueing
expect(const struct ps_backend *backend, int device, ps_handle stream,
       enum ps_slice_kind kind, size_t nbytes)
{
    const struct ps_backend *inner = ps_observed(backend);
    struct ps_actor_name name = ps_actor_in_order(backend, device, stream);
    struct queueing this = {.by_events = times_by_events(inner)};
    uint64_t index;
    if (this.by_events) {
        this.reported = is_reported(name.runtime, kind, nbytes);
        this.by_events = !this.reported;
    }
    if (this.by_events && !ps_stamps_are_possible(inner)) {
        return this;
    }
    this.slice = ps_timeline_add(&name, kind, &index);
    if (this.slice == NULL) {
        return this;
    }
    this.slice->nbytes = nbytes;
    /* -1 means that the times are not known.  If the operation is timed, the
     * backend, the code below or ps_stamps_end() stores another value.  If
     * queued() still finds -1, for example because the operation was captured,
     * it drops the slice. */
    this.slice->times.begin = -1;
    if (!this.by_events && !this.reported) {
        inner->operation_times(inner, &this.slice->times);
        /* For a graph launch, the backend may store only the end.  The begin
         * is then computed from the time of queueing. */
        this.time = kind == PS_SLICE_GRAPH ? ps_timeline_now() : 0;
        return this;
    }
    if (this.by_events) {
        this.stamps = ps_stamps_begin(inner, &name);
    }
    else if (!ps_is_capturing(inner, &name)) {
        this.slice->reported = true;
        this.slice->times.begin = 0;
    }
    set_queued_slice(index + 1);
    this.time = ps_timeline_now();
    return this;
}

/* Finish the slice of an operation after the call that queues it.  If the
 * status is PS_SUCCESS, the operation was queued or captured.  Returns the
 * status. */
static ps_status
queued(const struct ps_backend *backend, const struct queueing *this,
       ps_status status)
{
    const struct ps_backend *inner = ps_observed(backend);
    struct ps_slice *slice = this->slice;
    if (slice == NULL) {
        return status;
    }
    if (!this->by_events && !this->reported) {
        inner->operation_times(inner, NULL);
    }
    else {
        set_queued_slice(0);
    }
    if (this->by_events && status == PS_SUCCESS) {
        ps_stamps_end(this->stamps, &slice->times);
    }
    else if (this->by_events) {
        ps_stamps_drop(this->stamps);
    }
    if (status != PS_SUCCESS || time_of(&slice->times.begin) == -1) {
        ps_slice_drop(slice);
    }
    else if (this->time > 0) {
        ps_slice_publish(slice, this->time);
    }
    else {
        /* If the operation ran within the call, the time at which it began is
         * also used as the time of queueing. */
        int64_t begin =
            time_of(&slice->times.end) > 0 ? time_of(&slice->times.begin) : 0;
        ps_slice_publish(slice, begin > 0 ? begin : ps_timeline_now());
    }
    return status;
}

static ps_status
memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, const void *source, size_t nbytes)
{
    struct queueing this =
        expect(backend, device, stream, PS_SLICE_COPY, nbytes);
    return queued(backend, &this,
                  PS_PASS(backend, memory_copy, device, stream, destination,
                          source, nbytes));
}

static ps_status
memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
            void *destination, uint8_t value, size_t nbytes)
{
    struct queueing this =
        expect(backend, device, stream, PS_SLICE_FILL, nbytes);
    return queued(backend, &this,
                  PS_PASS(backend, memory_fill, device, stream, destination,
                          value, nbytes));
}

static ps_status
memory_fill_items(const struct ps_backend *backend, int device,
                  ps_handle stream, void *destination, uint32_t value,
                  size_t size, size_t nbytes)
{
    struct queueing this =
        expect(backend, device, stream, PS_SLICE_FILL, nbytes);
    return queued(backend, &this,
                  PS_PASS(backend, memory_fill_items, device, stream,
                          destination, value, size, nbytes));
}

static ps_status
host_function(const struct ps_backend *backend, int device, ps_handle stream,
              ps_host_function function, void *argument)
{
    struct queueing this =
        expect(backend, device, stream, PS_SLICE_FUNCTION, 0);
    return queued(
        backend, &this,
        PS_PASS(backend, host_function, device, stream, function, argument));
}

static ps_status
sleep(const struct ps_backend *backend, int device, ps_handle stream,
      uint64_t cycles)
{
    struct queueing this = expect(backend, device, stream, PS_SLICE_SLEEP, 0);
    return queued(backend, &this,
                  PS_PASS(backend, sleep, device, stream, cycles));
}

static ps_status
graph_launch(const struct ps_backend *backend, int device,
             ps_handle executable, ps_handle stream)
{
    struct queueing this = expect(backend, device, stream, PS_SLICE_GRAPH, 0);
    return queued(backend, &this,
                  PS_PASS(backend, graph_launch, device, executable, stream));
}

static ps_status
capture_begin(const struct ps_backend *backend, int device, ps_handle stream,
              enum ps_capture_mode mode)
{
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
    /* Add the stream to the log before the capture begins, because the call
     * that gets the stream's number could invalidate the capture. */
    ps_timeline_know(&name);
    ps_status status = PS_PASS(backend, capture_begin, device, stream, mode);
    if (status == PS_SUCCESS) {
        begin_capture(&name);
    }
    return status;
}

static ps_status
capture_end(const struct ps_backend *backend, int device, ps_handle stream,
            ps_handle *graph, size_t *operations)
{
    ps_status status =
        PS_PASS(backend, capture_end, device, stream, graph, operations);
    if (status != PS_ERROR_CAPTURE_UNMATCHED) {
        struct ps_actor_name name = ps_actor_named(backend, device, stream);
        end_capture(&name);
    }
    return status;
}

static ps_status
stream_destroy(const struct ps_backend *backend, int device, ps_handle stream)
{
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
    ps_timeline_forget_stream(&name);
    return PS_PASS(backend, stream_destroy, device, stream);
}

/* Forward a call that waits.  The Python layer adds the slice for this wait,
 * so the driver's report of the wait must not add another slice. */
#define WAIT(call)                  \
    ({                              \
        set_queued_slice(NO_SLICE); \
        ps_status status_ = (call); \
        set_queued_slice(0);        \
        status_;                    \
    })

static ps_status
stream_synchronize(const struct ps_backend *backend, int device,
                   ps_handle stream, const struct ps_limit *limit)
{
    return WAIT(PS_PASS(backend, stream_synchronize, device, stream, limit));
}

static ps_status
event_synchronize(const struct ps_backend *backend, int device,
                  ps_handle event, const struct ps_limit *limit)
{
    return WAIT(PS_PASS(backend, event_synchronize, device, event, limit));
}

static ps_status
device_synchronize(const struct ps_backend *backend, int device,
                   const struct ps_limit *limit)
{
    return WAIT(PS_PASS(backend, device_synchronize, device, limit));
}

static void
replace(struct ps_backend *table)
{
    PS_REPLACE(table, memory_copy);
    PS_REPLACE(table, memory_fill);
    PS_REPLACE(table, memory_fill_items);
    PS_REPLACE(table, host_function);
    PS_REPLACE(table, sleep);
    PS_REPLACE(table, graph_launch);
    PS_REPLACE(table, capture_begin);
    PS_REPLACE(table, capture_end);
    PS_REPLACE(table, stream_destroy);
    PS_REPLACE(table, stream_synchronize);
    PS_REPLACE(table, event_synchronize);
    PS_REPLACE(table, device_synchronize);
}

const struct ps_backend *
ps_timeline_table(int runtime, const struct ps_backend *backend)
{
    return ps_observer_table(observers, runtime, backend, replace);
}

/* Returns the observed table of the stream's runtime; NULL before the runtime
 * was observed. */
static const struct ps_backend *
inner_of(const struct ps_actor_name *name)
{
    const struct ps_backend *inner = observers[name->runtime][0].inner;
    return inner != NULL ? inner : observers[name->runtime][1].inner;
}

struct ps_open_span
ps_timeline_span_begin(const struct ps_actor_name *name)
{
    struct ps_open_span span = {0};
    span.slice = ps_timeline_add(name, PS_SLICE_SPAN, &span.index);
    if (span.slice != NULL) {
        const struct ps_backend *inner = inner_of(name);
        ps_slice_begin(span.slice);
        int64_t begin = span.slice->times.begin;
        if (inner != NULL && times_by_events(inner) &&
            ps_stamps_are_possible(inner)) {
            span.stamps = ps_stamps_begin(inner, name);
            span.slice->timed = span.stamps != NULL;
        }
        ps_slice_publish(span.slice, begin);
    }
    return span;
}

void
ps_timeline_span_end(const struct ps_actor_name *name,
                     const struct ps_open_span *span)
{
    if (span->stamps != NULL) {
        if (!ps_stamps_end(span->stamps, &span->slice->times)) {
            ps_slice_drop(span->slice);
        }
        return;
    }
    struct ps_slice *end = ps_timeline_add(name, PS_SLICE_SPAN_END, NULL);
    if (end != NULL) {
        end->source = span->index + 1;
        ps_slice_publish(end, ps_timeline_now());
    }
}

void
ps_timeline_span_drop(const struct ps_open_span *span)
{
    ps_stamps_drop(span->stamps);
    if (span->slice != NULL) {
        ps_slice_drop(span->slice);
    }
}

/* ---- Reports ---- */

/* The argument `source` of ps_reports_begin.  It is called when any library
 * makes a call that queues work or waits, with a driver's locks held.  Returns
 * 1 + the index of the call's slice, or 0 if no reports about the call are
 * wanted. */
static uint64_t
source_of_call(void)
{
    uint64_t source = (uintptr_t)pthread_getspecific(queued_slice);
    return source == NO_SLICE ? 0
           : source != 0
               ? source
               : add_foreign(&(struct ps_slice){.kind = PS_SLICE_NONE});
}

ps_status
ps_timeline_activities(int runtime, const struct ps_backend *backend,
                       char *reason, size_t size)
{
    return has_key ? ps_reports_begin(runtime, backend, source_of_call, reason,
                                      size)
                   : PS_ERROR_OUT_OF_MEMORY;
}

/* Returns the stream that has this number in reports.  If it is not in the
 * log, adds a stream with this name and number.  Returns NULL if out of
 * memory. */
static struct stream *
reported_stream_locked(struct ps_timeline *timeline, struct ps_actor_name name,
                       uint64_t number)
{
    uintptr_t known = (uintptr_t)ps_map_get(&timeline->by_number,
                                            ps_actor_place(&name), number);
    if (known != 0) {
        return &timeline->streams[known - 1];
    }
    struct stream *stream = find_stream_locked(timeline, &name);
    return stream != NULL ? stream
                          : add_stream_locked(timeline, &name, &number);
}

/* Extend a slice's times so that they include those of one more activity.  A
 * call may have several activities. */
static void
extend(struct ps_slice *slice, const struct ps_times *times)
{
    int64_t begin = time_of(&slice->times.begin);
    int64_t end = time_of(&slice->times.end);
    /* An operation cannot begin before the call that queues it.  If it seems
     * to have done so, the difference is an error of the clocks. */
    ps_stamps_note_error(time_of(&slice->queued) - times->begin);
    if (begin <= 0 || times->begin < begin) {
        set_time(&slice->times.begin, times->begin);
    }
    if (times->end > end) {
        set_time(&slice->times.end, times->end);
    }
}

static void
add_node_locked(struct ps_timeline *timeline, const struct ps_slice *launch,
                const struct ps_report *report)
{
    if (PS_ARRAY_GROW(timeline->nodes, timeline->node_count)) {
        struct ps_node *node = &timeline->nodes[timeline->node_count++];
        *node = (struct ps_node){*launch, report->source - 1};
        node->slice.times = report->activity.times;
    }
}

/* Copy what a report says about an operation into the slice, except the times.
 * Returns false if out of memory. */
static bool
describe_locked(struct ps_timeline *timeline, struct ps_slice *slice,
                const struct ps_report *report,
                const struct ps_actor_name *name)
{
    static const uint8_t of_activities[] = {
        [PS_ACTIVITY_KERNEL] = PS_SLICE_KERNEL,
        [PS_ACTIVITY_COPY] = PS_SLICE_COPY,
        [PS_ACTIVITY_FILL] = PS_SLICE_FILL,
    };
    const struct ps_activity *activity = &report->activity;
    struct stream *stream =
        reported_stream_locked(timeline, *name, activity->stream);
    if (stream == NULL) {
        return false;
    }
    slice->stream = (uint32_t)(stream - timeline->streams) + 1;
    slice->nbytes = activity->nbytes;
    slice->name = foreign_name(report->name);
    slice->kind = of_activities[activity->kind];
    return true;
}

/* Put the report about another library's wait into the wait's slice.  The
 * report does not say for which work the library waited, so the slice gets no
 * source. */
static void
place_wait(struct ps_slice *slice, const struct ps_report *report)
{
    if (slice->foreign && kind_of(slice) == PS_SLICE_NONE) {
        slice->times = report->activity.times;
        slice->name = foreign_name(report->name);
        set_kind(slice, PS_SLICE_SYNCHRONIZE);
    }
}

/* Put a report into the slice of its call.  `name` identifies the report's
 * stream; it is used if the stream is not in the log yet. */
static void
place_locked(const struct ps_report *report, const struct ps_actor_name *name)
{
    struct ps_timeline *timeline = log_of_locked(report->source);
    struct ps_slice *slice =
        timeline != NULL ? source_at(timeline, report->source) : NULL;
    struct ps_slice like;
    /* A slice that is not foreign and has no kind belongs to a failed call by
     * this library. */
    if (slice == NULL ||
        (!slice->foreign && kind_of(slice) == PS_SLICE_NONE)) {
        return;
    }
    if (report->activity.kind == PS_ACTIVITY_SYNCHRONIZE) {
        place_wait(slice, report);
        return;
    }
    like = *slice;
    if (!describe_locked(timeline, &like, report, name)) {
        return;
    }
    if (report->activity.of_graph) {
        add_node_locked(timeline, &like, report);
    }
    if (slice->reported) {
        extend(slice, &report->activity.times);
    }
    if (slice->foreign && kind_of(slice) == like.kind) {
        uint64_t nbytes = slice->nbytes + like.nbytes;
        __atomic_store_n(&slice->nbytes, nbytes, __ATOMIC_RELAXED);
    }
    if (slice->foreign && kind_of(slice) == PS_SLICE_NONE) {
        bool of_graph = report->activity.of_graph;
        slice->stream = like.stream;
        slice->nbytes = of_graph ? 0 : like.nbytes;
        slice->name = of_graph ? 0 : like.name;
        set_kind(slice, of_graph ? PS_SLICE_GRAPH : like.kind);
    }
}

static void
place_reports(void)
{
    struct ps_reports reports = ps_reports_take();
    /* The default stream of the latest report's device.  `number` is the
     * stream's number in reports, if `known` is true. */
    struct ps_actor_name unmarked = {-1, -1, 0};
    uint64_t number = 0;
    bool known = false;
    for (size_t i = 0; i < reports.count; i++) {
        const struct ps_report *report = &reports.items[i];
        struct ps_actor_name name = {report->runtime, report->activity.device,
                                     0};
        /* A report about a wait has no device and no stream. */
        if (report->activity.kind != PS_ACTIVITY_SYNCHRONIZE &&
            ps_actor_place(&name) != ps_actor_place(&unmarked)) {
            unmarked = name;
            known = ps_reports_stream(&name, &number);
        }
        if (!known || report->activity.stream != number) {
            name.stream = PS_TIMELINE_NUMBER | report->activity.stream;
        }
        pthread_mutex_lock(&mutex);
        place_locked(report, &name);
        pthread_mutex_unlock(&mutex);
    }
    free(reports.items);
}

/* ---- Reading ---- */

int64_t
ps_timeline_error(const struct ps_timeline *timeline)
{
    PS_HOLD(&mutex);
    return error_locked(timeline);
}

uint64_t
ps_timeline_end(const struct ps_timeline *timeline)
{
    PS_HOLD(&mutex);
    return timeline->first + timeline->count;
}

bool
ps_timeline_stream(const struct ps_timeline *timeline, uint32_t index,
                   struct ps_actor_name *name)
{
    PS_HOLD(&mutex);
    if (index >= timeline->stream_count) {
        return false;
    }
    *name = timeline->streams[index].name;
    return true;
}

const struct ps_slice *
ps_timeline_slice(const struct ps_timeline *timeline, uint64_t index)
{
    PS_HOLD(&mutex);
    return slice_at(timeline, index);
}

bool
ps_timeline_node(const struct ps_timeline *timeline, uint64_t number,
                 struct ps_node *node)
{
    PS_HOLD(&mutex);
    if (number >= timeline->node_count) {
        return false;
    }
    *node = timeline->nodes[number];
    return true;
}

const struct ps_slice *
ps_timeline_source(const struct ps_timeline *timeline,
                   const struct ps_slice *slice)
{
    PS_HOLD(&mutex);
    do {
        slice = slice->foreign ? NULL : source_at(timeline, slice->source);
    } while (slice != NULL && kind_of(slice) == PS_SLICE_NONE);
    return slice;
}

/* How far a stream has got before the present slice.  `time` is the time at
 * which all of its operations before this slice were done, or 0 if no such
 * time is known.  `source` refers to the slice that ended at this time.
 * `pending` tells whether one of these operations has not ended. */
struct reached {
    int64_t time;
    uint64_t source;
    bool pending;
};

static int64_t
later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Compute when an operation began, if that is not known, and how far its
 * stream has got after the operation.  inexact: whether the host's and the
 * device's clocks may disagree.  If so, and the operation seems to begin
 * before the previous one has ended, its times are corrected. */
static void
resolve_operation(struct reached *at, struct ps_slice *slice, uint64_t source,
                  bool inexact)
{
    int64_t known = time_of(&slice->times.begin);
    int64_t end = time_of(&slice->times.end);
    if (inexact && end > 0 && known > 0 && known < at->time) {
        end = later(end, at->time);
        set_time(&slice->times.begin, at->time);
        set_time(&slice->times.end, end);
    }
    if (end == 0) {
        at->pending = true;
    }
    if (end <= 0) {
        return;
    }
    /* This operation has ended, so the earlier operations of the stream have
     * also ended, even if the reports about them arrive later or are lost. */
    at->pending = false;
    if (known == 0) {
        int64_t begin = later(at->time, slice->queued);
        set_time(&slice->times.begin, begin < end ? begin : end);
    }
    if (end >= at->time) {
        at->time = end;
        at->source = source;
    }
}

static void
resolve_wait(const struct ps_timeline *timeline, struct reached *at,
             struct ps_slice *slice, uint64_t source)
{
    int64_t begin = later(at->time, slice->queued), end = begin;
    const struct ps_slice *record = source_at(timeline, slice->source);
    if (record != NULL) {
        int64_t done = time_of(&record->times.end);
        at->pending = at->pending || done == 0;
        end = later(begin, done);
    }
    end = at->pending ? 0 : end;
    set_time(&slice->times.begin, begin);
    set_time(&slice->times.end, end);
    if (end > at->time) {
        at->time = end;
        at->source = source;
    }
}

/* Returns the source that refers to the slice that ended last on the device's
 * streams.  `stream` is the index of one of these streams. */
static uint64_t
latest_of_device(const struct ps_timeline *timeline,
                 const struct reached *reached, uint32_t stream)
{
    const struct ps_actor_name *name = &timeline->streams[stream].name;
    struct reached latest = {0};
    for (uint32_t i = 0; i < timeline->stream_count; i++) {
        if (ps_actor_place(&timeline->streams[i].name) ==
                ps_actor_place(name) &&
            reached[i].time > latest.time) {
            latest = reached[i];
        }
    }
    return latest.source;
}

/* Set the source of a wait for a device or a stream.  The source of a wait for
 * a stream was set when the wait was added, but activity reports may have
 * added more of the stream's work to the log since. */
static void
resolve_synchronize(const struct ps_timeline *timeline,
                    const struct reached *reached, struct ps_slice *slice)
{
    uint32_t stream = slice->stream - 1;
    if (timeline->streams[stream].name.stream == PS_TIMELINE_MEMORY) {
        slice->source = latest_of_device(timeline, reached, stream);
    }
    else if (reached[stream].source > slice->source) {
        slice->source = reached[stream].source;
    }
}

static void
end_span(const struct ps_timeline *timeline, struct ps_slice *slice,
         int64_t now)
{
    struct ps_slice *span = source_at(timeline, slice->source);
    if (span != NULL) {
        set_time(&span->times.end, now);
    }
    set_time(&slice->times.end, now);
}

static void
resolve(struct ps_timeline *timeline, struct reached *reached, uint64_t index,
        bool inexact)
{
    struct ps_slice *slice = slice_at(timeline, index);
    uint8_t kind = kind_of(slice);
    if (slice->stream == 0) {
        return;
    }
    struct reached *at = &reached[slice->stream - 1];
    int64_t now = at->pending ? 0 : later(at->time, slice->queued);
    switch (kind) {
    case PS_SLICE_SYNCHRONIZE:
        resolve_synchronize(timeline, reached, slice);
        break;
    case PS_SLICE_MEMORY:
        break;
    case PS_SLICE_WAIT:
        resolve_wait(timeline, at, slice, index + 1);
        break;
    case PS_SLICE_SPAN:
        if (slice->timed) {
            resolve_operation(at, slice, index + 1, inexact);
        }
        else {
            set_time(&slice->times.begin, now);
        }
        break;
    case PS_SLICE_SPAN_END:
        end_span(timeline, slice, now);
        break;
    case PS_SLICE_NONE:
        slice->source = at->source;
        set_time(&slice->times.end, now);
        break;
    case PS_SLICE_RECORD:
        set_time(&slice->times.begin, now);
        set_time(&slice->times.end, now);
        break;
    default:
        resolve_operation(at, slice, index + 1, inexact);
    }
}

bool
ps_timeline_resolve(struct ps_timeline *timeline)
{
    ps_stamps_collect();
    place_reports();
    pthread_mutex_lock(&mutex);
    struct reached *reached =
        calloc(timeline->stream_count + 1, sizeof(*reached));
    bool inexact = error_locked(timeline) > 0;
    uint32_t row = 0;
    for (uint64_t i = 0; reached != NULL && i < timeline->count; i++) {
        struct ps_slice *slice = slice_at(timeline, timeline->first + i);
        uint8_t kind = kind_of(slice);
        bool is_published =
            kind == PS_SLICE_NONE || time_of(&slice->queued) != 0;
        if (is_published) {
            resolve(timeline, reached, timeline->first + i, inexact);
        }
        bool has_row =
            is_published && kind != PS_SLICE_NONE && kind != PS_SLICE_SPAN_END;
        /* Another thread may be reading the rows that an earlier call set. */
        __atomic_store_n(&slice->row, has_row ? row++ : PS_NO_ROW,
                         __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mutex);
    free(reached);
    return reached != NULL;
}
