/* The insides of the embedded CPU engine: a small CUDA on threads.
 *
 * One lock per engine guards every field below that does not say otherwise.
 * It is never held around a copy, a fill, a host function, a notification or
 * the freeing of a block, nor while a thread waits.  No other lock is ever
 * taken under it.
 *
 * Calls that change no queue take no lock: a record, a wait or a query, if the
 * stream is known to be idle and the event to be done.  An object's known
 * state is in its slot; see cpu_slot_known.
 *
 * A file calls those above it in this list alone: storage.c, times.c, goal.c,
 * queue.c, wait.c, partition.c, legacy.c, graph.c, shared.c over files.c,
 * event.c, notify.c, stream.c, thread_stream.c, memory.c, shared_memory.c,
 * lazy.c, explore.c, engine.c. */
#ifndef PYSTREAMS_CPU_ENGINE_H
#define PYSTREAMS_CPU_ENGINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <pystreams/backend.h>

#include "../backends.h"

enum {
    CPU_ENGINES = 8,         /* engines in one process */
    CPU_PRIORITIES = 6,      /* 0 to -5 */
    CPU_QUEUE_LIMIT = 65536, /* operations of one stream */
    /* A transfer up to this is cheaper done than queued. */
    CPU_INLINE_BYTES = 64 * 1024,
};

#define CPU_FOREVER INT64_MAX

struct cpu_engine;

/* ---- Storage: handles ---- */

enum cpu_tag { CPU_STREAM, CPU_EVENT, CPU_GATE, CPU_GRAPH, CPU_PARTITION };

enum { CPU_TAGS = 8, CPU_ANY_DEVICE = -1 };

/* The state of a slot's object that is known without the lock. */
enum {
    CPU_UNKNOWN,
    /* A stream: idle, without a failure, not captured, and ordered with no
     * other stream by itself.  An event of this process: its latest record is
     * done, without a failure, and not captured. */
    CPU_DONE,
    /* Such an event with timing, which adds the time of the record. */
    CPU_TIMED,
};

/* The object of a handle.  A slot stays where it is, and is never freed, so
 * that its atomic fields can be read at any time.  It fills a line of the
 * processor's cache: threads that use different slots do not slow each other
 * down. */
struct cpu_slot {
    _Atomic ps_handle handle; /* 0 in a free slot */
    /* CPU_UNKNOWN whenever the object is in any other state.  Becomes known
     * with the lock held; an event's time may also be replaced by a later one
     * without it. */
    _Atomic int64_t known;
    /* A stream, an event's latest record, a gate's record, a graph, a
     * partition. */
    void *object;
    atomic_int device;
    uint32_t next_free;
    struct cpu_shared *shared; /* of an interprocess event, else NULL */
    char apart[24];
};

enum {
    CPU_SLOT_BYTES = 64,
    CPU_CHUNK_BYTES = 1 << 18,
    CPU_CHUNK_SLOTS = CPU_CHUNK_BYTES / CPU_SLOT_BYTES,
    CPU_CHUNKS = 1 << 12,
};

_Static_assert(sizeof(struct cpu_slot) == CPU_SLOT_BYTES,
               "a handle has the place of its slot in the chunk");

struct cpu_handles {
    uint32_t used;       /* the last slot ever used; slot 0 never is */
    uint32_t first_free; /* 0 if none */
    uint64_t serial;     /* of the latest handle */
};

/* A slot with a new handle and no object; NULL when out of memory. */
struct cpu_slot *
cpu_slot_take_locked(struct cpu_engine *engine, enum cpu_tag tag, int device);
void cpu_slot_give_locked(struct cpu_engine *engine, struct cpu_slot *slot);
/* Reserve `count` slots, so that taking them cannot fail.
 * Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_slots_reserve_locked(struct cpu_engine *engine, size_t count);
/* Whether any handle is live. */
bool cpu_slots_any_locked(const struct cpu_engine *engine);
/* Make all handles stale.  No other thread may be in the engine. */
void cpu_slots_forget(struct cpu_engine *engine);

/* Relaxed: the code that changes the object orders the change for those that
 * rely on it. */
static inline void
cpu_forget(_Atomic int64_t *known)
{
    atomic_store_explicit(known, CPU_UNKNOWN, memory_order_relaxed);
}

/* ---- Streams ---- */

/* The state of a stream is its place.
 *
 *              head can run           a worker takes it
 *   idle ------------------> ready ----------------------> served
 *    |                       ^   ^                         | | |
 *    |           record done |   '-------------------------' | |
 *    |       or time reached |       the next can run        | |
 *    |                       |                               | |
 *    '-------------------> parked <--------------------------' |
 *       head must wait               the next must wait        |
 *                                                              |
 *   idle <-----------------------------------------------------'
 *       the queue is empty
 *
 * An idle stream's queue is empty.  A ready one is in engine->ready, a parked
 * one is among its record's parked or engine's sleepers.  A served one is in
 * no list: the thread that does the operation at its head has the only
 * pointer.  That is a worker, the timer, or a caller whose small copy or
 * opened gate is next.  Other threads only append. */
struct cpu_stream {
    struct cpu_engine *engine; /* constant */
    int device;                /* constant */
    int priority;              /* constant */
    /* Constant; 0: the device's default stream; of a thread's: its name. */
    ps_handle handle;
    _Atomic int64_t *known; /* see cpu_slot; NULL if it has no handle */
    struct cpu_partition *partition; /* constant; NULL if in none */
    ps_status status; /* the first failure; changed by its server */
    bool reported;    /* a synchronize returned status */
    bool destroyed;   /* freed once idle and not waited for */
    bool handed;      /* to a worker, for a host function */
    struct cpu_operation *first;
    struct cpu_operation **tail;
    unsigned pending;                      /* operations in the queue */
    struct cpu_waiter *waiters;            /* for tickets */
    struct ps_notification *notifications; /* a ring in ticket order */
    struct cpu_stream *next;               /* in a cpu_stream_list */
    struct cpu_stream *left;               /* among the sleepers */
    struct cpu_stream *right;
    int64_t deadline; /* of its sleep */
    unsigned number;  /* in the schedule that is explored, from 1; else 0 */
    uint64_t rank;    /* its priority there */
    uint64_t done;    /* the ticket of the last operation that it ran there */
    LIST_ENTRY(cpu_stream) neighbours; /* on the device */
    /* NULL unless it is captured.  Then the operations queued on it form a
     * branch of the plan and are numbered in ascending order: the last one,
     * and the last one that another stream of the capture waits for. */
    struct cpu_capture *capture;
    uint16_t branch;
    uint64_t last;
    uint64_t covered;
    struct cpu_stream *peer; /* the next of the capture */
    /* Of a blocking stream, and of a default stream while its device has
     * blocking streams: the latest ticket that its work may have. */
    uint64_t given;
    /* Of a blocking stream: the default stream's `given` up to which it waits
     * for that stream, and its own `given` up to which the default stream
     * waits for it. */
    bool blocking; /* constant */
    uint64_t follows;
    uint64_t followed;
    LIST_ENTRY(cpu_stream) siblings; /* the device's blocking streams */
};

/* Streams in order; a stream is in one list at most. */
struct cpu_stream_list {
    struct cpu_stream *first;
    struct cpu_stream *last;
};

static inline void
cpu_list_append(struct cpu_stream_list *list, struct cpu_stream *stream)
{
    stream->next = NULL;
    if (list->first == NULL) {
        list->first = stream;
    }
    else {
        list->last->next = stream;
    }
    list->last = stream;
}

/* NULL from an empty list. */
static inline struct cpu_stream *
cpu_list_take(struct cpu_stream_list *list)
{
    struct cpu_stream *stream = list->first;
    if (stream != NULL) {
        list->first = stream->next;
    }
    return stream;
}

enum cpu_kind {
    CPU_RECORD,
    CPU_WAIT,
    CPU_SLEEP,
    CPU_FAIL,
    CPU_COPY,
    CPU_FILL,
    CPU_CALL,
    CPU_ENTER_GATE, /* becomes the wait for its record */
    CPU_FREE,
    CPU_RECORD_LATER, /* only in plans: a record, at the launch */
    CPU_WAIT_LATER,
    CPU_MARK, /* only in plans: a point that other branches wait for */
    CPU_JOIN, /* only in plans: the wait for another branch's mark */
};

/* A queued operation: an item, except for CPU_FREE, whose operation is the
 * head of the block that it frees. */
struct cpu_operation {
    enum cpu_kind kind;
    bool overtaken : 1; /* it could have run earlier */
    bool abandoned : 1; /* CPU_ENTER_GATE: not to be called any more */
    bool launched : 1;  /* CPU_ENTER_GATE: of a graph */
    uint16_t branch;    /* in plans */
    struct cpu_operation *next;
    uint64_t ticket; /* grows with each operation queued on the engine */
    /* CPU_RECORD, CPU_WAIT, CPU_ENTER_GATE: referenced.  CPU_MARK: of the
     * launch in progress, which the plan's branches are queued for. */
    struct cpu_record *record;
    /* NULL, or of CPU_COPY, CPU_FILL, CPU_CALL and CPU_SLEEP: to be written
     * when it begins and ends. */
    struct ps_times *times;
    union {
        ps_status status;           /* CPU_FAIL */
        ps_handle event;            /* CPU_RECORD_LATER, CPU_WAIT_LATER */
        struct cpu_operation *mark; /* CPU_JOIN */
        int64_t duration;           /* CPU_SLEEP; nanoseconds */
        struct {
            void *destination;
            union {
                const void *source; /* CPU_COPY */
                uint8_t pattern[4]; /* CPU_FILL: repeated */
            };
            size_t nbytes;
        } transfer; /* CPU_COPY, CPU_FILL */
        struct {
            ps_host_function function;
            void *argument;
        } call; /* CPU_CALL */
        struct {
            union {
                ps_notification_function reached;
                ps_launched_gate_function launched;
            };
            void *argument;
            ps_handle handle; /* if launched, of the launch's own gate */
        } gate;               /* CPU_ENTER_GATE */
    };
};

/* ---- Records ---- */

/* Reports a record's end to other processes; linked from the record. */
struct cpu_promise {
    /* The record is done, or dropped undone; frees the promise. */
    void (*end_locked)(struct cpu_promise *promise,
                       const struct cpu_record *record);
};

/* One record of an event; an item.  The event whose latest it is, queued
 * operations and waiting threads hold references to it. */
struct cpu_record {
    unsigned refs;
    bool timed;  /* time is wanted */
    bool orders; /* it only orders: passes no failure on */
    bool done;
    bool entered;     /* of a gate, while the engine is CPU_LAZY */
    ps_status status; /* the failure of the work before it, once done */
    int64_t time;     /* when it was done; -1 before an event's first record */
    uint64_t step;    /* likewise, counted by schedules that are explored */
    struct cpu_promise *promise; /* NULL unless other processes may wait */
    struct cpu_stream_list parked;
    struct cpu_waiter *waiters;
    struct ps_notification *notifications; /* a ring */
    struct cpu_stream *source; /* the stream that it is queued on */
    /* Of a captured record, which is never done: the capture's number, the
     * number of the stream's last operation then, and the record's place in
     * the plan; else 0. */
    uint64_t capture;
    uint64_t position;
    struct cpu_operation *mark;
};

/* The event is about to have a new record.  All threads see this from here on:
 * none may replace the time by a later one than the new record's. */
static inline void
cpu_event_forget_locked(struct cpu_slot *event)
{
    if (event->known != CPU_UNKNOWN) {
        struct cpu_record *latest = event->object;
        int64_t known = atomic_exchange(&event->known, CPU_UNKNOWN);
        latest->time = known >= CPU_TIMED ? known - CPU_TIMED : latest->time;
    }
}

/* ---- Storage: items ---- */

/* Memory of one operation or record.  Items are reused and never given back to
 * malloc, so that work in its steady state allocates nothing. */
union cpu_item {
    union cpu_item *next; /* while unused */
    struct cpu_operation operation;
    struct cpu_record record;
};

/* NULL when out of memory. */
void *cpu_item_take_locked(struct cpu_engine *engine);
void cpu_item_give_locked(struct cpu_engine *engine, void *item);
/* Reserve `count` items, so that taking them cannot fail.
 * Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_items_reserve_locked(struct cpu_engine *engine, size_t count);

/* ---- Goals of waits: the time, records and operations ---- */

/* The first seam: the time, in nanoseconds. */
struct cpu_clock {
    int64_t (*now)(void);
    /* Release the lock and wait until the condition is signalled, or
     * spuriously; false once the deadline has passed. */
    bool (*wait_locked)(struct cpu_engine *engine, pthread_cond_t *condition,
                        int64_t deadline);
};

extern const struct cpu_clock cpu_monotonic_clock;

/* The time timeout_ns from now, between now and CPU_FOREVER. */
int64_t cpu_deadline(struct cpu_engine *engine, int64_t timeout_ns);

/* A thread that waits for an object to reach a target; on its stack, with a
 * condition of its own, so that it is woken for nothing else. */
struct cpu_waiter {
    uint64_t target;
    bool woken;
    struct ps_blocked *blocked; /* likewise, while the engine is CPU_LAZY */
    pthread_cond_t wake;
    struct cpu_waiter *next; /* of the same object */
};

/* All work of the stream up to the ticket is done: wake the threads that wait
 * for it, and make its notifications due. */
void cpu_stream_reached_locked(struct cpu_stream *stream, uint64_t ticket);
/* The record is done: likewise, and make the streams that are parked on it
 * ready. */
void cpu_record_complete_locked(struct cpu_engine *engine,
                                struct cpu_record *record, ps_status status);
void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record);

/* ---- Partitions ---- */

/* A share of the workers. */
struct cpu_partition {
    unsigned refs; /* its handle, its streams, and the workers in it */
    int count;     /* constant; the processors that it has */
    unsigned most; /* constant; the workers that its streams have at a time */
    unsigned busy;
    /* Streams that wait only for a worker of the partition; by -priority. */
    struct cpu_stream_list waiting[CPU_PRIORITIES];
};

/* Accepts NULL. */
void cpu_partition_unref_locked(struct cpu_partition *partition);

/* ---- Times ---- */

/* The key of the times that the calling thread's next operation is to write.
 */
extern pthread_key_t cpu_times_key;

/* Take those times; NULL if there are none. */
struct ps_times *cpu_times_take(void);

/* The operation begins, or ends, now. */
void
cpu_times_begin(struct cpu_engine *engine, struct cpu_operation *operation);
void cpu_times_end(struct cpu_stream *stream, struct cpu_operation *operation);

/* Write the end of the record as the end of the times; if out of memory, the
 * times are given back. */
void
cpu_times_promise_locked(struct cpu_record *record, struct ps_times *times);

/* ---- Queues: streams ---- */

/* Make an idle stream of the device, and add it to the device's. */
void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority);
/* Free a destroyed stream that nothing uses any more.  A failure that has not
 * been reported is left to the device. */
void cpu_stream_reap_locked(struct cpu_stream *stream);
/* The stream of the handle, the device's default stream for 0, the calling
 * thread's for PS_STREAM_PER_THREAD once it is made; NULL if there is no such
 * stream on the device. */
struct cpu_stream *cpu_stream_find_locked(struct cpu_engine *engine,
                                          int device, ps_handle handle);
/* Queue a copy of the operation on a stream that is not captured, with a
 * reference to the operation's record; or do it at once, if it is cheap and
 * the stream idle.
 * Statuses: PS_ERROR_QUEUE_FULL, PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN; nothing is queued then. */
ps_status cpu_stream_enqueue_locked(struct cpu_stream *stream,
                                    struct cpu_operation *operation);
/* The ticket of the stream's last operation up to the given one, while notes
 * are kept; else 0. */
uint64_t
cpu_stream_last_locked(const struct cpu_stream *stream, uint64_t ticket);
/* Append the operation itself, even if the queue is full.  The stream is not
 * idle, or the caller takes it. */
void cpu_stream_push_locked(struct cpu_stream *stream,
                            struct cpu_operation *operation);
/* Execute the operation at the head of a stream that the caller took, and free
 * it, except after a CPU_FREE: the caller frees that.
 * False in a child that the operation forked: only the engine still exists,
 * with its lock held. */
bool cpu_stream_serve_locked(struct cpu_stream *stream);
/* Call the function of a gate that the stream has reached, with its status.
 * Called without the lock. */
void cpu_gate_enter(const struct cpu_operation *operation, ps_status status);
/* The operation's name for people. */
const char *cpu_operation_name(enum cpu_kind kind);
/* Give up a stream that the caller took; it may be gone then. */
void cpu_stream_settle_locked(struct cpu_stream *stream);
/* Mark the stream as known to be CPU_DONE, if it is. */
void cpu_stream_know_locked(struct cpu_stream *stream);
/* Mark the stream as unknown. */
static inline void
cpu_stream_forget_locked(struct cpu_stream *stream)
{
    if (stream->known != NULL) {
        cpu_forget(stream->known);
    }
}
/* Serve a stream that the caller took for as long as that is cheap, and give
 * it up, so that the work waits for no worker.  Within an operation of the
 * calling thread it only gives it up, so that notifications never nest.
 * False as cpu_stream_serve_locked. */
bool cpu_stream_help_locked(struct cpu_stream *stream);
/* Likewise, serve streams that are ready, such as those that waited for the
 * caller's operation, without a change of threads. */
bool cpu_engine_help_locked(struct cpu_engine *engine);

/* Make a stream with a handle; NULL when out of memory. */
struct cpu_stream *
cpu_stream_make_locked(struct cpu_engine *engine, int device, int priority,
                       bool blocking);
/* Give up a stream's handle, and the stream once nothing uses it. */
void cpu_stream_give_up_locked(struct cpu_slot *slot);

/* ---- Queues: threads ---- */

/* Make sure that a queued operation of the kind will be served.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status
cpu_engine_staff_locked(struct cpu_engine *engine, enum cpu_kind kind);
/* Start a thread, which counts as running.  False if that fails. */
bool cpu_thread_start_locked(struct cpu_engine *engine, void *(*body)(void *),
                             const char *name);
/* While the engine is CPU_LAZY: make a worker run the host function at the
 * head of a stream that the caller took; false if there is none. */
bool cpu_stream_hand_locked(struct cpu_stream *stream);
/* Stop counting a thread as running. */
void cpu_engine_leave_locked(struct cpu_engine *engine);
/* End a thread that began after `forks` forks, and release the lock.  In a
 * child that it forked, the thread was never counted.  Returns NULL. */
void *cpu_thread_end_locked(struct cpu_engine *engine, unsigned forks);

/* The key of the stream whose work the calling thread executes, or NULL. */
extern pthread_key_t cpu_serving_key;

static inline const struct cpu_stream *
cpu_serving(void)
{
    return pthread_getspecific(cpu_serving_key);
}

/* How many forks lie between the first process and this one. */
extern unsigned cpu_forks;

/* Call the notifications that are due, with the lock released meanwhile, and
 * only if cpu_may_notify.  One thread at a time does so, the next one that
 * releases the lock.  So notifications run in the order in which the work was
 * done, and never nest.  False as cpu_stream_serve_locked. */
bool cpu_notify_due_locked(struct cpu_engine *engine);

/* ---- Threads that wait ---- */

/* A limit and its deadline; a NULL limit never ends. */
struct cpu_limit {
    int64_t deadline;
    const struct ps_limit *asked;
};

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit);

/* The goal of a thread's wait: the work of a stream up to a ticket, or a
 * record.
 */
struct cpu_goal {
    struct cpu_stream *stream;
    uint64_t ticket;
    struct cpu_record *record; /* if the stream is NULL */
};

/* Wait until the goal is reached.
 * Statuses: PS_ERROR_TIMED_OUT, PS_ERROR_SHUTTING_DOWN, PS_ERROR_DEADLOCK. */
ps_status
cpu_wait_locked(struct cpu_engine *engine, const struct cpu_goal *goal,
                const struct cpu_limit *limit);

/* ---- Default streams of threads ---- */

/* A thread's own default streams, by device. */
struct cpu_thread {
    struct cpu_engine *engine;
    unsigned forks; /* the fork count when the handles were made */
    ps_handle handles[];
};

/* Make the key; false if there is none left. */
bool cpu_thread_streams_init(struct cpu_engine *engine);
/* Give up the idle default streams of all threads. */
void cpu_thread_streams_trim_locked(struct cpu_engine *engine);

/* ---- The default stream and blocking streams ---- */

/* Make the new stream serialize with its device's default stream. */
void cpu_stream_block_locked(struct cpu_stream *stream);
/* As cpu_stream_order_locked, for a stream that may have to wait. */
ps_status cpu_legacy_order_locked(struct cpu_stream *stream);
/* Whether a blocking stream has work that the default stream does not wait for
 * yet. */
bool cpu_stream_is_ahead_locked(const struct cpu_stream *blocking);
/* PS_ERROR_CAPTURE_IMPLICIT if cpu_stream_is_legacy_locked and a blocking
 * stream is being captured. */
ps_status cpu_legacy_check_locked(const struct cpu_stream *stream);

/* Make the stream wait for the streams that it serializes with; called before
 * work is queued on it.
 * Statuses: PS_ERROR_CAPTURE_IMPLICIT, after which the capture is invalid,
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
static inline ps_status
cpu_stream_order_locked(struct cpu_stream *stream)
{
    return stream->blocking || stream->handle == 0
               ? cpu_legacy_order_locked(stream)
               : PS_SUCCESS;
}

/* ---- Captures ---- */

struct cpu_plan;

struct cpu_capture {
    uint64_t number;
    ps_status status; /* PS_ERROR_CAPTURE_INVALIDATED after a failure */
    struct cpu_stream *origin;
    struct cpu_stream *streams; /* by their `peer` */
    struct cpu_plan *plan;
    LIST_ENTRY(cpu_capture) neighbours;
};

/* Put a copy of the operation into the capture that the stream is in.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_CAPTURE_INVALIDATED. */
ps_status cpu_capture_add_locked(struct cpu_stream *stream,
                                 const struct cpu_operation *operation);
/* Make the record mark the end of the captured stream's operations so far. */
ps_status cpu_capture_record_locked(struct cpu_stream *stream,
                                    struct cpu_record *record);
/* If the stream or the record is captured, or both: join the record's capture.
 * Statuses: PS_ERROR_CAPTURE_ISOLATION, _MERGE, _INVALIDATED. */
ps_status
cpu_capture_wait_locked(struct cpu_stream *stream, struct cpu_record *record);
/* A stream is destroyed: invalidate the capture that it is in, or end it if it
 * began on that stream, which may be gone then. */
void cpu_capture_lose_locked(struct cpu_stream *stream);

/* ---- Interprocess events; see shared.h ---- */

/* An open file.  A forked child closes those of its parent, or a record whose
 * pipe it has open would outlive the parent. */
struct cpu_file {
    int number; /* -1 if closed */
    LIST_ENTRY(cpu_file) neighbours;
};

/* The thread that completes records of other processes. */
struct cpu_poller {
    struct cpu_file epoll; /* closed before it is needed */
    struct cpu_file doorbell;
};

/* ---- The engine ---- */

enum cpu_phase {
    CPU_OPEN,
    CPU_LAZY,     /* no thread serves streams: the host's calls do */
    CPU_STOPPING, /* no more work starts; running work ends */
    CPU_STOPPED,  /* no wait begins any more */
};

struct cpu_device {
    struct cpu_stream default_stream;
    _Atomic int64_t known;           /* of the default stream; see cpu_slot */
    LIST_HEAD(, cpu_stream) streams; /* all, the newest first */
    LIST_HEAD(, cpu_stream) blocking;
    ps_status unreported; /* failure of a stream that is gone */
    /* While a schedule is explored: the failures of earlier work, which the
     * schedule's work must not see. */
    struct cpu_failures {
        ps_status unreported;
        ps_status of_default_stream;
        bool reported;
    } earlier;
    int partitioned; /* processors that are in partitions */
    /* Bytes of memory, if it is emulated: in use, reserved as by a pool, the
     * most ever reserved, and the threshold below which the pool keeps freed
     * memory. */
    uint64_t used;
    uint64_t reserved;
    uint64_t peak;
    uint64_t threshold;
};

/* A table of an engine. */
struct cpu_table {
    struct ps_backend base;
    struct cpu_engine *engine;
};

/* ---- Schedules that are explored ---- */

/* The second seam: what takes the place of the threads while the engine is
 * CPU_LAZY. */
struct cpu_driver {
    /* Release the lock.  Before that, after a call that has queued work, run
     * the operations that the schedule picks. */
    void (*release_locked)(struct cpu_engine *engine);
    /* Run work until the waiter is woken.  Statuses: as cpu_wait_locked. */
    ps_status (*wait_locked)(struct cpu_engine *engine,
                             struct cpu_waiter *waiter,
                             const struct cpu_goal *goal,
                             const struct cpu_limit *limit);
    /* A gate that was entered is opened. */
    void (*opened_locked)(struct cpu_engine *engine);
    /* While notes are kept: add one, with operations by ticket, and steps as a
     * record has them. */
    void (*note_locked)(struct cpu_engine *engine, enum ps_note_kind kind,
                        uint64_t first, uint64_t second);
    /* Likewise: the host is about to query, so run the operations that the
     * schedule picks.  False for an internal query: work that the schedule has
     * done then counts as pending, or the order would show in the library's
     * behaviour. */
    bool (*ask_locked)(struct cpu_engine *engine,
                       const struct ps_backend *backend);
    /* The host has queried the stream's work, or the record. */
    void (*asked_locked)(struct cpu_engine *engine,
                         const struct cpu_stream *stream,
                         const struct cpu_record *record);
    /* Likewise: the host's wait is over. */
    void (*arrived_locked)(struct cpu_engine *engine);
    /* The stream is about to have its first work of the schedule. */
    void (*used_locked)(struct cpu_stream *stream);
};

extern const struct cpu_driver cpu_lazy_driver;
extern const struct cpu_clock cpu_lazy_clock;

struct cpu_lazy {
    struct ps_schedule asked;
    uint64_t random; /* the state of the generator */
    uint64_t first;  /* the ticket before the schedule's first */
    uint64_t seen;   /* the latest ticket that a release has handled */
    uint64_t steps;  /* calls that queued work, and operations run */
    uint64_t order;  /* a hash of them */
    uint64_t rank;   /* of the host, as a stream's */
    unsigned streams;
    unsigned polls;            /* in vain */
    struct cpu_stream *polled; /* maybe gone */
    bool busy;                 /* a thread runs an operation */
    bool ending;               /* the remaining work is being dropped */
    bool impatient;            /* do not wait for the callables that run */
    unsigned naps;             /* of callables while the host runs, weighted */
    int64_t nap;        /* when the last one was counted, in real time */
    unsigned callables; /* that run, host functions included */
    unsigned ending_callables; /* those of them that have opened their gates */
    /* The streams whose host functions workers are to run. */
    struct cpu_stream_list handed;
    unsigned handed_count;
    LIST_HEAD(, ps_blocked) blocked; /* the latest first */
    pthread_cond_t changed;          /* one of the above */
    struct ps_schedule_entry *log;
    size_t logged;
    size_t taken;        /* how many of the streams that PS_GIVEN lists */
    bool queried;        /* the host went on to a query, which was in vain */
    uint64_t step;       /* the latest with a note; grows for ever */
    uint64_t first_step; /* the one before the first */
    uint64_t ran;        /* the latest step of a stream */
    struct ps_note *notes;
    size_t noted;
    pthread_t thread;            /* the thread that began the schedule */
    struct cpu_operation *freed; /* kept, so that each address is used once */
    struct ps_deadlock deadlock;
};

struct cpu_engine {
    struct cpu_table table;      /* constant */
    struct cpu_table lazy_table; /* constant; with PS_BACKEND_SHARED */
    /* These two are read without the lock, too, and changed with it.  They are
     * far from the lock, whose cache line moves between threads. */
    _Atomic(enum cpu_phase) phase;
    /* Of slots; NULL from the first one that is not allocated. */
    _Atomic(struct cpu_slot *) chunks[CPU_CHUNKS];
    unsigned number;           /* constant; below CPU_ENGINES */
    pthread_key_t current_key; /* of a thread's device; changed unused */
    pthread_key_t thread_key;  /* constant; of a thread's default streams */
    const struct cpu_clock *_Atomic clock; /* read without the lock, too */
    const struct cpu_driver *driver;       /* constant */
    struct cpu_engine *next;               /* guarded by the list's lock */

    pthread_mutex_t lock;
    pthread_condattr_t monotonic; /* constant; for every condition */
    struct cpu_handles handles;
    union cpu_item *items; /* unused ones */
    uint64_t tickets;      /* operations ever queued */
    uint64_t captured;     /* captures and captured operations, ever */
    LIST_HEAD(, cpu_capture) captures;

    struct ps_notification *due; /* a ring */
    bool notifying;              /* a thread calls the due notifications */

    struct cpu_stream_list ready[CPU_PRIORITIES]; /* by -priority */
    unsigned ready_count;
    struct cpu_stream *sleepers; /* a skew heap, the earliest on top */

    unsigned worker_limit; /* constant */
    unsigned workers;      /* ever started */
    unsigned idle;         /* workers that wait for work */
    bool coming;           /* a worker is on its way to look for work */
    bool timer;            /* the timer was started */
    atomic_bool timing;    /* times were ever asked for */
    unsigned running;      /* threads of the engine, and callers that help */
    pthread_cond_t work;   /* there is work, or the phase changed */
    pthread_cond_t early;  /* the first sleeper changed, or the phase */
    pthread_cond_t ended;  /* a running thread has ended */

    struct cpu_lazy lazy;

    LIST_HEAD(, cpu_file) files;
    struct cpu_poller poller;

    /* Of an emulated device, changed while it has none; else 0: the host's */
    uint64_t memory;
    void *ranges; /* of the blocks of emulated devices, by address */
    void *pinned; /* ranges of pinned memory, by address */

    int device_count; /* constant */
    struct cpu_device devices[];
};

/* The initial priority of a stream, of the host for 0. */
uint64_t cpu_lazy_rank(uint64_t seed, unsigned number);

/* Whether the calling thread runs a callable of the engine. */
bool cpu_lazy_is_callable(const struct cpu_engine *engine);
/* Wait until no callable runs that does not wait itself. */
void cpu_lazy_await_locked(struct cpu_engine *engine);
/* Threads that wait for something other than work may go on. */
void cpu_lazy_wake_locked(struct cpu_engine *engine);
/* See struct ps_schedules. */
void cpu_lazy_ending_locked(struct cpu_engine *engine);
void cpu_lazy_ended_locked(struct cpu_engine *engine);

/* Add the calling thread to the blocked ones, until the deadline of its wait;
 * the caller removes the entry.  goal: NULL if it is unknown. */
void
cpu_lazy_block_locked(struct cpu_engine *engine, struct ps_blocked *blocked,
                      const struct cpu_goal *goal, int64_t deadline);

/* If that thread is the host, the limits of callables may expire, and when it
 * goes on, they wait for it again. */
void cpu_lazy_host_waits_locked(struct cpu_engine *engine,
                                const struct ps_blocked *blocked);

/* The virtual time, which all engines share.  It begins at 0; the second
 * function advances it to `time`, unless it is later already. */
void cpu_lazy_begin_time(bool continues);
int64_t cpu_lazy_now(void);
void cpu_lazy_pass_time(int64_t time);

/* See struct ps_schedules.  PS_EXPIRED: nothing can run before the deadline,
 * and no time has passed. */
void cpu_lazy_poll_locked(struct cpu_engine *engine);
enum ps_progress
cpu_lazy_advance_locked(struct cpu_engine *engine, int64_t deadline);

/* Add a note, if notes are kept.  Operations by ticket, and steps as a record
 * has them. */
void cpu_lazy_note_locked(struct cpu_engine *engine, enum ps_note_kind kind,
                          uint64_t first, uint64_t second);
void cpu_lazy_arrived_locked(struct cpu_engine *engine);

/* See struct ps_schedules. */
void cpu_lazy_hold_locked(struct cpu_engine *engine);
void cpu_lazy_released_locked(struct cpu_engine *engine);

/* Whether there is pending work, and a description of it. */
bool cpu_lazy_pending_locked(struct cpu_engine *engine, char text[256]);

/* Run or drop the remaining work; false if callables still run at `end`, in
 * real time. */
bool cpu_lazy_finish_locked(struct cpu_engine *engine, bool drop, int64_t end);

/* Add the engine to those that take part in schedules.  One thread at a time
 * calls this. */
void cpu_explore_add(struct cpu_engine *engine);
void cpu_explore_reset_in_child(void);

static inline void
cpu_stream_ready_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    cpu_list_append(&engine->ready[-stream->priority], stream);
    engine->ready_count++;
}

static inline bool
cpu_is_lazy(const struct cpu_engine *engine)
{
    return atomic_load_explicit(&engine->phase, memory_order_relaxed) ==
           CPU_LAZY;
}

/* The slot that any handle would have; NULL if it is not allocated. */
static inline struct cpu_slot *
cpu_slot_at(const struct cpu_engine *engine, ps_handle handle)
{
    struct cpu_slot *slots = atomic_load_explicit(
        &engine->chunks[handle / CPU_CHUNK_BYTES % CPU_CHUNKS],
        memory_order_acquire);
    return slots != NULL ? &slots[handle / CPU_SLOT_BYTES % CPU_CHUNK_SLOTS]
                         : NULL;
}

/* NULL unless exactly this handle is live, with this tag and on this device.
 */
static inline struct cpu_slot *
cpu_slot_find_locked(struct cpu_engine *engine, enum cpu_tag tag, int device,
                     ps_handle handle)
{
    struct cpu_slot *slot = cpu_slot_at(engine, handle);
    if (slot == NULL || handle == 0 || slot->handle != handle ||
        handle % CPU_TAGS != tag ||
        (device != slot->device && device != CPU_ANY_DEVICE)) {
        return NULL;
    }
    return slot;
}

/* As cpu_slot_find_locked, but without the lock, and what is known of the
 * object: it was so at some time during the call.  Nothing is known while the
 * engine is CPU_LAZY, as a schedule sees each call. */
static inline int64_t
cpu_slot_known(const struct cpu_engine *engine, enum cpu_tag tag, int device,
               ps_handle handle)
{
    const struct cpu_slot *slot = cpu_slot_at(engine, handle);
    int64_t known =
        slot != NULL ? atomic_load_explicit(&slot->known, memory_order_acquire)
                     : CPU_UNKNOWN;
    if (known == CPU_UNKNOWN || cpu_is_lazy(engine)) {
        return CPU_UNKNOWN;
    }
    int home = atomic_load_explicit(&slot->device, memory_order_acquire);
    /* The caller got the handle from the call that made it, and handles are
     * never reused: both values belong to its object. */
    return atomic_load_explicit(&slot->handle, memory_order_relaxed) ==
                       handle &&
                   handle % CPU_TAGS == tag &&
                   (device == home || device == CPU_ANY_DEVICE)
               ? known
               : CPU_UNKNOWN;
}

/* Likewise: whether the stream is known to be CPU_DONE. */
static inline bool
cpu_stream_is_done(const struct cpu_engine *engine, int device,
                   ps_handle handle)
{
    return handle != 0
               ? cpu_slot_known(engine, CPU_STREAM, device, handle) == CPU_DONE
               : atomic_load_explicit(&engine->devices[device].known,
                                      memory_order_acquire) == CPU_DONE &&
                     !cpu_is_lazy(engine);
}

/* Whether it is the default stream of a device that has blocking streams. */
static inline bool
cpu_stream_is_legacy_locked(const struct cpu_stream *stream)
{
    const struct cpu_device *device = &stream->engine->devices[stream->device];
    return stream == &device->default_stream && !LIST_EMPTY(&device->blocking);
}

/* Whether the stream has had no work of the schedule that is explored. */
static inline bool
cpu_is_earlier(const struct cpu_stream *stream)
{
    return cpu_is_lazy(stream->engine) && stream->number == 0;
}

/* Whether notes are kept of the schedule. */
static inline bool
cpu_is_noted(const struct cpu_engine *engine)
{
    return cpu_is_lazy(engine) && engine->lazy.asked.noted;
}

static inline void
cpu_note_locked(struct cpu_engine *engine, enum ps_note_kind kind,
                uint64_t first)
{
    if (cpu_is_noted(engine)) {
        engine->driver->note_locked(engine, kind, first, 0);
    }
}

static inline void
cpu_arrived_locked(struct cpu_engine *engine)
{
    if (cpu_is_noted(engine)) {
        engine->driver->arrived_locked(engine);
    }
}

static inline struct cpu_engine *
cpu_engine_of(const struct ps_backend *backend)
{
    return ((const struct cpu_table *)backend)->engine;
}

/* The handle of the calling thread's default stream; 0 if it has none yet. */
static inline ps_handle
cpu_thread_stream_handle(const struct cpu_engine *engine, int device)
{
    const struct cpu_thread *thread = pthread_getspecific(engine->thread_key);
    return thread != NULL && thread->forks == cpu_forks
               ? thread->handles[device]
               : 0;
}

static inline void
cpu_lock(struct cpu_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
}

/* Release the lock, and start or wake a worker if there is work. */
void cpu_release(struct cpu_engine *engine);

/* Whether there are notifications for the calling thread to run. */
static inline bool
cpu_may_notify(const struct cpu_engine *engine)
{
    return engine->due != NULL && !engine->notifying && cpu_serving() == NULL;
}

/* Release the lock, after running those notifications. */
static inline void
cpu_unlock(struct cpu_engine *engine)
{
    if (cpu_may_notify(engine)) {
        cpu_notify_due_locked(engine);
    }
    cpu_release(engine);
}

/* ---- Members of the table ---- */

/* Declare the engine of a table, and hold its lock to the end of the block. */
#define CPU_ENTER(engine, backend)                                  \
    struct cpu_engine *engine __attribute__((cleanup(cpu_leave))) = \
        cpu_enter(backend)

static inline struct cpu_engine *
cpu_enter(const struct ps_backend *backend)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    return engine;
}

static inline void
cpu_leave(struct cpu_engine **engine)
{
    cpu_unlock(*engine);
}

/* The event's record in effect, which may be another process's.
 * Statuses: PS_ERROR_INVALID_HANDLE, PS_ERROR_CAPTURED_EVENT, and those of
 * cpu_shared_refresh_locked. */
ps_status
cpu_event_record_locked(struct cpu_engine *engine, int device,
                        ps_handle handle, struct cpu_record **record);

/* Queue the operation, or capture it.
 * Statuses: those of cpu_stream_enqueue_locked and cpu_capture_add_locked,
 * PS_ERROR_INVALID_HANDLE. */
ps_status
cpu_stream_enqueue(const struct ps_backend *backend, int device,
                   ps_handle handle, struct cpu_operation *operation);

/* A block of memory. */
struct cpu_range {
    uintptr_t first;
    size_t nbytes; /* how much memory it takes up */
    int device;
    bool counted; /* in the device's used memory; false if opened */
};

/* If the devices are emulated, add the range to the engine's, so that an
 * address in it is known to be the device's.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, also if the range is counted and exceeds
 * the free memory. */
ps_status
cpu_range_add_locked(struct cpu_engine *engine, struct cpu_range *range);
void
cpu_range_remove_locked(struct cpu_engine *engine, struct cpu_range *range);

/* Overwrite the memory that the operation frees. */
void cpu_memory_poison(struct cpu_operation *end);
/* The memory that the operation frees. */
void *cpu_memory_of(struct cpu_operation *end, size_t *nbytes);

/* The processors that the machine has. */
int cpu_host_processors(void);

/* The bytes of memory that the machine has. */
uint64_t cpu_host_memory(void);

/* Each file fills in the members of the table that it implements. */
void cpu_partition_members(struct ps_backend *table);
void cpu_stream_members(struct ps_backend *table);
void cpu_thread_stream_members(struct ps_backend *table);
void cpu_event_members(struct ps_backend *table);
void cpu_notify_members(struct ps_backend *table);
void cpu_memory_members(struct ps_backend *table);
void cpu_shared_memory_members(struct ps_backend *table);
void cpu_times_members(struct ps_backend *table);
void cpu_graph_members(struct ps_backend *table);

#endif
