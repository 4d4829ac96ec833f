/* The internal header of the CPU engine, which implements streams, events,
 * memory and graphs on threads of the process.
 *
 * Each engine has one lock.  It guards every field below, except those whose
 * comment says otherwise.  The lock is released during a copy, a fill, a host
 * function, the function of a gate or a notification, and the freeing of a
 * block, and while a thread waits.  (The end of a schedule is an exception: it
 * frees blocks with the lock held.)  A thread that holds the lock takes no
 * other lock, except in a fork, which takes the locks of all engines.
 *
 * A call that records an event, waits for an event, or queries work takes no
 * lock if its stream is known to be idle and its event is known to be done.
 * Such a call need not change a queue.  The slots of the stream and the event
 * store what is known; see struct cpu_slot and cpu_slot_known.
 *
 * Each file calls functions only of the files before it in this list:
 * storage.c, times.c, queue.c, wait.c, partition.c, legacy.c, graph.c,
 * files.c, shared.c, event.c, notify.c, work.c, stream.c, thread_stream.c,
 * memory.c, shared_memory.c, lazy.c, explore.c, engine.c. */
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
    CPU_ENGINES = 8,         /* the most engines in one process */
    CPU_PRIORITIES = 6,      /* the priorities are 0 to -5 */
    CPU_QUEUE_LIMIT = 65536, /* the most operations in a stream's queue */
    /* A copy or fill up to this size is done at once on an idle stream, since
     * queueing it would cost more. */
    CPU_INLINE_BYTES = 64 * 1024,
};

#define CPU_FOREVER INT64_MAX

struct cpu_engine;

/* ---- Storage: handles ---- */

enum cpu_tag { CPU_STREAM, CPU_EVENT, CPU_GATE, CPU_GRAPH, CPU_PARTITION };

enum { CPU_TAGS = 8, CPU_ANY_DEVICE = -1 };

/* Values of cpu_slot.known, which tells the state of the slot's object to
 * threads that do not hold the lock. */
enum {
    CPU_UNKNOWN,
    /* For a stream: it is idle, has not failed, is not being captured, and
     * serializes with no other stream.  For an event without timing that is
     * not an interprocess event: its latest record is done, has not failed,
     * and was not captured. */
    CPU_DONE,
    /* For an event with timing: it is in the state that CPU_DONE describes for
     * an event without timing.  `known` is then CPU_TIMED plus the time of the
     * event's latest record, so every value from CPU_TIMED upwards has this
     * meaning. */
    CPU_TIMED,
};

/* The memory to which a handle refers.  A slot has a fixed address and is
 * never freed, so its atomic fields can be read at any time.  A slot fills one
 * cache line of the processor, so that threads which use different slots do
 * not slow each other down. */
struct cpu_slot {
    _Atomic ps_handle handle; /* 0 in a free slot */
    /* If this is CPU_UNKNOWN, the object may be in any state.  If it has any
     * other value, the object is in the state that the enum above describes
     * for that value.  Changed with the lock held, except that a thread
     * without the lock may replace the time of an event with a later time. */
    _Atomic int64_t known;
    /* Depends on the handle's enum cpu_tag: the stream, the event's latest
     * record, the gate's record, the graph or the partition. */
    void *object;
    atomic_int device;
    uint32_t next_free;
    struct cpu_shared *shared; /* only for an interprocess event, else NULL */
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
    /* The highest index of a slot that was ever used; slot 0 is never used. */
    uint32_t used;
    /* The index of the first free slot; 0 if there is none. */
    uint32_t first_free;
    uint64_t serial; /* the serial number of the latest handle */
};

/* Take a slot, with a new handle and no object.  Returns NULL if out of
 * memory. */
struct cpu_slot *
cpu_slot_take_locked(struct cpu_engine *engine, enum cpu_tag tag, int device);
void cpu_slot_give_locked(struct cpu_engine *engine, struct cpu_slot *slot);
/* Reserve `count` slots, so that the next `count` calls to
 * cpu_slot_take_locked cannot fail.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_slots_reserve_locked(struct cpu_engine *engine, size_t count);
/* Returns whether any handle is live. */
bool cpu_slots_any_locked(const struct cpu_engine *engine);
/* Make all handles invalid.  No other thread may use the engine. */
void cpu_slots_forget(struct cpu_engine *engine);

/* Store that the object's state is unknown.  A relaxed store is enough,
 * because a thread that must see this value is ordered after the store in
 * another way, such as by the engine's lock. */
static inline void
cpu_forget(_Atomic int64_t *known)
{
    atomic_store_explicit(known, CPU_UNKNOWN, memory_order_relaxed);
}

/* ---- Streams ---- */

/* A stream is in one of four states.  The state determines which list contains
 * the stream.
 *
 *              head can run           a worker takes it
 *   idle ------------------> ready ----------------------> served
 *    |                       ^   ^                         | | |
 *    |           record done |   '-------------------------' | |
 *    |                       |       the next can run        | |
 *    |                       |                               | |
 *    '-------------------> parked <--------------------------' |
 *       head must wait               the next must wait        |
 *                                                              |
 *   idle <-----------------------------------------------------'
 *       the queue is empty
 *
 * "Head" is the first operation in the stream's queue.  An idle stream has an
 * empty queue.  A ready stream is in engine->ready, or in the list `waiting`
 * of its partition while the partition's limit of workers is reached.  A
 * parked stream is in the list `parked` of the record for which its head
 * waits, or in engine->sleepers.  A served stream is in none of these lists.
 * The thread that executes its head has "taken" the stream.  That thread is a
 * worker (a thread of the engine that executes operations), the timer thread
 * (which ends sleeps), or a thread that calls the engine (see
 * cpu_stream_help_locked).  Meanwhile other threads only append operations to
 * the queue.
 *
 * Not shown above: a thread that queues work takes an idle stream, a thread
 * that opens a gate takes the stream that is parked there, and the timer
 * thread takes a stream whose sleep is over.  These streams are served at
 * once.
 *
 * While a schedule is explored (see backends.h), there are two differences.  A
 * stream whose head is a CPU_SLEEP is ready instead of parked.  A served
 * stream whose head is a host function is in lazy.handed until a worker takes
 * it. */
struct cpu_stream {
    struct cpu_engine *engine; /* constant */
    int device;                /* constant */
    int priority;              /* constant */
    /* Constant.  0 for the device's default stream and for the temporary
     * streams of a graph's launch.  For a thread's default stream, the name
     * that thread_stream returns. */
    ps_handle handle;
    /* Points to the `known` of the stream's slot or, for a default stream, of
     * its device.  NULL if the stream was destroyed or is temporary. */
    _Atomic int64_t *known;
    /* Constant; NULL if the stream is in no partition. */
    struct cpu_partition *partition;
    /* The first failure of the stream's work; PS_SUCCESS if no work has
     * failed.  While the stream is served, only the thread that serves it
     * changes this. */
    ps_status status;
    bool reported; /* whether a synchronize call has returned `status` */
    /* Whether the stream was destroyed.  A destroyed stream is freed as soon
     * as it is idle and no thread waits for it. */
    bool destroyed;
    /* While a schedule is explored: whether the host function at its head
     * waits for a worker, or runs on one. */
    bool handed;
    struct cpu_operation *first;
    struct cpu_operation **tail;
    unsigned pending;           /* the number of operations in the queue */
    struct cpu_waiter *waiters; /* the threads that wait, the latest first */
    /* The pending notifications: a ring, in the order in which they were
     * added. */
    struct ps_notification *notifications;
    struct cpu_stream *next; /* in a cpu_stream_list */
    struct cpu_stream *left; /* the two children in the heap of sleepers */
    struct cpu_stream *right;
    /* If the head is a CPU_SLEEP: the time at which the sleep ends. */
    int64_t deadline;
    /* The next three have a meaning only while a schedule is explored.
     * number: the schedule numbers the streams from 1, in the order in which
     * it first uses them; 0 if it has not used the stream.  rank: the stream's
     * priority for PS_PCT.  done: the ticket of the stream's latest operation
     * that ran. */
    unsigned number;
    uint64_t rank;
    uint64_t done;
    LIST_ENTRY(cpu_stream) neighbours; /* in the device's list */
    /* NULL unless the stream is being captured.  While it is being captured,
     * its operations are a branch of the capture's plan (see graph.c).
     * `branch` is the index of that branch.  `last` is the number of the
     * stream's last captured operation.  `covered` is the number of the
     * stream's last captured operation for which another stream of the capture
     * waits. */
    struct cpu_capture *capture;
    uint16_t branch;
    uint64_t last;
    uint64_t covered;
    struct cpu_stream *peer; /* the next stream of the same capture */
    /* Set to the next ticket before a call queues work on the stream.  Since
     * it grows with each such call, it tells other streams whether this stream
     * has got new work.  It is set only for a blocking stream (see below), and
     * for a default stream while its device has blocking streams. */
    uint64_t given;
    /* blocking: whether the stream serializes with its device's default
     * stream.  The other two are used only if it does.  follows: the default
     * stream's `given` when this stream last waited for the default stream.
     * followed: this stream's `given` when the default stream last waited for
     * this stream. */
    bool blocking; /* constant */
    uint64_t follows;
    uint64_t followed;
    LIST_ENTRY(cpu_stream) siblings; /* the device's other blocking streams */
};

/* A linked list of streams.  A stream is in at most one such list. */
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

/* Remove and return the first stream.  Returns NULL if the list is empty. */
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
    /* A gate (see stream_gate): calls the gate's function, and then becomes a
     * CPU_WAIT for the gate's record. */
    CPU_ENTER_GATE,
    CPU_FREE,
    /* The following kinds are for plans of graphs.  A CPU_MARK in a queue does
     * nothing; it replaces an operation that was dropped (see drop_locked). */
    CPU_RECORD_LATER, /* each launch records an event */
    CPU_WAIT_LATER,   /* each launch waits for an event */
    CPU_MARK,         /* a point in a branch; other branches wait for it */
    CPU_JOIN,         /* a wait for a mark of another branch */
};

/* An operation in a queue or in a plan.  Its memory is a union cpu_item,
 * unless it is a CPU_FREE.  A CPU_FREE lies in the header of the memory block
 * that it frees. */
struct cpu_operation {
    enum cpu_kind kind;
    bool overtaken : 1; /* the host continued although this was ready */
    bool abandoned : 1; /* CPU_ENTER_GATE: its function gets a failure */
    bool launched : 1;  /* CPU_ENTER_GATE: part of a graph or of a launch */
    uint16_t branch;    /* in plans: the index of its branch */
    struct cpu_operation *next;
    /* The operation's number.  The operations of all streams of the engine are
     * numbered in the order in which they were queued. */
    uint64_t ticket;
    /* For CPU_RECORD, CPU_WAIT and CPU_ENTER_GATE: a reference to the record.
     * For CPU_MARK: while a launch queues its operations, the record that the
     * launch has made for the mark. */
    struct cpu_record *record;
    /* NULL, or where to store the times at which the operation begins and
     * ends.  Only CPU_COPY, CPU_FILL, CPU_CALL and CPU_SLEEP have this. */
    struct ps_times *times;
    union {
        ps_status status;           /* CPU_FAIL */
        ps_handle event;            /* CPU_RECORD_LATER, CPU_WAIT_LATER */
        struct cpu_operation *mark; /* CPU_JOIN */
        int64_t duration;           /* CPU_SLEEP; in nanoseconds */
        struct {
            void *destination;
            union {
                const void *source; /* CPU_COPY */
                uint8_t pattern[4]; /* CPU_FILL; repeated */
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
            ps_handle handle; /* if launched: the gate of this launch */
        } gate;               /* CPU_ENTER_GATE */
    };
};

/* ---- Records ---- */

/* An additional action to take when a record is done.  shared.c uses this to
 * tell other processes that the record is done.  times.c uses it to store the
 * time at which a graph's launch ended.  cpu_record.promise points to it. */
struct cpu_promise {
    /* Called when the record is done, or when it is freed without having been
     * done.  Frees the promise. */
    void (*end_locked)(struct cpu_promise *promise,
                       const struct cpu_record *record);
};

/* A record of an event; its memory is a union cpu_item.  References to it are
 * held by its event while it is the event's latest record, by queued
 * operations, and by threads that wait for it.  Where the engine itself makes
 * a stream wait, as at a gate or at a CPU_JOIN, it uses a record without an
 * event. */
struct cpu_record {
    unsigned refs;
    bool timed; /* `time` must be set when the record is done */
    /* Whether a wait for the record only orders work, and does not pass on a
     * failure. */
    bool orders;
    bool done;
    /* Only for a gate: whether its function was called while a schedule was
     * explored. */
    bool entered;
    ps_status status; /* once done: the status of the work before it */
    int64_t time;  /* when it was done; -1 if its event was never recorded */
    uint64_t step; /* the step of a schedule in which it was done */
    struct cpu_promise *promise; /* NULL if there is nothing more to do */
    struct cpu_stream_list parked;
    struct cpu_waiter *waiters;
    struct ps_notification *notifications; /* a ring */
    struct cpu_stream *source; /* the stream on which it was queued */
    /* The next three are for a captured record, which is never done.  capture:
     * the number of the capture; 0 for all other records.  position: the value
     * that source->last had when the record was captured.  mark: the record's
     * mark in the plan. */
    uint64_t capture;
    uint64_t position;
    struct cpu_operation *mark;
};

/* Call this before the event gets a new record.  Sets `known` to CPU_UNKNOWN,
 * so that threads without the lock can no longer replace the time in `known`.
 * If `known` had a time, stores it in the event's present record. */
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

/* The memory of one operation or record.  Items are reused and never given
 * back to malloc, so a program in a steady state allocates nothing. */
union cpu_item {
    union cpu_item *next; /* the next unused item */
    struct cpu_operation operation;
    struct cpu_record record;
};

/* Returns NULL if out of memory. */
void *cpu_item_take_locked(struct cpu_engine *engine);
void cpu_item_give_locked(struct cpu_engine *engine, void *item);
/* Reserve `count` items, so that the next `count` calls to
 * cpu_item_take_locked cannot fail.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_items_reserve_locked(struct cpu_engine *engine, size_t count);

/* ---- Times ---- */

/* A clock.  While a schedule is explored, a virtual clock replaces the real
 * one.  Times are in nanoseconds. */
struct cpu_clock {
    int64_t (*now)(void);
    /* Wait for the condition with the lock released, as pthread_cond_timedwait
     * does.  Spurious wake-ups are possible.  Returns false if the deadline
     * has passed.  (The virtual clock ignores the deadline.) */
    bool (*wait_locked)(struct cpu_engine *engine, pthread_cond_t *condition,
                        int64_t deadline);
};

extern const struct cpu_clock cpu_monotonic_clock;

/* Returns the present time plus timeout_ns.  The result is not before the
 * present time, and is at most CPU_FOREVER. */
int64_t cpu_deadline(struct cpu_engine *engine, int64_t timeout_ns);

/* The key of a thread-local pointer to the struct ps_times of the operation
 * that the thread queues next.  The pointer is NULL if operation_times has not
 * set it. */
extern pthread_key_t cpu_times_key;

/* Returns the calling thread's value of cpu_times_key, and sets that value to
 * NULL.  If a struct is returned, both of its times become 0. */
struct ps_times *cpu_times_take(void);

/* These store the current time as the begin, or as the end, of the operation.
 * cpu_times_end also stores the begin if that is missing.  The operation's
 * `times` must not be NULL. */
void
cpu_times_begin(struct cpu_engine *engine, struct cpu_operation *operation);
void cpu_times_end(struct cpu_stream *stream, struct cpu_operation *operation);

/* Arrange that times->end is set when the record is done.  If memory is short,
 * sets times->end to -1 at once.  As soon as times->end is set, *times belongs
 * to the caller of operation_times again. */
void
cpu_times_promise_locked(struct cpu_record *record, struct ps_times *times);

/* ---- Partitions ---- */

/* A partition limits how many workers serve its streams at a time. */
struct cpu_partition {
    /* References are held by the partition's handle, by its streams, and by
     * the workers that serve its streams. */
    unsigned refs;
    int count; /* constant; the number of its multiprocessors */
    /* constant; the most workers that serve its streams at a time */
    unsigned most;
    unsigned busy;
    /* Streams that could run, but wait because `busy` equals `most`.  Indexed
     * by -priority. */
    struct cpu_stream_list waiting[CPU_PRIORITIES];
};

/* Accepts NULL. */
void cpu_partition_unref_locked(struct cpu_partition *partition);

/* ---- Queues: streams ---- */

/* Initialize an idle stream, and add it to the device's list. */
void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority);
/* Free the stream if it was destroyed and nothing uses it any more.  If the
 * stream has failed and no call has returned its failure, stores the failure
 * in cpu_device.unreported. */
void cpu_stream_reap_locked(struct cpu_stream *stream);
/* If the handle is PS_STREAM_PER_THREAD, returns the calling thread's default
 * stream on the device.  Returns NULL for any other handle, and if there is no
 * such stream. */
__attribute__((cold, noinline)) struct cpu_stream *
cpu_stream_of_thread_locked(struct cpu_engine *engine, int device,
                            ps_handle handle);
/* Queue a copy of the operation, and take a reference to its record.  If the
 * stream is idle and the operation is cheap, execute it at once.  A cheap
 * operation takes less time than waking a worker; see operation_is_cheap.  The
 * stream must not be in a capture.  On failure, nothing was queued.  Statuses:
 * PS_ERROR_QUEUE_FULL, PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status cpu_stream_enqueue_locked(struct cpu_stream *stream,
                                    struct cpu_operation *operation);
/* Returns the highest ticket, up to `ticket`, of an operation that is in the
 * stream's queue or has run on the stream.  Returns 0 if no notes are kept. */
uint64_t
cpu_stream_last_locked(const struct cpu_stream *stream, uint64_t ticket);
/* Append the operation itself, not a copy, even if the queue is full.  If the
 * stream was idle, the caller has now taken it, and must call
 * cpu_stream_settle_locked. */
void cpu_stream_push_locked(struct cpu_stream *stream,
                            struct cpu_operation *operation);
/* Execute the operation at the head of a stream that the caller has taken.
 * Then remove the operation from the queue and free it.  There are two
 * exceptions: a CPU_FREE is removed, but the caller must free it, and a
 * CPU_ENTER_GATE becomes a CPU_WAIT and stays in the queue.  Returns true in
 * the process that made the call.  If the operation forks, this also returns
 * in the child, where the result is false.  There the lock is held as in the
 * parent, but the engine is empty, so the caller must not use the stream any
 * more. */
bool cpu_stream_serve_locked(struct cpu_stream *stream);
/* Call the function of a gate that a stream has reached.  `status` is the
 * status of that stream.  The caller does not hold the lock. */
void cpu_gate_enter(const struct cpu_operation *operation, ps_status status);
/* Returns the name of an operation, for people. */
const char *cpu_operation_name(enum cpu_kind kind);
/* Release a stream that the caller has taken: makes it idle, ready or parked,
 * depending on its new head.  May free the stream. */
void cpu_stream_settle_locked(struct cpu_stream *stream);
/* If the stream is in the state that CPU_DONE describes, store CPU_DONE in its
 * slot. */
void cpu_stream_know_locked(struct cpu_stream *stream);
/* Store CPU_UNKNOWN in the stream's slot. */
static inline void
cpu_stream_forget_locked(struct cpu_stream *stream)
{
    if (stream->known != NULL) {
        cpu_forget(stream->known);
    }
}
/* Serve a stream that the caller has taken, as long as its operations are
 * cheap, and then release the stream.  So cheap operations need not wait for a
 * worker.  If the calling thread is already executing an operation or a
 * notification, this only releases the stream, so that the functions of gates
 * and notifications never nest.  Returns false in a forked child; see
 * cpu_stream_serve_locked. */
bool cpu_stream_help_locked(struct cpu_stream *stream);
/* Serve ready streams, as long as the operations at their heads are cheap.
 * These are often streams that waited for the operation that the caller has
 * completed.  This saves a switch to another thread.  Returns false in a
 * forked child; see cpu_stream_serve_locked. */
bool cpu_engine_help_locked(struct cpu_engine *engine);

/* Create a stream with a handle.  Returns NULL if out of memory. */
struct cpu_stream *
cpu_stream_make_locked(struct cpu_engine *engine, int device, int priority,
                       bool blocking);
/* Destroy the handle of the slot's stream.  The stream is freed when nothing
 * uses it any more. */
void cpu_stream_give_up_locked(struct cpu_slot *slot);

/* ---- Queues: records ---- */

/* Call this when the record is done.  Wakes the threads that wait for the
 * record, makes its notifications due, and makes the streams that wait for it
 * ready. */
void cpu_record_complete_locked(struct cpu_engine *engine,
                                struct cpu_record *record, ps_status status);
void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record);

/* ---- Queues: threads ---- */

/* Make sure that a worker exists and, if the kind is CPU_SLEEP, that the timer
 * thread exists.  Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status
cpu_engine_staff_locked(struct cpu_engine *engine, enum cpu_kind kind);
/* Start a thread, and count it in engine->running.  Returns false if that
 * fails. */
bool cpu_thread_start_locked(struct cpu_engine *engine, void *(*body)(void *),
                             const char *name);
/* Let a worker run the host function at the head of a stream that the caller
 * has taken.  The caller hands the stream over to the worker.  Returns false,
 * and does nothing, if no worker can be started.  Called only while the engine
 * is CPU_LAZY. */
bool cpu_stream_hand_locked(struct cpu_stream *stream);
/* Decrement engine->running. */
void cpu_engine_leave_locked(struct cpu_engine *engine);
/* Stop counting the calling thread in engine->running, and release the lock.
 * Call this at the end of the thread.  `forks` is the value that cpu_forks had
 * when the thread began.  If cpu_forks differs now, the thread itself has
 * forked and this is the child, in which the thread is not counted.  Returns
 * NULL. */
void *cpu_thread_end_locked(struct cpu_engine *engine, unsigned forks);

/* The key of a thread-local pointer to the stream whose operation the thread
 * is executing.  While the thread runs notifications, it points to a dummy
 * stream.  Otherwise it is NULL. */
extern pthread_key_t cpu_serving_key;

static inline const struct cpu_stream *
cpu_serving(void)
{
    return pthread_getspecific(cpu_serving_key);
}

/* The number of forks between the first process and this one. */
extern unsigned cpu_forks;

/* Run the notifications that are due.  The lock is released while each one
 * runs.  Call this only if cpu_may_notify returns true: then no other thread
 * is running notifications.  So they run in the order in which their work was
 * done, and never nest.  Returns false in a forked child; see
 * cpu_stream_serve_locked. */
bool cpu_notify_due_locked(struct cpu_engine *engine);

/* ---- Threads that wait ---- */

/* A thread that waits for a stream or a record.  If it waits for a stream,
 * `target` is the ticket of the last operation that it waits for.  The struct
 * lies on the thread's stack.  Each waiter has its own condition, so that a
 * thread is woken only when its own wait is over. */
struct cpu_waiter {
    uint64_t target;
    bool woken;
    /* While a schedule is explored: the thread's entry in lazy.blocked.
     * Otherwise NULL. */
    struct ps_blocked *blocked;
    pthread_cond_t wake;
    /* The next waiter for the same stream or record. */
    struct cpu_waiter *next;
};

/* The limit of a wait, and the time when it is reached.  If the wait has no
 * limit, `deadline` is CPU_FOREVER. */
struct cpu_limit {
    int64_t deadline;
    const struct ps_limit *asked;
};

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit);

/* What a thread waits for: either that a stream's operations up to and
 * including a ticket are done, or that a record is done. */
struct cpu_goal {
    struct cpu_stream *stream;
    uint64_t ticket;
    struct cpu_record *record; /* the goal if `stream` is NULL */
};

/* Wait until the goal is reached.  Statuses: PS_ERROR_TIMED_OUT,
 * PS_ERROR_SHUTTING_DOWN, PS_ERROR_DEADLOCK. */
ps_status
cpu_wait_locked(struct cpu_engine *engine, const struct cpu_goal *goal,
                const struct cpu_limit *limit);

/* ---- Default streams of threads ---- */

/* The default streams of a thread.  For each device, handles[] has the handle
 * of the thread's stream there, or 0 if the thread has none yet. */
struct cpu_thread {
    struct cpu_engine *engine;
    unsigned forks; /* cpu_forks when the handles were created */
    ps_handle handles[];
};

/* Create engine->thread_key.  Returns false if pthread_key_create fails. */
bool cpu_thread_streams_init(struct cpu_engine *engine);
/* Destroy the threads' default streams, except those that have work. */
void cpu_thread_streams_trim_locked(struct cpu_engine *engine);

/* ---- The default stream and blocking streams ---- */

/* Make a new stream serialize with its device's default stream. */
void cpu_stream_block_locked(struct cpu_stream *stream);
/* Does the work of cpu_stream_order_locked for a blocking stream or a default
 * stream. */
ps_status cpu_legacy_order_locked(struct cpu_stream *stream);
/* Returns whether a blocking stream has operations for which the default
 * stream does not wait yet. */
bool cpu_stream_is_ahead_locked(const struct cpu_stream *blocking);
/* Returns PS_ERROR_CAPTURE_IMPLICIT if this is a default stream, and a
 * blocking stream of the same device is being captured.  Otherwise returns
 * PS_SUCCESS. */
ps_status cpu_legacy_check_locked(const struct cpu_stream *stream);

/* Make the stream wait for the streams with which it serializes.  Call this
 * before work is queued on the stream.  Statuses: PS_ERROR_CAPTURE_IMPLICIT,
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN.  PS_ERROR_CAPTURE_IMPLICIT
 * is returned in the case that cpu_legacy_check_locked describes.  In that
 * case, this also invalidates the captures of the blocking streams. */
static inline ps_status
cpu_stream_order_locked(struct cpu_stream *stream)
{
    return stream->blocking || stream->handle == 0
               ? cpu_legacy_order_locked(stream)
               : PS_SUCCESS;
}

/* ---- Captures ---- */

struct cpu_plan; /* captured work; see graph.c */

struct cpu_capture {
    uint64_t number;
    ps_status status; /* PS_SUCCESS, or PS_ERROR_CAPTURE_INVALIDATED */
    struct cpu_stream *origin;
    struct cpu_stream *streams; /* its streams, a list linked by `peer` */
    struct cpu_plan *plan;
    LIST_ENTRY(cpu_capture) neighbours;
};

/* Add a copy of the operation to the stream's capture.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_CAPTURE_INVALIDATED. */
ps_status cpu_capture_add_locked(struct cpu_stream *stream,
                                 const struct cpu_operation *operation);
/* Capture a record of an event.  A captured wait for the record then waits for
 * the operations that were captured on the stream so far.  Statuses: those of
 * cpu_capture_add_locked. */
ps_status cpu_capture_record_locked(struct cpu_stream *stream,
                                    struct cpu_record *record);
/* Capture a wait for a record.  Call this if the stream, the record or both
 * are captured.  If the stream is not being captured, it joins the record's
 * capture.  Statuses: PS_ERROR_CAPTURE_ISOLATION, PS_ERROR_CAPTURE_MERGE,
 * PS_ERROR_CAPTURE_INVALIDATED, PS_ERROR_OUT_OF_MEMORY. */
ps_status
cpu_capture_wait_locked(struct cpu_stream *stream, struct cpu_record *record);
/* Call this when a stream that is being captured is destroyed.  If the capture
 * began on this stream, the capture ends, and the stream may be freed.
 * Otherwise the capture becomes invalid. */
void cpu_capture_lose_locked(struct cpu_stream *stream);

/* ---- Interprocess events; see shared.h ---- */

/* An open file of the engine.  A forked child closes the files of its parent.
 * Otherwise the child would keep the pipe of a record (see shared.c) open
 * after the parent has ended, and other processes could not see that the
 * parent has ended. */
struct cpu_file {
    int number; /* its file descriptor; -1 if it is closed */
    LIST_ENTRY(cpu_file) neighbours;
};

/* The thread that waits until other processes have completed records.  It
 * watches the pipes of those records with epoll, and completes the records in
 * this process. */
struct cpu_poller {
    struct cpu_file epoll;    /* closed until the thread is needed */
    struct cpu_file doorbell; /* an eventfd that wakes the thread to end it */
};

/* ---- The engine ---- */

enum cpu_phase {
    CPU_OPEN,
    /* A schedule is explored.  Calls of the program run the work, in place of
     * the engine's threads. */
    CPU_LAZY,
    CPU_STOPPING, /* no more work starts; running work may end */
    CPU_STOPPED,  /* a new wait fails with PS_ERROR_SHUTTING_DOWN */
};

struct cpu_device {
    _Atomic int64_t known; /* like cpu_slot.known, for the default stream */
    struct cpu_stream default_stream;
    /* All streams, the newest first.  When a schedule first uses a stream, it
     * moves the stream to the front. */
    LIST_HEAD(, cpu_stream) streams;
    LIST_HEAD(, cpu_stream) blocking;
    /* The first failure of a stream that was freed before any call had
     * returned the failure. */
    ps_status unreported;
    /* While a schedule is explored: the failures of work that ran before it.
     * They are kept here because the work of the schedule must not see
     * them. */
    struct cpu_failures {
        ps_status unreported;
        ps_status of_default_stream;
        bool reported;
    } earlier;
    int partitioned; /* the number of multiprocessors in partitions */
    /* Only for an emulated device, in bytes.  used: the memory in use.
     * reserved: the memory that the emulated memory pool has reserved.  peak:
     * the most that was reserved since the last reset.  threshold: when memory
     * is freed, the pool gives back unused memory until at most this amount is
     * reserved. */
    uint64_t used;
    uint64_t reserved;
    uint64_t peak;
    uint64_t threshold;
};

/* A table of functions of the engine.  The functions get the table as their
 * argument, and find the engine through it. */
struct cpu_table {
    struct ps_backend base;
    struct cpu_engine *engine;
};

/* ---- Schedules that are explored ---- */

/* The functions that run work while the engine is CPU_LAZY, in place of its
 * threads.  lazy.c implements them, and the files before it call them through
 * this table.  See enum ps_note_kind for the notes. */
struct cpu_driver {
    /* Release the lock.  If work was queued since the last call, first run the
     * operations that the schedule picks. */
    void (*release_locked)(struct cpu_engine *engine);
    /* Run work until the waiter is woken.  Statuses: those of
     * cpu_wait_locked. */
    ps_status (*wait_locked)(struct cpu_engine *engine,
                             struct cpu_waiter *waiter,
                             const struct cpu_goal *goal,
                             const struct cpu_limit *limit);
    /* Called when a callable or a host function has ended.  A callable has
     * ended when its gate is opened.  For a callable, this is called only if
     * the gate's function was called while a schedule was explored. */
    void (*opened_locked)(struct cpu_engine *engine);
    /* Add a note with these two values, if notes are kept.  An operation is
     * passed as its ticket, and a step as in cpu_record.step.  This function
     * converts both to the numbers that a note has, which begin at 1 for each
     * schedule. */
    void (*note_locked)(struct cpu_engine *engine, enum ps_note_kind kind,
                        uint64_t first, uint64_t second);
    /* Called before a query, if notes are kept.  Runs the operations that the
     * schedule picks.  Returns false, and runs nothing, if the library itself
     * makes the query.  Such a query must report work of the schedule as
     * pending even if it has run.  Otherwise the order of the operations would
     * change what the library does. */
    bool (*ask_locked)(struct cpu_engine *engine,
                       const struct ps_backend *backend);
    /* Add a note about a query of the host, if notes are kept.  The query was
     * for the stream's work or, if stream is NULL, for the record.  Called
     * after the query. */
    void (*asked_locked)(struct cpu_engine *engine,
                         const struct cpu_stream *stream,
                         const struct cpu_record *record);
    /* Called when a wait of the host is over, if notes are kept.  Runs the
     * operations that the schedule picks before the host continues. */
    void (*arrived_locked)(struct cpu_engine *engine);
    /* Called before the schedule uses the stream for the first time. */
    void (*used_locked)(struct cpu_stream *stream);
};

extern const struct cpu_driver cpu_lazy_driver;
extern const struct cpu_clock cpu_lazy_clock;

struct cpu_lazy {
    struct ps_schedule asked;
    uint64_t random;  /* the state of the random generator */
    uint64_t first;   /* the last ticket before the schedule began */
    uint64_t seen;    /* the last ticket when release_locked was last called */
    uint64_t steps;   /* see ps_schedule_result.steps */
    uint64_t order;   /* a hash of the steps */
    uint64_t rank;    /* the priority of the host; see cpu_stream.rank */
    unsigned streams; /* the number of streams that the schedule has used */
    unsigned polls;   /* the number of queries that found work pending */
    /* The stream of the latest such query; it may have been freed. */
    struct cpu_stream *polled;
    bool busy;   /* whether a thread is running an operation */
    bool ending; /* whether the remaining work is being dropped */
    /* Whether running callables have taken so long that no thread waits for
     * them any more. */
    bool impatient;
    /* naps measures for how long callables have been waiting while the host
     * ran.  It is a sum of results of weigh_nap_locked.  nap is the real time
     * at which naps was last increased. */
    unsigned naps;
    int64_t nap;
    /* How many callables and host functions run or wait, and how many of them
     * have called ending() but not yet ended(). */
    unsigned callables;
    unsigned ending_callables;
    /* The streams that wait for a worker to run the host function at their
     * head. */
    struct cpu_stream_list handed;
    unsigned handed_count;
    /* The waiting threads, the latest first. */
    LIST_HEAD(, ps_blocked) blocked;
    struct ps_schedule_entry *log;
    size_t logged;
    /* PS_GIVEN: how many items of the list were used, and how many of them
     * were followed before one was not possible. */
    size_t taken;
    size_t followed;
    bool queried; /* whether the host's latest query found work pending */
    /* The number of the latest step.  It is not reset when a schedule begins;
     * first_step is the value that it had then.  If no notes are kept, only
     * the schedule's first step counts. */
    uint64_t step;
    uint64_t first_step;
    uint64_t ran; /* the latest step that ran an operation */
    struct ps_note *notes;
    size_t noted;
    pthread_t thread; /* the thread that began the schedule */
    /* If notes are kept: a list of freed blocks, which are kept until the
     * schedule ends so that no address is used twice. */
    struct cpu_operation *freed;
};

struct cpu_engine {
    struct cpu_table table; /* constant */
    /* Constant; used while a schedule is explored.  Has PS_BACKEND_SHARED. */
    struct cpu_table lazy_table;
    /* `phase` and `chunks` are changed with the lock held, and also read
     * without it.  They lie far from the lock, because the lock's cache line
     * moves between threads. */
    _Atomic(enum cpu_phase) phase;
    /* Each element is NULL or points to an array of CPU_CHUNK_SLOTS slots.
     * The arrays are allocated in ascending order. */
    _Atomic(struct cpu_slot *) chunks[CPU_CHUNKS];
    unsigned number; /* constant; the engine's index, below CPU_ENGINES */
    /* The key of a thread-local value, the thread's current device.  Changed
     * only while the engine is unused. */
    _Atomic pthread_key_t current_key;
    pthread_key_t thread_key; /* constant; for a thread's cpu_thread */
    const struct cpu_clock *_Atomic clock; /* also read without the lock */
    const struct cpu_driver *driver;       /* constant */
    /* The next engine in the list of engines.  The lock of that list guards
     * it. */
    struct cpu_engine *next;

    pthread_mutex_t lock;
    /* constant; the attributes of all condition variables */
    pthread_condattr_t monotonic;
    struct cpu_handles handles;
    union cpu_item *items; /* unused items */
    /* The latest ticket: the number of operations that were ever queued. */
    uint64_t tickets;
    /* The number of captures and captured operations so far. */
    uint64_t captured;
    LIST_HEAD(, cpu_capture) captures;

    struct ps_notification *due; /* the notifications that are due, a ring */
    bool notifying; /* whether a thread is running due notifications */

    struct cpu_stream_list ready[CPU_PRIORITIES]; /* indexed by -priority */
    unsigned ready_count;
    /* Parked streams whose head is a CPU_SLEEP: a skew heap by `deadline`. */
    struct cpu_stream *sleepers;

    unsigned worker_limit; /* constant */
    unsigned workers;      /* the number of workers that were ever started */
    unsigned idle;         /* the number of workers that wait for work */
    /* Whether a worker was woken or started and is about to look for work. */
    bool coming;
    bool timer;         /* whether the timer thread was started */
    atomic_bool timing; /* whether operation_times was ever called */
    /* The number of the engine's threads, plus the number of calls that are
     * serving a stream or running notifications. */
    unsigned running;
    /* Signalled when there is work, or when the phase has changed. */
    pthread_cond_t work;
    /* Signalled when the first sleeper or the phase has changed. */
    pthread_cond_t early;
    pthread_cond_t ended; /* signalled when a running thread has ended */

    struct cpu_lazy lazy;
    /* Signalled when `lazy` changes so that a thread may continue.  It is not
     * in `lazy`, which each schedule initializes again, even while threads
     * wait here. */
    pthread_cond_t lazy_changed;

    LIST_HEAD(, cpu_file) files;
    struct cpu_poller poller;

    /* The memory of each emulated device in bytes; 0 if the devices use the
     * host's memory.  Changed only while the engine is unused. */
    _Atomic uint64_t memory;
    /* A tree of the memory blocks of emulated devices, by address. */
    void *ranges;
    void *pinned; /* a tree of pinned ranges, by address */

    int device_count; /* constant */
    struct cpu_device devices[];
};

/* Returns the initial priority of the stream with this number.  The number 0
 * means the host. */
uint64_t cpu_lazy_rank(uint64_t seed, unsigned number);

/* Returns whether the calling thread runs a callable of a stream of this
 * engine. */
bool cpu_lazy_is_callable(const struct cpu_engine *engine);
/* Let the callables that can continue do so before the calling thread
 * continues.  Also returns if they take too long. */
void cpu_lazy_await_locked(struct cpu_engine *engine);
/* Wake the threads that wait for something other than work, so that they check
 * whether their wait is over. */
void cpu_lazy_wake_locked(struct cpu_engine *engine);
/* The parts of ending() and ended() in struct ps_schedules that concern this
 * engine. */
void cpu_lazy_ending_locked(struct cpu_engine *engine);
void cpu_lazy_ended_locked(struct cpu_engine *engine);

/* Add *blocked to the list of waiting threads, as the entry of the calling
 * thread.  goal: what the thread waits for; NULL if that is not known.
 * deadline: the virtual time at which its wait expires.  The caller removes
 * the entry after the wait. */
void
cpu_lazy_block_locked(struct cpu_engine *engine, struct ps_blocked *blocked,
                      const struct cpu_goal *goal, int64_t deadline);

/* Call this after cpu_lazy_block_locked.  If the calling thread is the host,
 * resets the time for which callables have been waiting while the host ran.
 * (While the host runs, the waits of callables expire only if that time is
 * very long.) */
void cpu_lazy_host_waits_locked(struct cpu_engine *engine,
                                const struct ps_blocked *blocked);

/* The virtual time, which all engines share.  cpu_lazy_begin_time sets it to
 * the real time, or leaves it unchanged if `continues` is true.  cpu_lazy_now
 * returns it.  cpu_lazy_pass_time advances it to `time`, unless the virtual
 * time is later already. */
void cpu_lazy_begin_time(bool continues);
int64_t cpu_lazy_now(void);
void cpu_lazy_pass_time(int64_t time);

/* The parts of poll() and advance() in struct ps_schedules that concern this
 * engine.  If cpu_lazy_advance_locked returns PS_EXPIRED, its caller must
 * still advance the virtual time. */
void cpu_lazy_poll_locked(struct cpu_engine *engine);
enum ps_progress
cpu_lazy_advance_locked(struct cpu_engine *engine, int64_t deadline);

/* These are note_locked and arrived_locked in struct cpu_driver. */
void cpu_lazy_note_locked(struct cpu_engine *engine, enum ps_note_kind kind,
                          uint64_t first, uint64_t second);
void cpu_lazy_arrived_locked(struct cpu_engine *engine);

/* The parts of hold() and released() in struct ps_schedules that concern this
 * engine. */
void cpu_lazy_hold_locked(struct cpu_engine *engine);
void cpu_lazy_released_locked(struct cpu_engine *engine);

/* Returns whether the engine has pending work or a capture in progress.  If it
 * has, writes a description of that to text. */
bool cpu_lazy_pending_locked(struct cpu_engine *engine, char text[256]);

/* Run the remaining work, or drop it if `drop` is true.  Returns false if
 * callables still run at the real time `end`. */
bool cpu_lazy_finish_locked(struct cpu_engine *engine, bool drop, int64_t end);

/* Add the engine to the list of engines that schedules control.  Only one
 * thread at a time may call this. */
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

/* Returns the slot that the handle's bits select, even if the handle is not
 * valid.  Returns NULL if that slot is not allocated. */
static inline struct cpu_slot *
cpu_slot_at(const struct cpu_engine *engine, ps_handle handle)
{
    struct cpu_slot *slots = atomic_load_explicit(
        &engine->chunks[handle / CPU_CHUNK_BYTES % CPU_CHUNKS],
        memory_order_acquire);
    return slots != NULL ? &slots[handle / CPU_SLOT_BYTES % CPU_CHUNK_SLOTS]
                         : NULL;
}

/* Returns the handle's slot if the handle is live and has this tag and this
 * device, else NULL.  CPU_ANY_DEVICE allows every device. */
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

/* Find a stream by its handle.  0 means the device's default stream;
 * PS_STREAM_PER_THREAD means the calling thread's default stream, if it
 * exists.  Returns NULL if there is no such stream on the device. */
static inline struct cpu_stream *
cpu_stream_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    if (handle == 0) {
        return &engine->devices[device].default_stream;
    }
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, device, handle);
    return slot != NULL ? slot->object
                        : cpu_stream_of_thread_locked(engine, device, handle);
}

/* Returns the `known` of the handle's slot.  Called without the lock, so the
 * result may be out of date when this returns.  Returns CPU_UNKNOWN if
 * cpu_slot_find_locked would find no slot.  Also returns CPU_UNKNOWN while the
 * engine is CPU_LAZY, because a schedule must see each call. */
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
    /* If the slot has this handle now, it already had the handle when `known`
     * was read: the caller got the handle from the call that created the
     * object, and handles are practically never reused.  So `known` describes
     * this object. */
    return atomic_load_explicit(&slot->handle, memory_order_relaxed) ==
                       handle &&
                   handle % CPU_TAGS == tag &&
                   (device == home || device == CPU_ANY_DEVICE)
               ? known
               : CPU_UNKNOWN;
}

/* Returns whether the stream is known to be in the state CPU_DONE.  Called
 * without the lock; see cpu_slot_known. */
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

/* Returns whether this is the default stream of a device that has blocking
 * streams. */
static inline bool
cpu_stream_is_legacy_locked(const struct cpu_stream *stream)
{
    const struct cpu_device *device = &stream->engine->devices[stream->device];
    return stream == &device->default_stream && !LIST_EMPTY(&device->blocking);
}

/* Returns whether a schedule is explored and has not used the stream yet. */
static inline bool
cpu_is_earlier(const struct cpu_stream *stream)
{
    return cpu_is_lazy(stream->engine) && stream->number == 0;
}

/* Returns whether a schedule is explored and keeps notes. */
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

/* Returns the handle of the calling thread's default stream on the device.
 * Returns 0 if the thread has none there yet. */
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

/* Release the lock.  Wakes or starts a worker if there is work. */
void cpu_release(struct cpu_engine *engine);

/* Returns whether notifications are due that the calling thread must run
 * before it releases the lock. */
static inline bool
cpu_may_notify(const struct cpu_engine *engine)
{
    return engine->due != NULL && !engine->notifying && cpu_serving() == NULL;
}

/* Run the notifications that are due, if cpu_may_notify returns true, and
 * release the lock. */
static inline void
cpu_unlock(struct cpu_engine *engine)
{
    if (cpu_may_notify(engine)) {
        cpu_notify_due_locked(engine);
    }
    cpu_release(engine);
}

/* ---- Members of the table ---- */

/* Declare a variable `engine` for the engine of the table `backend`, and hold
 * the engine's lock until the end of the enclosing block. */
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

/* Get the event's latest record.  For an interprocess event, another process
 * may have made it.  Statuses: PS_ERROR_INVALID_HANDLE,
 * PS_ERROR_CAPTURED_EVENT, and those of cpu_shared_refresh_locked. */
ps_status
cpu_event_record_locked(struct cpu_engine *engine, int device,
                        ps_handle handle, struct cpu_record **record);

/* An address range of memory. */
struct cpu_range {
    uintptr_t first;
    size_t nbytes; /* including padding */
    int device;
    bool counted; /* whether cpu_device.used includes it */
};

/* If the devices are emulated, add the range to the engine's tree `ranges`,
 * which is used to find the device of an address.  Otherwise do nothing.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, also if `counted` is true and the range is
 * larger than the free memory of its device. */
ps_status
cpu_range_add_locked(struct cpu_engine *engine, struct cpu_range *range);
void
cpu_range_remove_locked(struct cpu_engine *engine, struct cpu_range *range);

/* Overwrite the memory block that a CPU_FREE will free.  Each byte becomes
 * PS_SCHEDULE_POISON. */
void cpu_memory_poison(struct cpu_operation *end);
/* Returns the memory block that a CPU_FREE will free.  *nbytes becomes its
 * size. */
void *cpu_memory_of(struct cpu_operation *end, size_t *nbytes);

/* Returns the number of the machine's processors that are online. */
int cpu_host_processors(void);

/* Returns the size of the machine's memory in bytes. */
uint64_t cpu_host_memory(void);

/* Each of these functions sets the members of the table that its file
 * implements. */
void cpu_partition_members(struct ps_backend *table);
void cpu_work_members(struct ps_backend *table);
void cpu_stream_members(struct ps_backend *table);
void cpu_thread_stream_members(struct ps_backend *table);
void cpu_event_members(struct ps_backend *table);
void cpu_notify_members(struct ps_backend *table);
void cpu_memory_members(struct ps_backend *table);
void cpu_shared_memory_members(struct ps_backend *table);
void cpu_times_members(struct ps_backend *table);
void cpu_graph_members(struct ps_backend *table);

#endif
