/* The engine while a schedule is explored.  The engine's threads then run only
 * host functions and notifications.  All other operations run in calls that
 * the program makes, on the calling thread.  After each call that has queued
 * work, and during each wait, the schedule's strategy picks a stream and runs
 * the operation at its head, again and again, until it lets the host continue
 * or the wait is over.  The choices depend only on the seed and the calls,
 * unless a callable or the host runs for too long (see NAPS).  So the same
 * calls usually lead to the same order on every machine.
 *
 * Time is virtual.  It advances when the strategy picks a sleep, and when a
 * wait expires because nothing can run before its limit.  During a wait with a
 * limit, it also advances by the real time that running callables take.
 *
 * A callable (a Python callable that was submitted to a stream) runs on a
 * thread of its own, but only one thread at a time has the turn.  When a
 * stream reaches a callable, the thread that runs the stream's operations
 * gives up the turn.  It "stands" (waits) until the callable has ended or
 * waits itself.  While a callable waits, the callable's thread picks the
 * operations.  So the work that a callable queues, and the work that runs
 * while it waits, have a fixed place in the order.  If several callables could
 * continue, the one that began to stand or to wait last goes first. */
#include "engine.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* Each time that this number of queries has found work pending, an
     * operation runs, so that a loop of queries ends. */
    POLLS = 16,
    /* A callable and the host may wait for each other in ways that the engine
     * does not see, such as for a lock of the program.  So the host waits for
     * a running callable for at most NAPS * NAP_NS = 0.1 s of real time.
     * Likewise, a callable's wait does not expire while the host runs, unless
     * the host has run for that time.  Both limits are up to BUSY times longer
     * while threads of the process run or wait for a processor. */
    NAPS = 20,
    BUSY = 16,
    NAP_NS = 5 * 1000 * 1000,
    QUESTION_NS = 50 * 1000 * 1000,
};

/* Initial priorities are at least this number.  Priorities that PS_PCT assigns
 * later are lower. */
#define LEAST_RANK ((uint64_t)1 << 32)

/* ---- The random generator: SplitMix64 ---- */

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t
draw(struct cpu_lazy *lazy)
{
    lazy->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(lazy->random);
}

/* Returns the n-th random number for a seed. */
static uint64_t
number_of(uint64_t seed, uint64_t n)
{
    return mix(mix(seed + UINT64_C(0x9e3779b97f4a7c15)) +
               n * UINT64_C(0x9e3779b97f4a7c15));
}

uint64_t
cpu_lazy_rank(uint64_t seed, unsigned number)
{
    return number_of(seed, number) | LEAST_RANK;
}

/* ---- Notes ---- */

/* Make room for one more element in an array that has `count` elements.
 * Returns the array, which may have moved.  The array's capacity is always a
 * power of two, and at least LEAST.  Returns NULL, and changes nothing, if out
 * of memory. */
static void *
grown(void *array, size_t count, size_t size)
{
    enum { LEAST = 64 };
    if (count > 0 && (count < LEAST || (count & (count - 1)) != 0)) {
        return array;
    }
    return realloc(array, (count > 0 ? 2 * count : LEAST) * size);
}

/* Append a note.  If memory runs out, mark the notes as incomplete, unless
 * there are none yet. */
static void
add_note_locked(struct cpu_lazy *lazy, const struct ps_note *note)
{
    void *notes = grown(lazy->notes, lazy->noted, sizeof(*note));
    if (notes != NULL) {
        lazy->notes = notes;
        lazy->notes[lazy->noted++] = *note;
    }
    else if (lazy->noted > 0) {
        lazy->notes[lazy->noted - 1].kind = PS_NOTE_LOOSE;
    }
}

void
cpu_lazy_note_locked(struct cpu_engine *engine, enum ps_note_kind kind,
                     uint64_t first, uint64_t second)
{
    struct cpu_lazy *lazy = &engine->lazy;
    uint64_t before = 0;
    bool counts = true;
    if (!cpu_is_noted(engine)) {
        return;
    }
    switch (kind) {
    case PS_NOTE_DONE:
    case PS_NOTE_ASKED:
    case PS_NOTE_WAITED:
    case PS_NOTE_CALLABLE:
        before = lazy->first;
        break;
    case PS_NOTE_ASKED_STEP:
    case PS_NOTE_AFTER_STEP:
    case PS_NOTE_WAITED_STEP:
        before = lazy->first_step;
        break;
    default:
        counts = false;
        break;
    }
    /* An operation or step from before the schedule is done and needs no
     * note. */
    if (!counts || first > before) {
        add_note_locked(lazy,
                        &(struct ps_note){kind, {first - before, second}});
    }
}

/* Add the note that a step of the stream begins.  If stream is NULL, it is a
 * step of the host. */
static void
note_step_locked(struct cpu_engine *engine, const struct cpu_stream *stream)
{
    struct cpu_lazy *lazy = &engine->lazy;
    if (!lazy->asked.noted) {
        return;
    }
    struct ps_note note = {
        PS_NOTE_STEP,
        {0, 0, engine->tickets - lazy->first},
    };
    lazy->step++;
    if (stream != NULL) {
        lazy->ran = lazy->step;
        note.values[0] = stream->number;
        note.values[1] = stream->first->ticket - lazy->first;
    }
    add_note_locked(lazy, &note);
}

/* Add the notes about an operation that is about to run. */
static void
note_operation_locked(struct cpu_engine *engine,
                      struct cpu_operation *operation)
{
    const struct cpu_record *record = operation->record;
    size_t nbytes;
    void *data;
    switch (operation->kind) {
    case CPU_COPY:
        cpu_lazy_note_locked(engine, PS_NOTE_READ,
                             (uintptr_t)operation->transfer.source,
                             operation->transfer.nbytes);
        /* fallthrough */
    case CPU_FILL:
        cpu_lazy_note_locked(engine, PS_NOTE_WRITE,
                             (uintptr_t)operation->transfer.destination,
                             operation->transfer.nbytes);
        break;
    case CPU_FREE:
        data = cpu_memory_of(operation, &nbytes);
        cpu_lazy_note_locked(engine, PS_NOTE_WRITE, (uintptr_t)data, nbytes);
        break;
    case CPU_SLEEP:
        cpu_lazy_note_locked(engine, PS_NOTE_SLEEP, 0, 0);
        break;
    case CPU_RECORD:
        if (record->timed) {
            cpu_lazy_note_locked(engine, PS_NOTE_TIME, 0, 0);
        }
        break;
    case CPU_WAIT:
        cpu_lazy_note_locked(engine, PS_NOTE_AFTER_STEP, record->step, 0);
        break;
    case CPU_CALL:
        cpu_lazy_note_locked(engine, PS_NOTE_ANY, 0, 0);
        cpu_lazy_note_locked(engine, PS_NOTE_PROGRAM, 0, 0);
        break;
    case CPU_ENTER_GATE:
        if (operation->launched) {
            /* The arguments of a captured callable were not noted, so it may
             * access any memory. */
            cpu_lazy_note_locked(engine, PS_NOTE_ANY, 0, 0);
        }
        cpu_lazy_note_locked(engine, PS_NOTE_PROGRAM, 0, 0);
        /* A gate ends only when it is opened. */
        return;
    default:
        break;
    }
    cpu_lazy_note_locked(engine, PS_NOTE_DONE, operation->ticket, 0);
}

/* ---- Virtual time ---- */

/* The virtual time.  All engines share it, because a program may use several
 * of them and compare their times.  It begins at the real time, so that times
 * taken before the schedule can be compared with times of the schedule.
 * virtual_begin is its value when the schedule began. */
static _Atomic int64_t virtual_time;
static int64_t virtual_begin;

void
cpu_lazy_begin_time(bool continues)
{
    if (!continues) {
        atomic_store(&virtual_time, cpu_monotonic_clock.now());
    }
    virtual_begin = cpu_lazy_now();
}

int64_t
cpu_lazy_now(void)
{
    return atomic_load(&virtual_time);
}

void
cpu_lazy_pass_time(int64_t time)
{
    int64_t now = atomic_load(&virtual_time);
    while (now < time &&
           !atomic_compare_exchange_weak(&virtual_time, &now, time)) {
    }
}

static bool
virtual_wait_locked(struct cpu_engine *engine, pthread_cond_t *condition,
                    int64_t deadline)
{
    (void)deadline;
    return cpu_monotonic_clock.wait_locked(engine, condition, CPU_FOREVER);
}

/* The clock of the engine while a schedule is explored.  Worker and timer
 * threads that have nothing to do sleep in wait_locked without a limit. */
const struct cpu_clock cpu_lazy_clock = {
    .now = cpu_lazy_now,
    .wait_locked = virtual_wait_locked,
};

/* Sleep until lazy.changed is signalled, but at most for this many nanoseconds
 * of real time.  Returns false if that time has passed. */
static bool
nap_locked(struct cpu_engine *engine, int64_t nanoseconds)
{
    int64_t now = cpu_monotonic_clock.now();
    return cpu_monotonic_clock.wait_locked(engine, &engine->lazy_changed,
                                           now + nanoseconds);
}

/* ---- Candidates ---- */

static uint64_t
number(const struct cpu_engine *engine, const struct cpu_operation *operation)
{
    return operation->ticket - engine->lazy.first;
}

static bool
is_asleep(const struct cpu_stream *stream)
{
    return stream->first->kind == CPU_SLEEP && stream->status == PS_SUCCESS;
}

/* Give the stream its number, and move it to the front of the device's list.
 * So the list has the used streams in the order in which they were first used,
 * the latest first.  Otherwise it would have them in the order of their
 * creation.  That order may differ in the next run, because core pools native
 * streams. */
static void
lazy_used_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_lazy *lazy = &engine->lazy;
    stream->number = ++lazy->streams;
    stream->rank = cpu_lazy_rank(lazy->asked.seed, stream->number);
    LIST_REMOVE(stream, neighbours);
    LIST_INSERT_HEAD(&engine->devices[stream->device].streams, stream,
                     neighbours);
}

static bool
is_held(const struct cpu_stream *stream)
{
    const struct ps_schedule *asked = &stream->engine->lazy.asked;
    uint64_t wanted = number(stream->engine, stream->first);
    size_t low = 0, high = asked->strategy == PS_HELD ? asked->count : 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (asked->numbers[middle] < wanted) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low < asked->count && asked->numbers[low] == wanted;
}

#define EACH_READY(engine, stream)                                     \
    for (int list_ = 0; list_ < CPU_PRIORITIES; list_++)               \
        for (struct cpu_stream *stream = (engine)->ready[list_].first; \
             stream != NULL;                                           \
             stream = stream == (engine)->ready[list_].last ? NULL     \
                                                            : stream->next)

/* Returns the stream whose sleep ends first.  If `held` is false, leaves out
 * streams whose head is held back by PS_HELD. */
static struct cpu_stream *
first_sleeper_locked(struct cpu_engine *engine, bool held)
{
    struct cpu_stream *first = NULL;
    EACH_READY (engine, stream) {
        if (is_asleep(stream) && (held || !is_held(stream)) &&
            (first == NULL || stream->deadline < first->deadline)) {
            first = stream;
        }
    }
    return first;
}

/* Returns the ready stream whose head was queued first.  If `all` is false,
 * leaves out streams that sleep, and streams whose head is held back by
 * PS_HELD. */
static struct cpu_stream *
first_queued_locked(struct cpu_engine *engine, bool all)
{
    struct cpu_stream *first = NULL;
    EACH_READY (engine, stream) {
        if ((all || (!is_asleep(stream) && !is_held(stream))) &&
            (first == NULL || stream->first->ticket < first->first->ticket)) {
            first = stream;
        }
    }
    return first;
}

static struct cpu_stream *
pick_early_locked(struct cpu_engine *engine, bool blocked)
{
    struct cpu_stream *first = first_queued_locked(engine, false);
    return first == NULL && blocked ? first_sleeper_locked(engine, false)
                                    : first;
}

static struct cpu_stream *
pick_random_locked(struct cpu_engine *engine, bool blocked)
{
    struct cpu_stream *sleeper = first_sleeper_locked(engine, true);
    uint64_t count = 0;
    EACH_READY (engine, stream) {
        count += !is_asleep(stream) || stream == sleeper;
    }
    if (count == 0) {
        return NULL;
    }
    uint64_t left = draw(&engine->lazy) % (count + !blocked);
    EACH_READY (engine, stream) {
        if ((!is_asleep(stream) || stream == sleeper) && left-- == 0) {
            return stream;
        }
    }
    return NULL;
}

static struct cpu_stream *
pick_by_rank_locked(struct cpu_engine *engine, bool blocked)
{
    struct cpu_stream *sleeper = first_sleeper_locked(engine, true);
    struct cpu_stream *best = NULL;
    uint64_t least = blocked ? 0 : engine->lazy.rank;
    EACH_READY (engine, stream) {
        if ((!is_asleep(stream) || stream == sleeper) &&
            stream->rank > least) {
            best = stream;
            least = stream->rank;
        }
    }
    return best;
}

/* Returns the stream whose work must be done to reach the goal. */
static struct cpu_stream *
source_of(const struct cpu_goal *goal)
{
    return goal->stream != NULL ? goal->stream : goal->record->source;
}

/* Returns the stream whose head must run next so that the work of `stream`
 * gets done.  To find it, follows the waits from stream to stream.  Returns
 * NULL if a callable or a host function must end first, or if the stream that
 * was found has no operation left. */
static struct cpu_stream *
needed_locked(struct cpu_stream *stream)
{
    while (stream->first != NULL && stream->first->kind == CPU_WAIT &&
           !stream->first->record->done) {
        struct cpu_stream *source = stream->first->record->source;
        if (source == stream) {
            return NULL;
        }
        stream = source;
    }
    return stream->first != NULL && !stream->handed ? stream : NULL;
}

/* Returns the stream whose head must run next so that the goal is reached.
 * Returns NULL in the cases that needed_locked describes.  If the goal is not
 * known (goal is NULL), returns the stream whose head was queued first. */
static struct cpu_stream *
pick_needed_locked(struct cpu_engine *engine, const struct cpu_goal *goal)
{
    return goal == NULL ? first_queued_locked(engine, true)
                        : needed_locked(source_of(goal));
}

/* Try the goal of each waiting thread, the latest first, until
 * pick_needed_locked finds a stream for it.  Returns that stream, or NULL. */
static struct cpu_stream *
pick_for_blocked_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream = NULL;
    struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &engine->lazy.blocked, neighbours) {
        if (stream == NULL && !blocked->woken) {
            stream = pick_needed_locked(engine, blocked->goal);
        }
    }
    return stream;
}

static struct cpu_stream *
pick_given_locked(struct cpu_engine *engine, bool blocked)
{
    struct cpu_lazy *lazy = &engine->lazy;
    struct cpu_stream *picked =
        blocked ? first_queued_locked(engine, true) : NULL;
    if (blocked && picked == NULL) {
        return NULL;
    }
    if (lazy->taken < lazy->asked.count) {
        uint64_t wanted = lazy->asked.numbers[lazy->taken++];
        bool found = wanted == 0 && !blocked;
        if (found) {
            picked = NULL;
        }
        EACH_READY (engine, stream) {
            if (stream->number == wanted) {
                picked = stream;
                found = true;
            }
        }
        if (!found) {
            cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
        }
        else if (lazy->followed == lazy->taken - 1) {
            lazy->followed = lazy->taken;
        }
    }
    if (picked == NULL) {
        note_step_locked(engine, NULL);
    }
    return picked;
}

/* Returns the stream that the schedule serves next.  Returns NULL if the host
 * continues, or if no stream can be served.  blocked: whether the caller
 * waits, so that the host cannot continue. */
static struct cpu_stream *
pick_locked(struct cpu_engine *engine, bool blocked)
{
    struct cpu_stream *stream = NULL;
    if (engine->lazy.asked.strategy == PS_GIVEN) {
        return pick_given_locked(engine, blocked);
    }
    if (engine->ready_count == 0) {
        return NULL;
    }
    switch (engine->lazy.asked.strategy) {
    case PS_LATE:
    case PS_GIVEN:
        break;
    case PS_EARLY:
    case PS_HELD:
        stream = pick_early_locked(engine, blocked);
        break;
    case PS_RANDOM:
        return pick_random_locked(engine, blocked);
    case PS_PCT:
        return pick_by_rank_locked(engine, blocked);
    }
    return stream == NULL && blocked ? pick_for_blocked_locked(engine)
                                     : stream;
}

/* ---- Steps ---- */

/* Count a step of a stream or of the host.  what: the number of the operation;
 * 0 for the host.  *rank: the priority of the stream or host.  It is changed
 * if PS_PCT changes a priority at this step. */
static void
count_step_locked(struct cpu_engine *engine, uint64_t what, uint64_t *rank)
{
    struct cpu_lazy *lazy = &engine->lazy;
    lazy->steps++;
    lazy->order = mix(lazy->order + what + UINT64_C(0x9e3779b97f4a7c15));
    for (unsigned i = 0; i < lazy->asked.changes; i++) {
        uint64_t drawn = number_of(~lazy->asked.seed, i);
        if (lazy->steps == 1 + drawn % lazy->asked.steps) {
            *rank = 1 + i;
        }
    }
}

/* Append an entry to the log.  If memory runs out, the entry is missing. */
static void
log_locked(struct cpu_stream *stream, const struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_lazy *lazy = &engine->lazy;
    void *log = grown(lazy->log, lazy->logged, sizeof(*lazy->log));
    if (log == NULL) {
        return;
    }
    lazy->log = log;
    lazy->log[lazy->logged++] = (struct ps_schedule_entry){
        .device_type = engine->table.base.name,
        .operation = cpu_operation_name(operation->kind),
        .number = number(engine, operation),
        .step = lazy->ending ? 0 : lazy->steps,
        .time = cpu_lazy_now() - virtual_begin,
        .handle = stream->handle,
        .device = stream->device,
        .stream = stream->number,
        .overtaken = operation->overtaken,
    };
}

static void
take_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_stream_list *list = &engine->ready[-stream->priority];
    struct cpu_stream **link = &list->first, *before = NULL;
    while (*link != stream) {
        before = *link;
        link = &before->next;
    }
    *link = stream == list->last ? NULL : stream->next;
    if (stream == list->last) {
        list->last = before;
    }
    engine->ready_count--;
}

static bool
is_parked(const struct ps_blocked *blocked)
{
    return blocked->parked && !blocked->woken;
}

/* Returns whether a callable has the turn before the calling thread.  self:
 * the calling thread's entry in the list of waiting threads; NULL if it has
 * none. */
static bool
callables_precede(const struct cpu_lazy *lazy, const struct ps_blocked *self)
{
    unsigned listed = 0;
    bool precede = false, later = true;
    const struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &lazy->blocked, neighbours) {
        /* If the calling thread runs a callable, the entries behind its own
         * belong to threads that began to wait earlier, so those threads go
         * after it. */
        later = later && (blocked != self || !blocked->callable);
        listed += blocked->callable;
        precede |= later && blocked->callable && !is_parked(blocked);
    }
    return precede || lazy->callables > listed;
}

/* Returns whether a callable other than the calling thread's is running.  Such
 * a callable may make progress although no operation can run.  self: as for
 * callables_precede. */
static bool
others_run(const struct cpu_lazy *lazy, const struct ps_blocked *self)
{
    unsigned others = lazy->callables;
    const struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &lazy->blocked, neighbours) {
        others -= blocked->callable && (blocked == self || is_parked(blocked));
    }
    return others > 0;
}

/* Returns whether a waiting callable may continue although no operation can
 * run.  It may if it waits in hold(), because the program may call released(),
 * or if its wait may expire. */
static bool
any_may_go_on(const struct cpu_lazy *lazy)
{
    bool may = false;
    const struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &lazy->blocked, neighbours) {
        may |= blocked->holds ||
               (blocked->callable && blocked->deadline < CPU_FOREVER);
    }
    return may;
}

/* Returns the entry of the waiting thread whose wait expires first.  Returns
 * NULL if no wait has a limit. */
static const struct ps_blocked *
first_to_expire(const struct cpu_lazy *lazy)
{
    const struct ps_blocked *first = NULL, *blocked;
    int64_t least = CPU_FOREVER;
    LIST_FOREACH (blocked, &lazy->blocked, neighbours) {
        if (blocked->deadline < least) {
            first = blocked;
            least = blocked->deadline;
        }
    }
    return first;
}

/* Returns whether the calling thread runs a callable and the host does not
 * wait. */
static bool
host_runs(const struct cpu_lazy *lazy, const struct ps_blocked *self)
{
    bool runs = self->callable;
    const struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &lazy->blocked, neighbours) {
        runs &= blocked->callable;
    }
    return runs;
}

/* Returns whether the calling thread's wait expires next.  A callable's wait
 * does not expire while the host runs, unless the host runs too long.  In that
 * case the host may be waiting for something that the engine does not see. */
static bool
expires_next(const struct cpu_lazy *lazy, const struct ps_blocked *self)
{
    return !others_run(lazy, self) && first_to_expire(lazy) == self &&
           (!host_runs(lazy, self) || lazy->naps >= NAPS * BUSY);
}

bool
cpu_lazy_is_callable(const struct cpu_engine *engine)
{
    return engine->lazy.asked.is_callable(&engine->table.base);
}

void
cpu_lazy_block_locked(struct cpu_engine *engine, struct ps_blocked *blocked,
                      const struct cpu_goal *goal, int64_t deadline)
{
    struct cpu_lazy *lazy = &engine->lazy;
    *blocked = (struct ps_blocked){
        .goal = goal,
        .callable = cpu_lazy_is_callable(engine),
        .listed = true,
        .deadline = deadline,
    };
    LIST_INSERT_HEAD(&lazy->blocked, blocked, neighbours);
    pthread_cond_broadcast(&engine->lazy_changed);
}

void
cpu_lazy_host_waits_locked(struct cpu_engine *engine,
                           const struct ps_blocked *blocked)
{
    if (!blocked->callable) {
        engine->lazy.naps = 0;
    }
}

/* Call this after a change that may allow waiting threads to continue.  Wakes
 * the threads, so that they look for work again.  The parked threads move to
 * the front of the list, and are no longer parked, except those in hold(). */
static void
changed_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    struct ps_blocked *blocked, *next;
    for (blocked = LIST_FIRST(&lazy->blocked); blocked != NULL;
         blocked = next) {
        next = LIST_NEXT(blocked, neighbours);
        if (blocked->parked) {
            blocked->parked = blocked->holds;
            LIST_REMOVE(blocked, neighbours);
            LIST_INSERT_HEAD(&lazy->blocked, blocked, neighbours);
        }
    }
    pthread_cond_broadcast(&engine->lazy_changed);
}

static bool
is_runnable(const char *thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", thread);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    /* The state follows the thread's name, which is in parentheses and may
     * contain any characters. */
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && strncmp(name_end, ") R", 3) == 0;
}

/* Returns whether another thread of the process is running or waits for a
 * processor.  It may be a callable's thread that has just been started. */
static bool
others_are_runnable(void)
{
    bool found = false;
    const struct dirent *entry;
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) {
        return false;
    }
    while (!found && (entry = readdir(folder)) != NULL) {
        found = entry->d_name[0] != '.' &&
                strtol(entry->d_name, NULL, 10) != syscall(SYS_gettid) &&
                is_runnable(entry->d_name);
    }
    closedir(folder);
    return found;
}

/* Returns how much a nap counts toward the limit of NAPS * BUSY.  A nap is a
 * sleep of NAP_NS during which nothing changed.  It counts 1 if another thread
 * of the process runs or waits for a processor, because that thread may still
 * make progress.  Otherwise, it counts BUSY.  The lock is released
 * meanwhile. */
static unsigned
weigh_nap_locked(struct cpu_engine *engine)
{
    pthread_mutex_unlock(&engine->lock);
    unsigned weight = others_are_runnable() ? 1 : BUSY;
    pthread_mutex_lock(&engine->lock);
    return weight;
}

/* Call this if a callable's thread has found nothing to run.  If the host
 * runs, no other callable runs, and NAP_NS have passed since the last nap was
 * counted, adds the weight of a nap to lazy->naps and returns true.  Otherwise
 * returns false.  The lock is released while the nap is weighed. */
static bool
count_nap_locked(struct cpu_engine *engine, const struct ps_blocked *self)
{
    struct cpu_lazy *lazy = &engine->lazy;
    int64_t now = cpu_monotonic_clock.now();
    bool counts = host_runs(lazy, self) && !others_run(lazy, self) &&
                  now - lazy->nap >= NAP_NS;
    if (counts) {
        lazy->naps += weigh_nap_locked(engine);
        lazy->nap = cpu_monotonic_clock.now();
    }
    return counts;
}

/* Wait until no callable has the turn before the calling thread, or until that
 * has taken too long.  self: as for callables_precede. */
static void
stand_locked(struct cpu_engine *engine, const struct ps_blocked *self)
{
    struct cpu_lazy *lazy = &engine->lazy;
    unsigned naps = 0;
    while (callables_precede(lazy, self) && !lazy->impatient &&
           cpu_is_lazy(engine)) {
        if (!nap_locked(engine, NAP_NS)) {
            naps += weigh_nap_locked(engine);
        }
        lazy->impatient = naps >= NAPS * BUSY;
    }
    if (callables_precede(lazy, self)) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
    }
}

/* If the calling thread runs a callable, add `standing` to the list of waiting
 * threads.  It is the thread's entry there while the thread stands.  Returns
 * the entry.  Returns NULL if the thread runs no callable, because it needs no
 * entry then. */
static struct ps_blocked *
begin_standing_locked(struct cpu_engine *engine, struct ps_blocked *standing)
{
    if (engine->lazy.callables == 0 || !cpu_lazy_is_callable(engine)) {
        return NULL;
    }
    cpu_lazy_block_locked(engine, standing, NULL, CPU_FOREVER);
    standing->woken = true;
    return standing;
}

/* Let the callables that can continue do so before the calling thread
 * continues. */
static void
await_callables_locked(struct cpu_engine *engine)
{
    unsigned forks = cpu_forks;
    if (engine->lazy.callables > 0) {
        struct ps_blocked standing;
        struct ps_blocked *self = begin_standing_locked(engine, &standing);
        changed_locked(engine);
        stand_locked(engine, self);
        if (self != NULL && cpu_forks == forks) {
            LIST_REMOVE(self, neighbours);
        }
    }
}

/* Call the function of the gate at the head of the stream.  As soon as the
 * function is called, the callable's thread may call the engine. */
static void
enter_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    const struct cpu_stream *outer = cpu_serving();
    struct cpu_operation entry = *stream->first;
    ps_status status = stream->status;
    stream->first->kind = CPU_WAIT;
    if (!entry.record->done) {
        entry.record->entered = true;
        engine->lazy.callables++;
        engine->lazy.impatient = false;
    }
    cpu_stream_settle_locked(stream);
    changed_locked(engine);
    pthread_mutex_unlock(&engine->lock);
    pthread_setspecific(cpu_serving_key, stream);
    cpu_gate_enter(&entry, status);
    pthread_setspecific(cpu_serving_key, outer);
    pthread_mutex_lock(&engine->lock);
}

/* Execute the operation at the head of the stream, which the caller has taken.
 * Returns false in a forked child; see cpu_stream_serve_locked. */
static bool
serve_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_lazy *lazy = &engine->lazy;
    struct cpu_operation *operation = stream->first;
    bool frees = operation->kind == CPU_FREE;
    bool keeps = frees && lazy->asked.noted;
    lazy->busy = true;
    if (!cpu_stream_serve_locked(stream)) {
        return false;
    }
    if (frees) {
        pthread_mutex_unlock(&engine->lock);
        cpu_memory_poison(operation);
        if (!keeps) {
            free(operation);
        }
        pthread_mutex_lock(&engine->lock);
    }
    lazy->busy = false;
    if (keeps) {
        operation->next = lazy->freed;
        lazy->freed = operation;
    }
    cpu_stream_settle_locked(stream);
    changed_locked(engine);
    return true;
}

/* Run the operation at the head of a ready stream.  Then let callables that
 * can continue do so before the calling thread continues.  self: as for
 * callables_precede.  Returns false in a forked child; see
 * cpu_stream_serve_locked. */
static bool
run_blocked_locked(struct cpu_stream *stream, const struct ps_blocked *self)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_lazy *lazy = &engine->lazy;
    struct cpu_operation *operation = stream->first;
    bool enters = operation->kind == CPU_ENTER_GATE;
    bool calls = operation->kind == CPU_CALL && stream->status == PS_SUCCESS;
    unsigned forks = cpu_forks;
    note_step_locked(engine, stream);
    note_operation_locked(engine, operation);
    if (!enters) {
        stream->done = operation->ticket;
    }
    if (is_asleep(stream)) {
        cpu_lazy_pass_time(stream->deadline);
    }
    count_step_locked(engine, number(engine, operation), &stream->rank);
    if (lazy->asked.logged && !lazy->ending) {
        log_locked(stream, operation);
    }
    take_locked(stream);
    if (enters) {
        enter_locked(stream);
    }
    else if (calls && cpu_stream_hand_locked(stream)) {
        lazy->callables++;
        lazy->impatient = false;
    }
    else if (!serve_locked(stream)) {
        return false;
    }
    stand_locked(engine, self);
    return cpu_forks == forks &&
           (!cpu_may_notify(engine) || cpu_notify_due_locked(engine));
}

/* Like run_blocked_locked, but for a thread that has no entry in the list of
 * waiting threads. */
static bool
run_locked(struct cpu_stream *stream)
{
    struct ps_blocked standing;
    unsigned forks = cpu_forks;
    struct ps_blocked *self = begin_standing_locked(stream->engine, &standing);
    bool ran = run_blocked_locked(stream, self);
    if (self != NULL && cpu_forks == forks) {
        LIST_REMOVE(self, neighbours);
    }
    return ran;
}

/* Run the operations that the schedule picks before the host continues.
 * Returns false in a forked child; see cpu_stream_serve_locked. */
static bool
step_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    struct cpu_stream *stream;
    if (lazy->asked.noted && (cpu_lazy_is_callable(engine) ||
                              !pthread_equal(lazy->thread, pthread_self()))) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
    }
    count_step_locked(engine, 0, &lazy->rank);
    await_callables_locked(engine);
    while (cpu_is_lazy(engine) && !lazy->busy &&
           (stream = pick_locked(engine, false)) != NULL) {
        if (!run_locked(stream)) {
            return false;
        }
    }
    if (lazy->asked.logged) {
        EACH_READY (engine, ready) {
            ready->first->overtaken = true;
        }
    }
    return true;
}

/* ---- Polls ---- */

/* Add a note that the program has queried a record that is still pending. */
static void
note_asked_locked(struct cpu_engine *engine, const struct cpu_record *record)
{
    for (const struct cpu_operation *operation = record->source->first;
         operation != NULL; operation = operation->next) {
        if (operation->kind == CPU_RECORD && operation->record == record) {
            cpu_lazy_note_locked(engine, PS_NOTE_ASKED, operation->ticket, 0);
        }
    }
}

static bool
is_live_locked(struct cpu_engine *engine, const struct cpu_stream *wanted)
{
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_stream *stream;
        LIST_FOREACH (stream, &engine->devices[i].streams, neighbours) {
            if (stream == wanted) {
                return true;
            }
        }
    }
    return false;
}

/* Called when the program seems to poll in a loop.  Runs an operation, so that
 * the loop can end.  The notes are incomplete then, because there are
 * infinitely many orders with more or fewer polls. */
static void
end_polling_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    struct cpu_stream *stream = NULL;
    if (lazy->asked.noted) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
        stream = pick_given_locked(engine, true);
    }
    else {
        if (lazy->polled != NULL && is_live_locked(engine, lazy->polled)) {
            stream = needed_locked(lazy->polled);
        }
        if (stream == NULL) {
            stream = first_queued_locked(engine, true);
        }
    }
    if (stream == NULL && !cpu_lazy_is_callable(engine)) {
        /* No work can end the loop, so the program may be polling for
         * something else, such as the end of a callable's wait.  Let the waits
         * of callables expire. */
        lazy->naps = NAPS * BUSY;
    }
    if (stream != NULL && run_locked(stream) && lazy->asked.noted) {
        step_locked(engine);
    }
}

void
cpu_lazy_poll_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    uint64_t steps = lazy->steps;
    /* If `queried` is true, ask_locked has already run the operations that the
     * schedule picks. */
    bool idle = lazy->queried;
    lazy->queried = false;
    if (!idle && !lazy->busy) {
        idle = step_locked(engine) && lazy->steps == steps + 1;
    }
    if (idle && ++lazy->polls % POLLS == 0) {
        end_polling_locked(engine);
    }
}

static bool
lazy_ask_locked(struct cpu_engine *engine, const struct ps_backend *backend)
{
    struct cpu_lazy *lazy = &engine->lazy;
    if (backend == &engine->table.base || lazy->asked.is_internal()) {
        return false;
    }
    if (lazy->busy || cpu_serving() != NULL) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
    }
    else {
        step_locked(engine);
    }
    return true;
}

static void
lazy_asked_locked(struct cpu_engine *engine, const struct cpu_stream *stream,
                  const struct cpu_record *record)
{
    bool done = record != NULL ? record->done : stream->first == NULL;
    if (record == NULL) {
        cpu_lazy_note_locked(engine, PS_NOTE_ASKED,
                             cpu_stream_last_locked(stream, UINT64_MAX), 0);
    }
    else if (done) {
        cpu_lazy_note_locked(engine, PS_NOTE_ASKED_STEP, record->step, 0);
    }
    else {
        note_asked_locked(engine, record);
    }
    engine->lazy.queried = !done;
}

void
cpu_lazy_arrived_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    if (cpu_is_noted(engine) && !lazy->busy && cpu_serving() == NULL &&
        !lazy->asked.is_internal()) {
        lazy->polls = 0;
        step_locked(engine);
    }
}

/* ---- The driver ---- */

/* Returns the stream whose last operation has this ticket.  Returns NULL if
 * that operation has run. */
static const struct cpu_stream *
queued_last_locked(struct cpu_engine *engine, uint64_t ticket)
{
    struct cpu_stream *stream;
    for (int i = 0; i < engine->device_count; i++) {
        LIST_FOREACH (stream, &engine->devices[i].streams, neighbours) {
            const char *next = (const char *)stream->tail;
            const struct cpu_operation *last =
                (const void *)(next - offsetof(struct cpu_operation, next));
            if (stream->first != NULL && last->ticket == ticket) {
                return stream;
            }
        }
    }
    return NULL;
}

static void
lazy_release_locked(struct cpu_engine *engine)
{
    struct cpu_lazy *lazy = &engine->lazy;
    uint64_t before = lazy->seen, after = engine->tickets;
    if (before == after || lazy->busy || engine->notifying ||
        cpu_serving() != NULL) {
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    void (*queued)(uint64_t, uint64_t, int, int, ps_handle) =
        lazy->asked.queued;
    bool internal = lazy->asked.is_internal();
    lazy->seen = after;
    lazy->polls = lazy->asked.noted ? 0 : lazy->polls;
    if (queued != NULL) {
        const struct cpu_stream *stream = queued_last_locked(engine, after);
        int device = stream != NULL ? stream->device : 0;
        ps_handle handle = stream != NULL ? stream->handle : 0;
        uint64_t first = lazy->first;
        lazy->busy = true;
        pthread_mutex_unlock(&engine->lock);
        queued(before + 1 - first, after - first,
               engine->table.base.device_type, device, handle);
        pthread_mutex_lock(&engine->lock);
        lazy->busy = false;
        pthread_cond_broadcast(&engine->lazy_changed);
    }
    if (!internal && cpu_is_lazy(engine)) {
        step_locked(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

/* Called when no operation can run.  Waits for other threads, or until a limit
 * expires.  Returns PS_SUCCESS if the caller must look for work again. */
static ps_status
wait_for_others_locked(struct cpu_engine *engine, struct ps_blocked *self,
                       const struct cpu_limit *limit)
{
    struct cpu_lazy *lazy = &engine->lazy;
    const struct ps_limit *asked = limit->asked;
    if (expires_next(lazy, self)) {
        cpu_lazy_pass_time(limit->deadline);
        return PS_ERROR_TIMED_OUT;
    }
    if (!others_run(lazy, self) && limit->deadline == CPU_FOREVER &&
        !any_may_go_on(lazy)) {
        return PS_ERROR_DEADLOCK;
    }
    if (count_nap_locked(engine, self)) {
        return PS_SUCCESS;
    }
    self->parked = true;
    pthread_cond_broadcast(&engine->lazy_changed);
    /* Other callables may be running.  The virtual time advances by the real
     * time that they take. */
    int64_t before = cpu_monotonic_clock.now();
    int64_t now = cpu_lazy_now(), left = limit->deadline - now;
    int64_t most = host_runs(lazy, self) ? NAP_NS : QUESTION_NS;
    nap_locked(engine, left < most ? left : most);
    if (others_run(lazy, self) && limit->deadline != CPU_FOREVER) {
        cpu_lazy_pass_time(now + cpu_monotonic_clock.now() - before);
    }
    if (cpu_lazy_now() >= limit->deadline) {
        return PS_ERROR_TIMED_OUT;
    }
    if (asked->is_over == NULL) {
        return PS_SUCCESS;
    }
    cpu_unlock(engine);
    bool over = asked->is_over(asked->argument) != 0;
    cpu_lock(engine);
    return over ? PS_ERROR_TIMED_OUT : PS_SUCCESS;
}

/* Returns whether the strategy is PS_GIVEN and the next operation for the goal
 * is a sleep that ends after the limit. */
static bool
may_expire_locked(struct cpu_engine *engine, const struct cpu_goal *goal,
                  const struct cpu_limit *limit)
{
    struct cpu_stream *stream = needed_locked(source_of(goal));
    return engine->lazy.asked.strategy == PS_GIVEN && stream != NULL &&
           is_asleep(stream) && stream->deadline > limit->deadline;
}

/* Run an operation, or wait for the callables that keep all operations from
 * running. */
static ps_status
wait_once_locked(struct cpu_engine *engine, struct ps_blocked *self,
                 const struct cpu_limit *limit)
{
    struct cpu_lazy *lazy = &engine->lazy;
    if (lazy->busy) {
        nap_locked(engine, QUESTION_NS);
        return PS_SUCCESS;
    }
    bool expires = may_expire_locked(engine, self->goal, limit);
    struct cpu_stream *stream = pick_locked(engine, !expires);
    if (stream == NULL && expires) {
        cpu_lazy_pass_time(limit->deadline);
        cpu_lazy_note_locked(engine, PS_NOTE_SLEEP, 0, 0);
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
        return PS_ERROR_TIMED_OUT;
    }
    if (stream == NULL ||
        (lazy->asked.strategy != PS_GIVEN && is_asleep(stream) &&
         stream->deadline > limit->deadline)) {
        return wait_for_others_locked(engine, self, limit);
    }
    return run_blocked_locked(stream, self) ? PS_SUCCESS : PS_ERROR_TIMED_OUT;
}

static ps_status
lazy_wait_locked(struct cpu_engine *engine, struct cpu_waiter *waiter,
                 const struct cpu_goal *goal, const struct cpu_limit *limit)
{
    struct ps_blocked blocked;
    ps_status status = PS_SUCCESS;
    unsigned forks = cpu_forks;
    if (limit->deadline <= cpu_lazy_now()) {
        engine->lazy.polled = source_of(goal);
        cpu_lazy_poll_locked(engine);
        return PS_ERROR_TIMED_OUT;
    }
    cpu_lazy_block_locked(engine, &blocked, goal, limit->deadline);
    cpu_lazy_host_waits_locked(engine, &blocked);
    waiter->blocked = &blocked;
    if (blocked.callable) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
    }
    while (!waiter->woken && status == PS_SUCCESS && cpu_is_lazy(engine)) {
        stand_locked(engine, &blocked);
        if (!waiter->woken) {
            status = wait_once_locked(engine, &blocked, limit);
        }
    }
    if (cpu_forks == forks) {
        stand_locked(engine, &blocked);
        LIST_REMOVE(&blocked, neighbours);
    }
    waiter->blocked = NULL;
    return status;
}

void
cpu_lazy_wake_locked(struct cpu_engine *engine)
{
    struct ps_blocked *blocked;
    LIST_FOREACH (blocked, &engine->lazy.blocked, neighbours) {
        blocked->woken |= blocked->goal == NULL && !blocked->holds;
    }
    changed_locked(engine);
}

static void
end_callable_locked(struct cpu_engine *engine)
{
    engine->lazy.callables--;
    cpu_lazy_wake_locked(engine);
}

void
cpu_lazy_ending_locked(struct cpu_engine *engine)
{
    engine->lazy.callables++;
    engine->lazy.ending_callables++;
}

void
cpu_lazy_ended_locked(struct cpu_engine *engine)
{
    /* If the count is 0, the callable called ending() before this schedule
     * began. */
    if (engine->lazy.ending_callables > 0) {
        engine->lazy.ending_callables--;
        end_callable_locked(engine);
    }
}

const struct cpu_driver cpu_lazy_driver = {
    .release_locked = lazy_release_locked,
    .wait_locked = lazy_wait_locked,
    .opened_locked = end_callable_locked,
    .note_locked = cpu_lazy_note_locked,
    .ask_locked = lazy_ask_locked,
    .asked_locked = lazy_asked_locked,
    .arrived_locked = cpu_lazy_arrived_locked,
    .used_locked = lazy_used_locked,
};

/* ---- Waits for something other than work ---- */

static enum ps_progress
advance_once_locked(struct cpu_engine *engine,
                    const struct ps_blocked *blocked, int64_t deadline)
{
    struct cpu_lazy *lazy = &engine->lazy;
    bool given = lazy->asked.strategy == PS_GIVEN;
    stand_locked(engine, blocked);
    if (lazy->busy) {
        nap_locked(engine, QUESTION_NS);
        return PS_RAN;
    }
    if (given && cpu_lazy_now() >= deadline) {
        cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
        return PS_EXPIRED;
    }
    struct cpu_stream *stream = pick_locked(engine, true);
    if (stream == NULL) {
        /* If the thread was woken, report progress, so that it checks its wait
         * before work is picked for it. */
        bool others = lazy->callables > lazy->ending_callables;
        bool stuck = deadline == CPU_FOREVER && !any_may_go_on(lazy);
        return blocked->woken                ? PS_RAN
               : others_run(lazy, blocked)   ? PS_RUNNING
               : !others                     ? PS_NOTHING
               : expires_next(lazy, blocked) ? PS_EXPIRED
               : stuck                       ? PS_STUCK
                                             : PS_RUNNING;
    }
    if (!given && is_asleep(stream) && stream->deadline > deadline) {
        return expires_next(lazy, blocked) ? PS_EXPIRED : PS_RUNNING;
    }
    run_blocked_locked(stream, blocked);
    return PS_RAN;
}

enum ps_progress
cpu_lazy_advance_locked(struct cpu_engine *engine, int64_t deadline)
{
    struct ps_blocked blocked;
    unsigned forks = cpu_forks;
    if (!cpu_is_lazy(engine)) {
        return PS_NOTHING;
    }
    cpu_lazy_block_locked(engine, &blocked, NULL, deadline);
    enum ps_progress progress =
        advance_once_locked(engine, &blocked, deadline);
    if (progress == PS_RUNNING) {
        count_nap_locked(engine, &blocked);
    }
    if (cpu_forks == forks) {
        LIST_REMOVE(&blocked, neighbours);
    }
    return progress;
}

void
cpu_lazy_await_locked(struct cpu_engine *engine)
{
    if (cpu_is_lazy(engine)) {
        await_callables_locked(engine);
    }
}

/* ---- Callables in hold() ---- */

void
cpu_lazy_hold_locked(struct cpu_engine *engine)
{
    struct ps_blocked blocked;
    unsigned forks = cpu_forks;
    if (!cpu_is_lazy(engine) || !cpu_lazy_is_callable(engine)) {
        return;
    }
    int64_t end = cpu_monotonic_clock.now() + QUESTION_NS;
    cpu_lazy_note_locked(engine, PS_NOTE_LOOSE, 0, 0);
    cpu_lazy_block_locked(engine, &blocked, NULL, CPU_FOREVER);
    blocked.holds = blocked.parked = true;
    while (!blocked.woken && cpu_monotonic_clock.wait_locked(
                                 engine, &engine->lazy_changed, end)) {
    }
    if (cpu_forks == forks) {
        LIST_REMOVE(&blocked, neighbours);
    }
}

void
cpu_lazy_released_locked(struct cpu_engine *engine)
{
    struct ps_blocked *blocked;
    if (!cpu_is_lazy(engine)) {
        return;
    }
    LIST_FOREACH (blocked, &engine->lazy.blocked, neighbours) {
        blocked->woken |= blocked->holds;
    }
    await_callables_locked(engine);
}

/* ---- The end ---- */

bool
cpu_lazy_pending_locked(struct cpu_engine *engine, char text[256])
{
    const char *name = engine->table.base.name;
    if (!LIST_EMPTY(&engine->captures)) {
        snprintf(text, 256,
                 "a stream of %s is being captured; end the capture first",
                 name);
        return true;
    }
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_stream *stream;
        LIST_FOREACH (stream, &engine->devices[i].streams, neighbours) {
            if (stream->first != NULL) {
                snprintf(text, 256,
                         "%s:%d has a stream with %u pending operations, the "
                         "first a %s; synchronize first",
                         name, i, stream->pending,
                         cpu_operation_name(stream->first->kind));
                return true;
            }
        }
    }
    return false;
}

/* Drop the operation at the head of a ready stream.  For this, change a copy,
 * fill, call or failure so that it does nothing when it runs.  Sleeps, waits
 * and frees are not changed. */
static void
drop_locked(struct cpu_stream *stream)
{
    struct cpu_operation *operation = stream->first;
    struct cpu_lazy *lazy = &stream->engine->lazy;
    if (lazy->asked.logged) {
        log_locked(stream, operation);
    }
    switch (operation->kind) {
    case CPU_RECORD:
        operation->record->orders = true;
        break;
    case CPU_COPY:
    case CPU_FILL:
    case CPU_CALL:
    case CPU_FAIL:
        operation->kind = CPU_MARK;
        if (operation->times != NULL) {
            cpu_times_end(stream, operation);
        }
        break;
    case CPU_ENTER_GATE:
        /* The gate still opens, but the callable's Future fails. */
        operation->abandoned = true;
        break;
    default:
        break;
    }
}

bool
cpu_lazy_finish_locked(struct cpu_engine *engine, bool drop, int64_t end)
{
    struct cpu_lazy *lazy = &engine->lazy;
    char text[256];
    lazy->ending = drop;
    lazy->asked.noted = lazy->asked.noted && !drop;
    bool given = lazy->asked.noted;
    /* The host counts as waiting now, so let the waits of callables expire. */
    lazy->naps = NAPS * BUSY;
    while (cpu_lazy_pending_locked(engine, text) || lazy->callables > 0) {
        struct cpu_stream *stream = lazy->busy ? NULL
                                    : given
                                        ? pick_given_locked(engine, true)
                                        : first_queued_locked(engine, true);
        if (stream != NULL && drop) {
            drop_locked(stream);
        }
        if (stream != NULL) {
            if (!run_locked(stream)) {
                return true;
            }
        }
        else if (!LIST_EMPTY(&engine->captures) && lazy->callables == 0 &&
                 !lazy->busy) {
            return true;
        }
        else if (cpu_monotonic_clock.now() >= end) {
            return false;
        }
        else {
            nap_locked(engine, QUESTION_NS);
        }
    }
    return true;
}
