/* One mutex guards all variables here that are not atomic.  Hooks are called
 * with the mutex unlocked.  So when the last reference to a description is
 * dropped, the description goes into the list `forgotten`, and a hook frees it
 * after the mutex was unlocked. */
#include "races.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "array.h"
#include "map.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool on;
static const struct ps_races_hooks *_Atomic hooks;
/* The number of times that the detector was started or stopped. */
static unsigned starts;
static struct ps_description *forgotten;

/* ---- Clocks ---- */

/* A vector clock.  at[i] is the number for the actor with the index i.  A
 * clock is not changed while there are several references to it. */
struct clock {
    atomic_uint refs;
    int count;
    uint64_t at[];
};

/* The operations that the clock covers, and the operations of `actor` up to
 * `number`, have happened before the moment. */
struct ps_moment {
    atomic_uint refs;
    /* The value of `starts` when the moment was made.  The moment is valid
     * only while `starts` has this value. */
    unsigned start;
    int actor;
    uint64_t number;
    struct clock *clock;
    unsigned capture; /* the capture that it belongs to, or 0 */
    /* True if it is not known what happened before the moment.  No clock
     * covers such a moment. */
    bool unknown;
    /* Whether this is the moment of a callable that has not ended.  If so, and
     * if the moment is valid, it is in the list `pending`.  `turn` is the
     * callable's place in the order of queueing, and `known` is the clock that
     * the host had when the callable was queued. */
    bool pending;
    uint64_t turn;
    struct clock *known;
    TAILQ_ENTRY(ps_moment) neighbours;
};

static struct clock *
clock_ref(struct clock *clock)
{
    if (clock != NULL) {
        atomic_fetch_add(&clock->refs, 1);
    }
    return clock;
}

static void
clock_unref(struct clock *clock)
{
    if (clock != NULL && atomic_fetch_sub(&clock->refs, 1) == 1) {
        free(clock);
    }
}

static uint64_t
clock_at(const struct clock *clock, int actor)
{
    return clock != NULL && actor < clock->count ? clock->at[actor] : 0;
}

/* Prepare *clock for a change: make sure that it has at least `count` numbers,
 * and that there is no other reference to it.  If necessary, *clock is
 * replaced by a copy.  Returns false if out of memory. */
static bool
clock_own(struct clock **clock, int count)
{
    struct clock *old = *clock;
    int had = old != NULL ? old->count : 0;
    if (old != NULL && had >= count && atomic_load(&old->refs) == 1) {
        return true;
    }
    count = had > count ? had : count;
    struct clock *made =
        malloc(sizeof(*made) + (size_t)count * sizeof(made->at[0]));
    if (made == NULL) {
        return false;
    }
    atomic_init(&made->refs, 1);
    made->count = count;
    memset(made->at, 0, (size_t)count * sizeof(made->at[0]));
    if (old != NULL) {
        memcpy(made->at, old->at, (size_t)had * sizeof(made->at[0]));
    }
    clock_unref(old);
    *clock = made;
    return true;
}

static bool
clock_set(struct clock **clock, int actor, uint64_t number)
{
    if (clock_at(*clock, actor) >= number) {
        return true;
    }
    if (!clock_own(clock, actor + 1)) {
        return false;
    }
    (*clock)->at[actor] = number;
    return true;
}

static bool
clock_join(struct clock **clock, const struct clock *other)
{
    for (int i = 0; other != NULL && other != *clock && i < other->count;
         i++) {
        if (clock_at(*clock, i) < other->at[i]) {
            if (!clock_own(clock, other->count)) {
                return false;
            }
            (*clock)->at[i] = other->at[i];
        }
    }
    return true;
}

static struct ps_moment *
moment_ref(struct ps_moment *moment)
{
    if (moment != NULL) {
        atomic_fetch_add(&moment->refs, 1);
    }
    return moment;
}

void
ps_moment_unref(struct ps_moment *moment)
{
    if (moment != NULL && atomic_fetch_sub(&moment->refs, 1) == 1) {
        clock_unref(moment->clock);
        clock_unref(moment->known);
        free(moment);
    }
}

/* Returns whether everything that happened before the moment also happened
 * before the next operation of the clock's owner.  `who` is the index of the
 * owner, or HOST. */
static bool
clock_covers(const struct clock *clock, int who,
             const struct ps_moment *moment)
{
    int actor = moment->actor, i = 1;
    int count = moment->clock != NULL ? moment->clock->count : 0;
    if (moment->unknown ||
        (actor != who && clock_at(clock, actor) < moment->number)) {
        return false;
    }
    while (i < count &&
           (i == who || clock_at(clock, i) >= moment->clock->at[i])) {
        i++;
    }
    return i >= count;
}

static bool
clock_join_moment(struct clock **clock, const struct ps_moment *moment)
{
    return clock_join(clock, moment->clock) &&
           clock_set(clock, moment->actor, moment->number);
}

/* ---- Actors ---- */

enum { HOST, FIRST_STREAM };

struct actor {
    struct ps_actor_name name;
    bool alive; /* the stream may get more operations */
    /* The number of the actor's latest operation.  If another stream takes
     * this place in the array later, the numbers of its operations continue
     * from here.  So no older clock accidentally covers the new stream's
     * operations. */
    uint64_t number;
    struct clock *clock; /* what has happened before the next operation */
    /* The value of host_learned when the host's clock was last joined into
     * `clock`. */
    uint64_t learned;
    unsigned capture; /* the capture that it belongs to, or 0 */
    /* What `clock` and `learned` were when the stream joined the capture; see
     * leave_capture. */
    struct clock *outer;
    uint64_t outer_learned;
    /* Whether the host, when it last queried the stream, already knew that all
     * of the stream's work was done; NOT_QUERIED if an operation was queued
     * since then. */
    enum knowledge { NOT_QUERIED, UNKNOWN, KNOWN } known;
    size_t entries; /* the number of entries that are kept for its accesses */
};

static struct actor *actors;
static int actor_count;
static bool any_blocking;

/* `streams` maps a stream to 1 + the index of its actor.  `events` maps an
 * event to the moment of its latest record.  `launches` maps an executable to
 * the moment of its latest launch.  `shared` contains the events that other
 * processes may record. */
static struct ps_map streams, events, launches, shared;

/* The host's clock, and the number of times that a moment was joined into
 * it. */
static struct clock *host;
static uint64_t host_learned;

/* Operations and callables are numbered in the order in which they are
 * queued.  This is the latest of these numbers. */
static uint64_t latest_turn;

/* The moments of callables that were queued and have not ended, in the order
 * of queueing. */
static TAILQ_HEAD(, ps_moment) pending = TAILQ_HEAD_INITIALIZER(pending);

static bool
any_pending(void)
{
    return !TAILQ_EMPTY(&pending);
}

/* Returns a clock that the clocks of all later operations will cover.  If no
 * callable is pending, this is the host's clock.  A pending callable knows
 * only what the host knew when the callable was queued.  So if callables are
 * pending, this is the clock `known` of the first of them. */
static const struct clock *
known_to_all(void)
{
    const struct ps_moment *first = TAILQ_FIRST(&pending);
    return first != NULL ? first->known : host;
}

static void
enter_capture(struct actor *actor, unsigned capture)
{
    if (actor->capture == 0) {
        actor->outer = clock_ref(actor->clock);
        actor->outer_learned = actor->learned;
    }
    actor->capture = capture;
}

/* Captured waits take place only in launches of the graph.  So when the stream
 * leaves the capture, its clock must not cover what the stream waited for in
 * the capture. */
static void
leave_capture(struct actor *actor)
{
    if (actor->capture != 0) {
        clock_unref(actor->clock);
        actor->clock = actor->outer;
        actor->learned = actor->outer_learned;
        actor->outer = NULL;
        actor->capture = 0;
    }
}

/* Returns the index of a place in `actors` for a new actor; -1 if out of
 * memory.  A place is free if its stream no longer exists and no entry refers
 * to it.  Clocks may still have a number for the place.  They need not change,
 * because the new actor's numbers continue those of the former one. */
static int
free_place(void)
{
    for (int i = FIRST_STREAM; i < actor_count; i++) {
        if (!actors[i].alive && actors[i].entries == 0) {
            return i;
        }
    }
    if (!PS_ARRAY_GROW(actors, (size_t)actor_count)) {
        return -1;
    }
    if (actor_count == 0) {
        actors[actor_count++] = (struct actor){.alive = true};
    }
    actors[actor_count] = (struct actor){.number = 0};
    return actor_count++;
}

/* If `streams` still maps the name of the place's former stream to the place,
 * remove the name.  See ps_races_end_stream. */
static void
forget_name(int index)
{
    const struct ps_actor_name *name = &actors[index].name;
    uint64_t place = ps_actor_place(name);
    if ((uintptr_t)ps_map_get(&streams, place, name->stream) ==
        (uintptr_t)index + 1) {
        ps_map_take(&streams, place, name->stream);
    }
}

/* Returns the index of the stream's actor.  If the stream has no actor,
 * creates one.  Returns -1 if out of memory. */
static int
actor_of(const struct ps_actor_name *name)
{
    uintptr_t known =
        (uintptr_t)ps_map_get(&streams, ps_actor_place(name), name->stream);
    if (known != 0) {
        actors[known - 1].alive = true;
        return (int)known - 1;
    }
    int index = free_place();
    if (index >= 0) {
        forget_name(index);
    }
    if (index < 0 || !ps_map_set(&streams, ps_actor_place(name), name->stream,
                                 (void *)((uintptr_t)index + 1))) {
        return -1;
    }
    struct actor *actor = &actors[index];
    leave_capture(actor);
    clock_unref(actor->clock);
    *actor = (struct actor){
        .name = *name,
        .alive = true,
        .number = actor->number,
        .clock = NULL,
    };
    return index;
}

/* Join into *clock the clocks of the streams with which the actor's stream
 * serializes.  A default stream serializes with the blocking streams of its
 * device, and a blocking stream serializes with the default stream.  Returns
 * false if out of memory. */
static bool
join_serialized(int index, struct clock **clock)
{
    const struct actor *actor = &actors[index];
    bool is_default = actor->name.stream == 0;
    bool done = true;
    if (!any_blocking || actor->capture != 0 ||
        (!is_default && !actor->name.blocking)) {
        return true;
    }
    for (int i = FIRST_STREAM; i < actor_count; i++) {
        const struct actor *other = &actors[i];
        if (ps_actor_place(&other->name) == ps_actor_place(&actor->name) &&
            other->capture == 0 &&
            (is_default ? other->name.blocking : other->name.stream == 0)) {
            done = done && clock_join(clock, other->clock) &&
                   clock_set(clock, i, other->number);
        }
    }
    return done;
}

/* Make the stream wait for the streams with which it serializes.  Returns the
 * index of the stream's actor; -1 if out of memory. */
static int
serialized(const struct ps_actor_name *name)
{
    int index = actor_of(name);
    if (index >= 0 && name->blocking) {
        actors[index].name.blocking = any_blocking = true;
    }
    return index >= 0 && join_serialized(index, &actors[index].clock) ? index
                                                                      : -1;
}

/* Returns whether the moment is not NULL and was made since the detector was
 * last started.  A Future may hold an older moment. */
static bool
is_current(const struct ps_moment *moment)
{
    return moment != NULL && moment->start == starts;
}

/* Returns the moment after the actor's latest operation.  It borrows the
 * actor's clock. */
static struct ps_moment
moment_now(int index)
{
    const struct actor *actor = &actors[index];
    return (struct ps_moment){
        .start = starts,
        .actor = index,
        .number = actor->number,
        .clock = actor->clock,
        .capture = actor->capture,
    };
}

/* Returns a copy of the moment on the heap; NULL if out of memory. */
static struct ps_moment *
moment_create(struct ps_moment like)
{
    struct ps_moment *moment = malloc(sizeof(*moment));
    if (moment != NULL) {
        *moment = like;
        atomic_init(&moment->refs, 1);
        clock_ref(moment->clock);
    }
    return moment;
}

static struct ps_moment *
moment_of(int index)
{
    return moment_create(moment_now(index));
}

/* Returns the moment after the stream's latest operation; NULL if out of
 * memory. */
static struct ps_moment *
moment_of_stream(const struct ps_actor_name *stream)
{
    int index = serialized(stream);
    return index >= 0 ? moment_of(index) : NULL;
}

/* ---- Accesses ---- */

struct entry {
    struct entry *next;
    int actor;
    bool writes;
    bool declared;
    bool freed; /* the memory was freed before the access was done */
    uint64_t number;
    uint64_t turn;
    /* The turn of the callable that queued the operation on a stream; 0 if no
     * callable queued it.  The operation's clock covers that callable,
     * although the operation may run while the callable still runs. */
    uint64_t queued_by;
    /* The clock of the access, or NULL if no callable was pending when the
     * access was queued.  If a callable was pending, the callable's own
     * accesses may be reported after this one.  The clock then tells whether
     * this access comes after the callable. */
    struct clock *clock;
    struct ps_description *description;
};

/* A range of bytes, all of which have the same entries. */
struct segment {
    uintptr_t begin, end;
    struct entry *entries;
};

/* An array of segments in the order of their addresses.  The segments do not
 * overlap. */
struct accesses {
    struct segment *segments;
    size_t count;
};

static struct accesses all;

static void
description_drop(struct ps_description *description)
{
    if (atomic_fetch_sub(&description->refs, 1) == 1) {
        description->next = forgotten;
        forgotten = description;
    }
}

static void
entry_free(struct entry *entry)
{
    if (entry->actor < actor_count) {
        actors[entry->actor].entries--;
    }
    description_drop(entry->description);
    clock_unref(entry->clock);
    free(entry);
}

/* Free the entries for which chosen() is true, and return the others. */
static struct entry *
entries_without(struct entry *entries, bool (*chosen)(const struct entry *))
{
    struct entry **link = &entries, *entry;
    while ((entry = *link) != NULL) {
        if (chosen(entry)) {
            *link = entry->next;
            entry_free(entry);
        }
        else {
            link = &entry->next;
        }
    }
    return entries;
}

static bool
is_of_past_life(const struct entry *entry)
{
    return !entry->freed;
}

static bool
is_any(const struct entry *entry)
{
    (void)entry;
    return true;
}

/* Returns whether all future operations are ordered after this access, so that
 * none can race with it.  A pending callable is not ordered after accesses
 * that the host has made since the callable was queued. */
static bool
is_known_to_all(const struct entry *entry)
{
    return entry->actor == HOST
               ? !any_pending()
               : clock_at(known_to_all(), entry->actor) >= entry->number;
}

/* Returns the index of the first segment that ends after the address. */
static size_t
segment_at(const struct accesses *in, uintptr_t address)
{
    size_t low = 0, high = in->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (in->segments[middle].end > address) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    return low;
}

static bool
segment_insert(struct accesses *in, size_t at, struct segment segment)
{
    if (!PS_ARRAY_GROW(in->segments, in->count)) {
        return false;
    }
    memmove(&in->segments[at + 1], &in->segments[at],
            (in->count - at) * sizeof(segment));
    in->segments[at] = segment;
    in->count++;
    return true;
}

static bool
entries_copy(const struct entry *entries, struct entry **copy)
{
    *copy = NULL;
    for (; entries != NULL; entries = entries->next) {
        struct entry *made = malloc(sizeof(*made));
        if (made == NULL) {
            *copy = entries_without(*copy, is_any);
            return false;
        }
        *made = *entries;
        made->next = *copy;
        actors[made->actor].entries++;
        clock_ref(made->clock);
        atomic_fetch_add(&made->description->refs, 1);
        *copy = made;
    }
    return true;
}

/* If the address is inside a segment, split the segment there into two.
 * Returns false if out of memory. */
static bool
split(struct accesses *in, uintptr_t address)
{
    size_t at = segment_at(in, address);
    if (at == in->count || in->segments[at].begin >= address) {
        return true;
    }
    struct segment left = in->segments[at];
    left.end = address;
    if (!entries_copy(left.entries, &left.entries)) {
        return false;
    }
    if (!segment_insert(in, at, left)) {
        entries_without(left.entries, is_any);
        return false;
    }
    in->segments[at + 1].begin = address;
    return true;
}

/* Remove the entries for which chosen() is true from the range of addresses
 * from begin to end, and remove the segments that become empty. */
static void
sweep(struct accesses *in, uintptr_t begin, uintptr_t end,
      bool (*chosen)(const struct entry *))
{
    size_t first = segment_at(in, begin), kept = first, at = first;
    for (; at < in->count && in->segments[at].begin < end; at++) {
        struct segment segment = in->segments[at];
        segment.entries = entries_without(segment.entries, chosen);
        if (segment.entries != NULL) {
            in->segments[kept++] = segment;
        }
    }
    if (kept < at) {
        memmove(&in->segments[kept], &in->segments[at],
                (in->count - at) * sizeof(*in->segments));
        in->count -= at - kept;
    }
}

struct graph;

/* A new access, and the operation that makes it. */
struct actual {
    const struct ps_access *access;
    struct accesses *among;
    /* During a capture, the graph that gets the access; else NULL. */
    struct graph *graph;
    int actor;
    uint64_t number;
    uint64_t turn;
    uint64_t queued_by; /* as in struct entry */
    struct clock *clock;
    /* Whether the access is made within a callable.  If so, operations that
     * come after the access may have been queued already. */
    bool late;
    struct ps_description *description;
};

static bool
races(const struct entry *entry, const struct actual *actual)
{
    if ((!entry->writes && !actual->access->writes) ||
        entry->actor == actual->actor ||
        clock_at(actual->clock, entry->actor) >= entry->number) {
        return false;
    }
    /* If the callable itself queued the entry's operation, only a wait by the
     * callable orders its later accesses after the operation. */
    return actual->late
               ? entry->queued_by == actual->turn ||
                     clock_at(entry->clock, actual->actor) < actual->number
               : entry->actor != HOST;
}

/* Find an entry with which the access races.  Returns NULL if there is none.
 * *begin and *end become the range of bytes that both operations access.  This
 * range includes adjacent segments that have an entry for the same
 * operation. */
static const struct entry *
find_race(const struct actual *actual, uintptr_t *begin, uintptr_t *end)
{
    const struct accesses *in = actual->among;
    uintptr_t from = actual->access->begin;
    uintptr_t to = from + actual->access->nbytes;
    size_t at = segment_at(in, from);
    const struct entry *found = NULL;
    for (; at < in->count && in->segments[at].begin < to; at++) {
        const struct segment *segment = &in->segments[at];
        for (const struct entry *entry = segment->entries; entry != NULL;
             entry = entry->next) {
            if (found == NULL ? races(entry, actual)
                              : entry->description == found->description &&
                                    segment->begin == *end) {
                if (found == NULL) {
                    *begin = segment->begin > from ? segment->begin : from;
                    found = entry;
                }
                *end = segment->end < to ? segment->end : to;
                break;
            }
        }
    }
    return found;
}

/* One of two accesses; the second may make the first redundant. */
struct compared {
    int actor;
    uint64_t number;
    uint64_t queued_by;
    const struct clock *clock;
};

/* Returns whether the first access must be kept because of a pending callable,
 * even though the second access would make it redundant.  This is so if the
 * callable comes before the second access, but is not ordered with the first
 * access, or has queued it.  An access by the callable can then race with the
 * first access, but not with the second. */
static bool
outlives(struct compared first, struct compared second)
{
    const struct ps_moment *callable;
    TAILQ_FOREACH (callable, &pending, neighbours) {
        int its = callable->actor;
        if (its != first.actor && second.queued_by != callable->turn &&
            (first.queued_by == callable->turn ||
             clock_at(first.clock, its) < callable->number) &&
            (its == second.actor ||
             clock_at(second.clock, its) >= callable->number) &&
            clock_at(callable->clock, first.actor) < first.number) {
            return true;
        }
    }
    return false;
}

static struct compared
compared_entry(const struct entry *entry)
{
    return (struct compared){entry->actor, entry->number, entry->queued_by,
                             entry->clock};
}

static struct compared
compared_actual(const struct actual *actual)
{
    return (struct compared){actual->actor, actual->number, actual->queued_by,
                             actual->clock};
}

/* Returns whether the new access makes the entry redundant.  It does if it
 * comes after the entry, except if it reads and the entry writes.  The reason:
 * every later access that races with the entry also races with the new access.
 * If the same actor makes both accesses, they must also be of the same kind,
 * because the latest read and the latest write by each actor are kept. */
static bool
replaces(const struct actual *actual, const struct entry *entry)
{
    bool later =
        entry->actor == actual->actor
            ? actual->access->writes == entry->writes &&
                  entry->number <= actual->number
            : entry->actor != HOST &&
                  (actual->access->writes || !entry->writes) &&
                  clock_at(actual->clock, entry->actor) >= entry->number;
    return later && !outlives(compared_entry(entry), compared_actual(actual));
}

/* Returns whether the entry makes the new access redundant.  It does only if
 * it is a later access by the same actor and of the same kind. */
static bool
is_replaced(const struct actual *actual, const struct entry *entry)
{
    return entry->actor == actual->actor &&
           entry->writes == actual->access->writes &&
           entry->number > actual->number &&
           !outlives(compared_actual(actual), compared_entry(entry));
}

/* Add an entry for the access to the segment, and remove the entries that the
 * access makes redundant.  If the access itself is redundant, adds no entry.
 * Returns false if out of memory. */
static bool
entry_note(struct segment *segment, const struct actual *actual)
{
    struct entry **link = &segment->entries, *entry;
    while ((entry = *link) != NULL) {
        if (replaces(actual, entry)) {
            *link = entry->next;
            entry_free(entry);
        }
        else if (is_replaced(actual, entry)) {
            return true;
        }
        else {
            link = &entry->next;
        }
    }
    entry = malloc(sizeof(*entry));
    if (entry == NULL) {
        return false;
    }
    *entry = (struct entry){
        .next = segment->entries,
        .actor = actual->actor,
        .writes = actual->access->writes,
        .declared = actual->access->declared,
        .number = actual->number,
        .turn = actual->turn,
        .queued_by = actual->queued_by,
        .clock = any_pending() ? clock_ref(actual->clock) : NULL,
        .description = actual->description,
    };
    atomic_fetch_add(&actual->description->refs, 1);
    segment->entries = entry;
    actors[entry->actor].entries++;
    return true;
}

static bool
note(const struct actual *actual)
{
    struct accesses *in = actual->among;
    uintptr_t from = actual->access->begin;
    uintptr_t to = from + actual->access->nbytes;
    sweep(in, from, to, is_known_to_all);
    if (!split(in, from) || !split(in, to)) {
        return false;
    }
    for (size_t at = segment_at(in, from); from < to; at++) {
        uintptr_t next = at < in->count && in->segments[at].begin < to
                             ? in->segments[at].begin
                             : to;
        if (from < next) {
            if (!segment_insert(in, at, (struct segment){from, next, NULL})) {
                return false;
            }
        }
        if (!entry_note(&in->segments[at], actual)) {
            return false;
        }
        from = in->segments[at].end;
    }
    return true;
}

static void
accesses_clear(struct accesses *in)
{
    sweep(in, 0, UINTPTR_MAX, is_any);
    free(in->segments);
    *in = (struct accesses){NULL};
}

/* ---- Captures and graphs ---- */

/* The accesses made by captured work.  During the capture, they can race only
 * with each other.  Each launch of the graph makes all of them. */
struct graph {
    unsigned refs;
    struct accesses among;
    /* An array of the accesses, which is made when the capture has ended. */
    struct ps_access *list;
    int count;
    /* The external events that each launch records or waits for. */
    struct external {
        ps_handle event;
        bool records;
    } * externals;
    int external_count;
};

/* `captures` maps the number of a capture in progress to its graph.  `graphs`
 * maps the handle of a graph to the graph.  `executables` maps the handle of
 * an executable to the graph whose work it does. */
static struct ps_map captures, graphs, executables;
static unsigned latest_capture;

/* An empty graph, used if the handle of a graph or executable is not known. */
static struct graph nothing;

static void
graph_unref(struct graph *graph)
{
    if (graph != NULL && --graph->refs == 0) {
        accesses_clear(&graph->among);
        free(graph->list);
        free(graph->externals);
        free(graph);
    }
}

/* Make the array of the graph's accesses, which launches use.  If memory runs
 * out, launches make no accesses. */
static void
graph_finish(struct graph *graph)
{
    graph->list = calloc(2 * graph->among.count + 1, sizeof(*graph->list));
    for (size_t i = 0; graph->list != NULL && i < graph->among.count; i++) {
        const struct segment *segment = &graph->among.segments[i];
        struct ps_access access = {.begin = segment->begin,
                                   .nbytes = segment->end - segment->begin};
        bool reads = false;
        for (struct entry *e = segment->entries; e != NULL; e = e->next) {
            access.writes = access.writes || e->writes;
            access.declared = access.declared || e->declared;
            reads = reads || !e->writes;
        }
        if (access.writes) {
            graph->list[graph->count++] = access;
        }
        if (reads) {
            access.writes = false;
            graph->list[graph->count++] = access;
        }
    }
    accesses_clear(&graph->among);
}

/* ---- The detector ---- */

static void
lock(void)
{
    pthread_mutex_lock(&mutex);
}

/* Unlock the mutex, and then free the descriptions in the list `forgotten`. */
static void
unlock(void)
{
    struct ps_description *list = forgotten, *next;
    forgotten = NULL;
    pthread_mutex_unlock(&mutex);
    for (; list != NULL; list = next) {
        next = list->next;
        hooks->forget(list);
    }
}

static void
release(struct ps_description *description)
{
    if (atomic_fetch_sub(&description->refs, 1) == 1) {
        hooks->forget(description);
    }
}

bool
ps_races_are_on(void)
{
    return atomic_load_explicit(&on, memory_order_acquire);
}

/* The mutex is held during a fork, so that the child does not see a change
 * that another thread had only half made. */
static void
fork_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

static void
fork_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}

static void
prepare(void)
{
    pthread_atfork(lock, fork_parent, fork_child);
}

void
ps_races_start(const struct ps_races_hooks *wanted)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    lock();
    atomic_store(&hooks, wanted);
    starts++;
    atomic_store(&on, true);
    unlock();
}

static void
moments_clear(struct ps_map *map)
{
    for (size_t i = 0; i < map->room; i++) {
        ps_moment_unref(map->slots[i].value);
    }
    ps_map_clear(map);
}

static void
graphs_clear(struct ps_map *map)
{
    for (size_t i = 0; i < map->room; i++) {
        graph_unref(map->slots[i].value);
    }
    ps_map_clear(map);
}

void
ps_races_stop(void)
{
    lock();
    atomic_store(&on, false);
    starts++;
    accesses_clear(&all);
    moments_clear(&events);
    moments_clear(&launches);
    graphs_clear(&captures);
    graphs_clear(&graphs);
    graphs_clear(&executables);
    ps_map_clear(&streams);
    ps_map_clear(&shared);
    for (int i = 0; i < actor_count; i++) {
        clock_unref(actors[i].clock);
        clock_unref(actors[i].outer);
    }
    free(actors);
    actors = NULL;
    actor_count = 0;
    any_blocking = false;
    clock_unref(host);
    host = NULL;
    TAILQ_INIT(&pending);
    unlock();
}

/* If the detector is on and the call in progress is not internal, lock the
 * mutex and return true.  Otherwise return false. */
static bool
enter(void)
{
    if (!ps_races_are_on() || hooks->is_internal()) {
        return false;
    }
    lock();
    if (!ps_races_are_on()) {
        unlock();
        return false;
    }
    return true;
}

/* Like enter, but also gets the moment of the callable that the thread is
 * running.  *callable becomes NULL if the thread is running none. */
static bool
enter_in(struct ps_moment **callable)
{
    if (!ps_races_are_on()) {
        return false;
    }
    hooks->callable(callable);
    return enter();
}

/* Join the host's clock into the stream's clock.  Returns false if out of
 * memory. */
static bool
refresh(struct actor *actor)
{
    if (actor->learned != host_learned && !clock_join(&actor->clock, host)) {
        return false;
    }
    actor->learned = host_learned;
    return true;
}

/* Give the stream's next operation a number.  Returns the index of the
 * stream's actor; -1 if out of memory. */
static int
begin_operation(const struct ps_actor_name *stream,
                const struct ps_moment *callable)
{
    int index = serialized(stream);
    if (index < 0) {
        return -1;
    }
    struct actor *actor = &actors[index];
    if (!refresh(actor) ||
        (callable != NULL && !clock_join_moment(&actor->clock, callable))) {
        return -1;
    }
    actor->number++;
    actor->known = NOT_QUERIED;
    return index;
}

/* Look for a kept access with which the new access races.  If there is one,
 * fill in *race, set *found to a new reference to the description of the kept
 * access's operation, and return true. */
static bool
look(const struct actual *actual, struct ps_race *race,
     struct ps_actor_name names[2], struct ps_description **found)
{
    const struct entry *entry = find_race(actual, &race->begin, &race->nbytes);
    if (entry == NULL) {
        return false;
    }
    race->nbytes -= race->begin;
    race->access = actual->access;
    bool earlier = entry->turn < actual->turn ||
                   (actual->late && entry->queued_by == actual->turn);
    struct ps_operation *theirs = earlier ? &race->first : &race->second;
    struct ps_operation *ours = earlier ? &race->second : &race->first;
    *theirs = (struct ps_operation){entry->description, NULL, entry->writes};
    *ours = (struct ps_operation){actual->description, NULL,
                                  actual->access->writes};
    if (entry->actor != HOST) {
        names[0] = actors[entry->actor].name;
        theirs->stream = &names[0];
    }
    if (actual->actor != HOST) {
        names[1] = actors[actual->actor].name;
        ours->stream = &names[1];
    }
    race->freed = earlier && entry->freed;
    race->actor = entry->actor;
    race->number = earlier ? entry->number : 0;
    *found = entry->description;
    atomic_fetch_add(&entry->description->refs, 1);
    return true;
}

/* Make the accesses count as accesses by the callable itself, so that later
 * work on the callable's stream is ordered after them. */
static void
attribute(const struct ps_moment *callable, struct actual *actual)
{
    actual->actor = callable->actor;
    actual->number = callable->number;
    actual->turn = callable->turn;
    actual->late = true;
}

/* Set the fields of *actual that depend on the actor that makes the accesses.
 * awaited: whether the callable waits for the stream's operation.  Returns
 * false if out of memory.  The caller releases the clock and the graph. */
static bool
identify(const struct ps_actor_name *stream, const struct ps_moment *callable,
         bool awaited, struct actual *actual)
{
    actual->actor = HOST;
    actual->turn = ++latest_turn;
    actual->clock = host;
    actual->among = &all;
    if (stream != NULL) {
        int index = begin_operation(stream, callable);
        if (index < 0) {
            actual->clock = NULL;
            return false;
        }
        actual->actor = index;
        actual->number = actors[index].number;
        actual->clock = actors[index].clock;
        actual->graph = ps_map_get(&captures, actors[index].capture, 0);
        if (actual->graph != NULL) {
            actual->graph->refs++;
            actual->among = &actual->graph->among;
        }
        else if (awaited && callable != NULL) {
            /* The operation still comes after the earlier operations of its
             * own stream. */
            if (!clock_set(&actors[index].clock, index,
                           actors[index].number)) {
                actual->clock = NULL;
                return false;
            }
            actual->clock = actors[index].clock;
            attribute(callable, actual);
        }
        else if (callable != NULL) {
            actual->queued_by = callable->turn;
        }
    }
    else if (callable != NULL) {
        actual->clock = callable->clock;
        attribute(callable, actual);
    }
    else if (any_pending()) {
        actual->number = ++actors[HOST].number;
    }
    clock_ref(actual->clock);
    return true;
}

/* If the access races with another, report the race to the hook `found`.  The
 * mutex is unlocked while the hook runs. */
static ps_status
check(const struct actual *actual)
{
    struct ps_description *entry;
    struct ps_actor_name names[2];
    struct ps_race race;
    if (!look(actual, &race, names, &entry)) {
        return PS_SUCCESS;
    }
    unlock();
    ps_status status = hooks->found(&race);
    release(entry);
    lock();
    return status;
}

ps_status
ps_races_operation(const struct ps_actor_name *stream, const char *operation,
                   const struct ps_access *accesses, int count)
{
    struct ps_description *description = NULL;
    struct actual actual = {NULL};
    if (!ps_races_are_on() || hooks->is_internal()) {
        return PS_SUCCESS;
    }
    struct ps_moment *callable;
    bool in_callable = hooks->callable(&callable);
    bool awaited = in_callable && stream != NULL && hooks->is_awaited();
    bool inside = in_callable && (stream == NULL || awaited);
    if (count > 0 &&
        (description = hooks->describe(operation, inside)) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = PS_SUCCESS;
    if (enter()) {
        unsigned start = starts;
        if (!is_current(callable)) {
            callable = NULL;
        }
        /* Accesses by a callable that was queued before the detector was
         * started do not count. */
        if (stream == NULL && in_callable && callable == NULL) {
            count = 0;
        }
        status = identify(stream, callable, awaited, &actual)
                     ? PS_SUCCESS
                     : PS_ERROR_OUT_OF_MEMORY;
        actual.description = description;
        for (int i = 0; i < count; i++) {
            actual.access = &accesses[i];
            if (status == PS_SUCCESS && start == starts) {
                status = check(&actual);
            }
        }
        /* An access by the host is done before the next operation is queued,
         * so it can race only with pending callables.  If no callable is
         * pending, it needs no entry. */
        bool noted = actual.actor != HOST || any_pending();
        for (int i = 0; i < count && noted; i++) {
            actual.access = &accesses[i];
            if (status == PS_SUCCESS && start == starts && !note(&actual)) {
                status = PS_ERROR_OUT_OF_MEMORY;
            }
        }
        clock_unref(actual.clock);
        graph_unref(actual.graph);
        unlock();
    }
    if (description != NULL) {
        release(description);
    }
    return status;
}

/* ---- Order ---- */

/* Make the stream wait for the moment.  Returns false if the wait orders
 * nothing new, because the stream already knew the moment.  Within a capture,
 * always returns true. */
static bool
join(const struct ps_actor_name *stream, const struct ps_moment *moment)
{
    int index = is_current(moment) ? serialized(stream) : -1;
    if (index < 0) {
        return true;
    }
    struct actor *actor = &actors[index];
    bool useful = !refresh(actor) || actor->capture != 0 ||
                  moment->capture != 0 ||
                  !clock_covers(actor->clock, index, moment);
    if (moment->capture != 0) {
        enter_capture(actor, moment->capture);
    }
    clock_join_moment(&actor->clock, moment);
    return useful;
}

static bool
host_knows(const struct ps_moment *moment)
{
    return is_current(moment) && clock_covers(host, HOST, moment);
}

void
ps_races_wait(const struct ps_actor_name *stream,
              const struct ps_moment *moment)
{
    if (moment != NULL && enter()) {
        bool known = host_knows(moment);
        bool useful = join(stream, moment);
        unlock();
        if (useful || !known) {
            hooks->waited("wait", useful);
        }
    }
}

void
ps_races_waited(const struct ps_moment *moment)
{
    if (enter()) {
        bool known = host_knows(moment);
        unlock();
        if (known) {
            hooks->waited("wait", false);
        }
    }
}

/* Returns whether the host knows that the moment has passed.  If a callable is
 * running on this thread, the callable must know it, too. */
static bool
is_known(const struct ps_moment *moment, const struct ps_moment *callable)
{
    return host_knows(moment) && moment->capture == 0 &&
           (!is_current(callable) ||
            clock_covers(callable->clock, HOST, moment));
}

void
ps_races_synchronize(const struct ps_moment *moment)
{
    struct ps_moment *callable;
    if (enter_in(&callable)) {
        bool known = is_known(moment, callable);
        unlock();
        hooks->waited("synchronize", !known);
    }
}

/* Get the moment at which the work that has been queued on the stream so far
 * is done.  The caller releases now->clock.  Returns KNOWN if the host already
 * knows that the moment has been reached, and UNKNOWN if it does not.  If out
 * of memory, returns NOT_QUERIED, and *now does not include all work on the
 * streams with which the stream serializes. */
static enum knowledge
find_moment(int index, const struct ps_actor_name *stream,
            const struct ps_moment *callable, struct ps_moment *now)
{
    *now = moment_now(index);
    clock_ref(now->clock);
    /* The moment of a default stream includes the blocking streams.  Join
     * their clocks into a copy of the stream's clock, not into the clock
     * itself, because a query of a default stream orders nothing. */
    if (stream->stream == 0 && !join_serialized(index, &now->clock)) {
        return NOT_QUERIED;
    }
    return is_known(now, callable) ? KNOWN : UNKNOWN;
}

void
ps_races_synchronize_stream(const struct ps_actor_name *stream, bool queried)
{
    struct ps_moment now, *callable;
    if (enter_in(&callable)) {
        int index = actor_of(stream);
        enum knowledge known = NOT_QUERIED;
        if (index >= 0 && queried) {
            known = actors[index].known;
        }
        if (index >= 0 && known == NOT_QUERIED) {
            known = find_moment(index, stream, callable, &now);
            clock_unref(now.clock);
        }
        unlock();
        hooks->waited("synchronize", known != KNOWN);
    }
}

/* Note that the host, and the callable if it is not NULL, know that the moment
 * has been reached. */
static void
learn(const struct ps_moment *moment, struct ps_moment *callable)
{
    if (!is_current(moment) || moment->capture != 0) {
        return;
    }
    if (!clock_covers(host, HOST, moment)) {
        clock_join_moment(&host, moment);
        host_learned++;
    }
    if (is_current(callable) && callable != moment) {
        clock_join_moment(&callable->clock, moment);
    }
}

void
ps_races_reached(const struct ps_moment *moment)
{
    struct ps_moment *callable;
    if (moment != NULL && enter_in(&callable)) {
        learn(moment, callable);
        unlock();
    }
}

void
ps_races_known_done(int runtime, ps_handle event)
{
    struct ps_moment *callable;
    uint64_t place = (uint64_t)runtime;
    if (enter_in(&callable)) {
        if (ps_map_get(&shared, place, event) == NULL) {
            learn(ps_map_get(&events, place, event), callable);
        }
        unlock();
    }
}

struct ps_moment *
ps_races_moment(const struct ps_actor_name *stream, bool queried)
{
    struct ps_moment *moment = NULL, *callable, now;
    if (enter_in(&callable)) {
        int index = actor_of(stream);
        if (index >= 0) {
            enum knowledge known = find_moment(index, stream, callable, &now);
            if (known == UNKNOWN) {
                moment = moment_create(now);
            }
            if (queried) {
                actors[index].known = known;
            }
            clock_unref(now.clock);
        }
        unlock();
    }
    return moment;
}

struct ps_moment *
ps_races_callable(const struct ps_actor_name *stream)
{
    struct ps_moment *moment = NULL;
    if (enter()) {
        int index = serialized(stream);
        moment =
            index >= 0 && refresh(&actors[index]) ? moment_of(index) : NULL;
        if (moment != NULL &&
            clock_set(&moment->clock, HOST, actors[HOST].number)) {
            moment->pending = true;
            moment->turn = ++latest_turn;
            moment->known = clock_ref(host);
            TAILQ_INSERT_TAIL(&pending, moment, neighbours);
        }
        unlock();
    }
    return moment;
}

void
ps_races_callable_ended(struct ps_moment *moment)
{
    if (moment != NULL) {
        lock();
        if (is_current(moment) && moment->pending) {
            moment->pending = false;
            TAILQ_REMOVE(&pending, moment, neighbours);
        }
        unlock();
    }
}

/* Returns the moment at which the work that has been queued so far on all
 * streams of the device is done.  If name is NULL, includes the streams on all
 * devices.  Returns NULL if out of memory. */
static struct ps_moment *
moment_of_all(const struct ps_actor_name *name)
{
    struct ps_moment *moment =
        moment_create((struct ps_moment){.start = starts});
    for (int i = FIRST_STREAM; moment != NULL && i < actor_count; i++) {
        const struct actor *actor = &actors[i];
        if (actor->capture == 0 &&
            (name == NULL || (actor->name.runtime == name->runtime &&
                              actor->name.device == name->device))) {
            clock_join(&moment->clock, actor->clock);
            clock_set(&moment->clock, i, actor->number);
        }
    }
    return moment;
}

struct ps_moment *
ps_races_device_moment(int runtime, int device)
{
    const struct ps_actor_name name = {runtime, device, 0};
    struct ps_moment *moment = NULL;
    if (enter()) {
        moment = moment_of_all(&name);
        unlock();
    }
    return moment;
}

bool
ps_moment_is_after(const struct ps_moment *moment, int actor, uint64_t number)
{
    bool result = false;
    if (enter()) {
        result = is_current(moment) && !moment->unknown &&
                 (moment->actor == actor
                      ? moment->number
                      : clock_at(moment->clock, actor)) >= number;
        unlock();
    }
    return result;
}

/* Map the handle to the moment after the stream's latest operation.  If memory
 * runs out, remove the handle from the map. */
static void
moment_set(struct ps_map *map, ps_handle handle,
           const struct ps_actor_name *stream)
{
    if (!enter()) {
        return;
    }
    uint64_t runtime = (uint64_t)stream->runtime;
    struct ps_moment *moment = moment_of_stream(stream);
    struct ps_moment *old = ps_map_get(map, runtime, handle);
    if (moment == NULL || !ps_map_set(map, runtime, handle, moment)) {
        ps_moment_unref(moment);
        old = ps_map_take(map, runtime, handle);
    }
    unlock();
    ps_moment_unref(old);
}

static void
moment_forget(struct ps_map *map, int runtime, ps_handle handle)
{
    if (ps_races_are_on()) {
        lock();
        struct ps_moment *old = ps_map_take(map, (uint64_t)runtime, handle);
        unlock();
        ps_moment_unref(old);
    }
}

void
ps_races_record(ps_handle event, const struct ps_actor_name *stream)
{
    if (ps_races_are_on() && hooks->is_internal()) {
        /* Core records this native event for its own purposes.  Earlier, an
         * event of the program may have used the native event.  Forget the
         * moment at which that event was recorded. */
        moment_forget(&events, stream->runtime, event);
    }
    else {
        moment_set(&events, event, stream);
    }
}

/* Returns a new reference to the moment of the event's latest record.  If that
 * moment is not known, returns a moment that has `unknown` set.  Returns NULL
 * if out of memory. */
static struct ps_moment *
moment_of_event(int runtime, ps_handle event)
{
    uint64_t place = (uint64_t)runtime;
    struct ps_moment *moment = ps_map_get(&events, place, event);
    if (moment != NULL && ps_map_get(&shared, place, event) == NULL) {
        return moment_ref(moment);
    }
    moment = moment_of_all(NULL);
    if (moment != NULL) {
        moment->unknown = true;
    }
    return moment;
}

struct ps_moment *
ps_races_recorded(int runtime, ps_handle event)
{
    struct ps_moment *moment = NULL;
    if (enter()) {
        moment = moment_of_event(runtime, event);
        unlock();
    }
    return moment;
}

void
ps_races_share_event(int runtime, ps_handle event)
{
    if (ps_races_are_on()) {
        lock();
        ps_map_set(&shared, (uint64_t)runtime, event, &shared);
        unlock();
    }
}

/* ---- Lifetimes ---- */

void
ps_races_forget_event(int runtime, ps_handle event)
{
    moment_forget(&events, runtime, event);
    if (ps_races_are_on()) {
        lock();
        ps_map_take(&shared, (uint64_t)runtime, event);
        unlock();
    }
}

static void
stream_end(const struct ps_actor_name *stream, bool forget)
{
    if (ps_races_are_on()) {
        uint64_t place = ps_actor_place(stream);
        lock();
        uintptr_t known =
            (uintptr_t)ps_map_get(&streams, place, stream->stream);
        if (known != 0) {
            actors[known - 1].alive = false;
        }
        if (forget) {
            ps_map_take(&streams, place, stream->stream);
        }
        unlock();
    }
}

void
ps_races_forget_stream(const struct ps_actor_name *stream)
{
    stream_end(stream, true);
}

void
ps_races_end_stream(const struct ps_actor_name *stream)
{
    stream_end(stream, false);
}

void
ps_races_capture_begin(const struct ps_actor_name *stream)
{
    if (!enter()) {
        return;
    }
    int index = actor_of(stream);
    struct graph *graph = index >= 0 ? calloc(1, sizeof(*graph)) : NULL;
    if (graph != NULL) {
        graph->refs = 1;
        latest_capture++;
        if (ps_map_set(&captures, latest_capture, 0, graph)) {
            enter_capture(&actors[index], latest_capture);
        }
        else {
            free(graph);
        }
    }
    unlock();
}

void
ps_races_capture_event(const struct ps_actor_name *stream, ps_handle event,
                       bool records)
{
    if (!enter()) {
        return;
    }
    int index = actor_of(stream);
    struct graph *graph =
        index >= 0 ? ps_map_get(&captures, actors[index].capture, 0) : NULL;
    if (graph != NULL &&
        PS_ARRAY_GROW(graph->externals, (size_t)graph->external_count)) {
        graph->externals[graph->external_count++] =
            (struct external){event, records};
    }
    unlock();
}

/* Map the handle to the graph.  If graph is NULL, remove the handle from the
 * map. */
static void
graph_name(struct ps_map *map, int runtime, ps_handle handle,
           struct graph *graph)
{
    struct graph *old = ps_map_take(map, (uint64_t)runtime, handle);
    graph_unref(old);
    if (graph != NULL && ps_map_set(map, (uint64_t)runtime, handle, graph)) {
        graph->refs++;
    }
}

void
ps_races_capture_end(const struct ps_actor_name *stream, ps_handle graph)
{
    if (!enter()) {
        return;
    }
    int index = actor_of(stream);
    unsigned capture = index >= 0 ? actors[index].capture : 0;
    struct graph *captured = ps_map_take(&captures, capture, 0);
    for (int i = 0; captured != NULL && i < actor_count; i++) {
        if (actors[i].capture == capture) {
            leave_capture(&actors[i]);
        }
    }
    if (captured != NULL && graph != 0) {
        graph_finish(captured);
        graph_name(&graphs, stream->runtime, graph, captured);
    }
    graph_unref(captured);
    unlock();
}

void
ps_races_instantiate(int runtime, ps_handle graph, ps_handle executable)
{
    if (enter()) {
        graph_name(&executables, runtime, executable,
                   ps_map_get(&graphs, (uint64_t)runtime, graph));
        unlock();
    }
}

void
ps_races_forget_graph(int runtime, ps_handle graph)
{
    if (ps_races_are_on()) {
        lock();
        graph_name(&graphs, runtime, graph, NULL);
        unlock();
    }
}

void
ps_races_forget_executable(int runtime, ps_handle executable)
{
    if (ps_races_are_on()) {
        lock();
        graph_name(&executables, runtime, executable, NULL);
        unlock();
    }
    moment_forget(&launches, runtime, executable);
}

/* Returns a new reference to the graph to which `map` maps the handle, or
 * &nothing if the handle is not in the map.  The handle belongs to the
 * stream's runtime. */
static struct graph *
graph_of_locked(const struct ps_map *map, const struct ps_actor_name *stream,
                ps_handle handle)
{
    struct graph *graph = ps_map_get(map, (uint64_t)stream->runtime, handle);
    if (graph == NULL) {
        return &nothing;
    }
    graph->refs++;
    return graph;
}

static void
graph_drop(struct graph *graph)
{
    if (graph != &nothing) {
        lock();
        graph_unref(graph);
        unlock();
    }
}

/* Make the stream wait for everything that a launch of the executable waits
 * for: the executable's previous launch, and the external events for which the
 * graph waits. */
static void
join_launch(const struct ps_actor_name *stream, const struct graph *graph,
            ps_handle executable)
{
    uint64_t runtime = (uint64_t)stream->runtime;
    struct ps_moment *earlier = ps_map_get(&launches, runtime, executable);
    if (earlier != NULL) {
        join(stream, earlier);
    }
    for (int i = 0; i < graph->external_count; i++) {
        if (!graph->externals[i].records) {
            struct ps_moment *moment =
                moment_of_event(stream->runtime, graph->externals[i].event);
            if (moment != NULL) {
                join(stream, moment);
            }
            ps_moment_unref(moment);
        }
    }
}

ps_status
ps_races_launch(const struct ps_actor_name *stream, ps_handle executable)
{
    struct graph *graph = &nothing;
    if (enter()) {
        graph = graph_of_locked(&executables, stream, executable);
        join_launch(stream, graph, executable);
        unlock();
    }
    ps_status status =
        ps_races_operation(stream, "graph launch", graph->list, graph->count);
    if (status == PS_SUCCESS) {
        moment_set(&launches, executable, stream);
        for (int i = 0; i < graph->external_count; i++) {
            if (graph->externals[i].records) {
                moment_set(&events, graph->externals[i].event, stream);
            }
        }
    }
    graph_drop(graph);
    if (status == PS_SUCCESS && ps_races_are_on()) {
        hooks->launching(stream);
    }
    return status;
}

ps_status
ps_races_capture_graph(const struct ps_actor_name *stream, ps_handle handle)
{
    struct graph *graph = &nothing;
    if (enter()) {
        graph = graph_of_locked(&graphs, stream, handle);
        unlock();
    }
    ps_status status =
        ps_races_operation(stream, "child graph", graph->list, graph->count);
    for (int i = 0; status == PS_SUCCESS && i < graph->external_count; i++) {
        ps_races_capture_event(stream, graph->externals[i].event,
                               graph->externals[i].records);
    }
    graph_drop(graph);
    return status;
}

/* Returns whether all work that is queued on the stream from now on comes
 * after the access. */
static bool
comes_after(const struct ps_actor_name *stream, const struct entry *entry)
{
    int index = serialized(stream);
    return index == entry->actor ||
           (index >= 0 && refresh(&actors[index]) &&
            clock_at(actors[index].clock, entry->actor) >= entry->number);
}

void
ps_races_free(const struct ps_actor_name *names, size_t count, uintptr_t begin,
              size_t nbytes)
{
    if (!ps_races_are_on()) {
        return;
    }
    lock();
    for (size_t at = segment_at(&all, begin);
         at < all.count && all.segments[at].begin < begin + nbytes; at++) {
        struct entry *entry = all.segments[at].entries;
        for (; entry != NULL; entry = entry->next) {
            bool over = !entry->declared || is_known_to_all(entry);
            for (size_t i = 0; i < count && !over; i++) {
                over = comes_after(&names[i], entry);
            }
            entry->freed = entry->freed || !over;
        }
    }
    unlock();
}

void
ps_races_forget_memory(uintptr_t begin, size_t nbytes)
{
    if (ps_races_are_on()) {
        lock();
        if (split(&all, begin) && split(&all, begin + nbytes)) {
            sweep(&all, begin, begin + nbytes, is_of_past_life);
        }
        unlock();
    }
}
