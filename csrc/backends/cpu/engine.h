/* The insides of the embedded CPU engine: a small CUDA on threads.
 *
 * Each engine has one lock.  It guards every field below, except those whose
 * comment says otherwise.  The lock is never held around a copy, a fill, a
 * host function, a notification or the freeing of a block, nor while a thread
 * waits.  No other lock is ever taken under it.
 *
 * Calls that change no queue take no lock: a record, a wait or a query on a
 * stream that is known to be idle, of an event that is known to be done.
 * What is known of an object is in its slot; see cpu_slot_known.
 *
 * A file calls only files above it in this list: storage.c, times.c, goal.c,
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
    /* A copy or fill up to this size is done at once on an idle stream, since
     * queueing it would cost more. */
    CPU_INLINE_BYTES = 64 * 1024,
};

#define CPU_FOREVER INT64_MAX

struct cpu_engine;

/* ---- Storage: handles ---- */

enum cpu_tag { CPU_STREAM, CPU_EVENT, CPU_GATE, CPU_GRAPH, CPU_PARTITION };

enum { CPU_TAGS = 8, CPU_ANY_DEVICE = -1 };

/* What is known of a slot's object without the lock. */
enum {
    CPU_UNKNOWN,
    /* A stream: it is idle, has not failed, is not being captured, and
     * serializes with no other stream.  An event of this process: its latest
     * record is done without a failure, and was not captured. */
    CPU_DONE,
    /* As CPU_DONE, for an event with timing.  The time of its latest record is
     * added to this number. */
    CPU_TIMED,
};

/* The object of a handle.  A slot has a fixed address and is never freed, so
 * its atomic fields can be read at any time.  It fills a line of the
 * processor's cache, so that threads which use different slots do not slow
 * each other down. */
struct cpu_slot {
    _Atomic ps_handle handle; /* 0 in a free slot */
    /* One of the states above; CPU_UNKNOWN if the object is in any other
     * state.  It changes from CPU_UNKNOWN with the lock held.  Without the
     * lock, only an event's time may be replaced with a later one. */
    _Atomic int64_t known;
    /* The stream, the event's latest record, the gate's record, the graph or
     * the partition. */
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
    uint32_t used;       /* the highest slot ever used; slot 0 is not */
    uint32_t first_free; /* 0 if none */
    uint64_t serial;     /* the serial of the latest handle */
};

/* Take a slot, with a new handle and no object.  Returns NULL if out of
 * memory. */
struct cpu_slot *
cpu_slot_take_locked(struct cpu_engine *engine, enum cpu_tag tag, int device);
void cpu_slot_give_locked(struct cpu_engine *engine, struct cpu_slot *slot);
/* Reserve `count` slots, so that later calls of cpu_slot_take_locked cannot
 * fail.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_slots_reserve_locked(struct cpu_engine *engine, size_t count);
/* Returns whether any handle is live. */
bool cpu_slots_any_locked(const struct cpu_engine *engine);
/* Make all handles invalid.  No other thread may use the engine. */
void cpu_slots_forget(struct cpu_engine *engine);

/* Relaxed: the code that changes the object orders this store for threads that
 * depend on it. */
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
    /* Constant.  0 for the device's default stream; its name for a thread's
     * default stream. */
    ps_handle handle;
    _Atomic int64_t *known;          /* in its slot; NULL if it has no slot */
    struct cpu_partition *partition; /* constant; NULL if in none */
    ps_status status; /* the first failure; only its server writes it */
    bool reported;    /* a synchronize has returned its status */
    bool destroyed;   /* free it when it is idle and no thread waits for it */
    bool handed;      /* its host function waits for, or runs on, a worker */
    struct cpu_operation *first;
    struct cpu_operation **tail;
    unsigned pending;                      /* operations in the queue */
    struct cpu_waiter *waiters;            /* threads that wait, by ticket */
    struct ps_notification *notifications; /* a ring in the order of tickets */
    struct cpu_stream *next;               /* in a cpu_stream_list */
    struct cpu_stream *left; /* children in the heap of sleepers */
    struct cpu_stream *right;
    int64_t deadline; /* the end of its sleep */
    unsigned number;  /* while a schedule is explored: by first use, from 1;
                         else 0 */
    uint64_t rank;    /* while a schedule is explored: its priority */
    uint64_t done;    /* while a schedule is explored: the ticket of its latest
                         operation that ran */
    LIST_ENTRY(cpu_stream) neighbours; /* in the device's list */
    /* NULL unless the stream is being captured.  Then the operations queued on
     * it form a branch of the capture's plan.  `last` is the number of its
     * last captured operation.  `covered` is the number of its last operation
     * for which another stream of the capture waits. */
    struct cpu_capture *capture;
    uint16_t branch;
    uint64_t last;
    uint64_t covered;
    struct cpu_stream *peer; /* the capture's next stream */
    /* An upper bound of the tickets of the stream's work; set before each
     * operation is queued.  Only kept for a blocking stream, and for a default
     * stream while its device has blocking streams. */
    uint64_t given;
    /* For a blocking stream.  follows: the default stream's `given` when this
     * stream last waited for it.  followed: this stream's `given` when the
     * default stream last waited for it. */
    bool blocking; /* constant */
    uint64_t follows;
    uint64_t followed;
    LIST_ENTRY(cpu_stream) siblings; /* the device's other blocking streams */
};

/* A list of streams in order.  A stream is in one list at most. */
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
    CPU_ENTER_GATE, /* becomes CPU_WAIT for the gate's record */
    CPU_FREE,
    CPU_RECORD_LATER, /* in plans: a record at the launch */
    CPU_WAIT_LATER,
    CPU_MARK, /* in plans: other branches wait for it */
    CPU_JOIN, /* in plans: a wait for a mark of another branch */
};

/* A queued operation.  Its memory is an item.  The exception is CPU_FREE: its
 * operation is at the head of the block that it frees. */
struct cpu_operation {
    enum cpu_kind kind;
    bool overtaken : 1; /* another operation ran although this one was ready */
    bool abandoned : 1; /* CPU_ENTER_GATE: its function gets a failure */
    bool launched : 1;  /* CPU_ENTER_GATE: it is a graph's */
    uint16_t branch;    /* in plans: its branch */
    struct cpu_operation *next;
    uint64_t ticket; /* grows with each operation that is queued */
    /* CPU_RECORD, CPU_WAIT, CPU_ENTER_GATE: a reference.  CPU_MARK: the record
     * of the launch whose operations are being queued. */
    struct cpu_record *record;
    /* NULL, or where to write when the operation begins and ends.  Only for
     * CPU_COPY, CPU_FILL, CPU_CALL and CPU_SLEEP. */
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

/* Reports the end of a record to other processes.  The record points to it. */
struct cpu_promise {
    /* Called when the record is done, or is dropped before that.  Frees the
     * promise. */
    void (*end_locked)(struct cpu_promise *promise,
                       const struct cpu_record *record);
};

/* A record of an event; its memory is an item.  References to it are held by
 * the event if this is its latest record, by queued operations, and by threads
 * that wait. */
struct cpu_record {
    unsigned refs;
    bool timed;  /* its time must be stored */
    bool orders; /* it only orders: waiting for it passes on no failure */
    bool done;
    bool entered; /* of a gate: its function was called during a schedule */
    ps_status status; /* once done: the failure of the work before it */
    int64_t time;  /* when it was done; -1 if its event was never recorded */
    uint64_t step; /* the step of a schedule in which it was done */
    struct cpu_promise *promise; /* NULL if no other process can wait */
    struct cpu_stream_list parked;
    struct cpu_waiter *waiters;
    struct ps_notification *notifications; /* a ring */
    struct cpu_stream *source; /* the stream on which it was queued */
    /* Of a captured record, which is never done: the capture's number, the
     * stream's `last` when it was captured, and its mark in the plan.
     * `capture` is 0 for other records. */
    uint64_t capture;
    uint64_t position;
    struct cpu_operation *mark;
};

/* Call before the event gets a new record.  From here on no thread finds the
 * event known to be done.  So no thread can replace the time of the old record
 * after that of the new one. */
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
/* Reserve `count` items, so that later calls of cpu_item_take_locked cannot
 * fail.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cpu_items_reserve_locked(struct cpu_engine *engine, size_t count);

/* ---- Goals of waits: a time, a record or an operation ---- */

/* The clock, which schedules replace.  Times are in nanoseconds. */
struct cpu_clock {
    int64_t (*now)(void);
    /* Release the lock, and wait until the condition is signalled, or
     * spuriously.  Returns false once the deadline has passed. */
    bool (*wait_locked)(struct cpu_engine *engine, pthread_cond_t *condition,
                        int64_t deadline);
};

extern const struct cpu_clock cpu_monotonic_clock;

/* The time timeout_ns from now, limited to the range from now to
 * CPU_FOREVER. */
int64_t cpu_deadline(struct cpu_engine *engine, int64_t timeout_ns);

/* A thread that waits for an object.  For a stream, `target` is the ticket of
 * the last operation that the thread waits for.  The waiter lies on the
 * thread's stack.  Each waiter has its own condition, so that a thread is
 * woken for its own target alone. */
struct cpu_waiter {
    uint64_t target;
    bool woken;
    struct ps_blocked *blocked; /* its entry while the engine is CPU_LAZY */
    pthread_cond_t wake;
    struct cpu_waiter *next; /* the next waiter for this object */
};

/* Call when the stream's work up to the ticket is done.  Wakes the threads
 * that wait for that work, and makes its notifications due. */
void cpu_stream_reached_locked(struct cpu_stream *stream, uint64_t ticket);
/* Call when the record is done.  Wakes the threads that wait for it, makes its
 * notifications due, and makes the streams that are parked on it ready. */
void cpu_record_complete_locked(struct cpu_engine *engine,
                                struct cpu_record *record, ps_status status);
void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record);

/* ---- Partitions ---- */

/* A share of the engine's workers. */
struct cpu_partition {
    unsigned refs; /* held by its handle, streams and workers */
    int count;     /* constant; the number of its processors */
    unsigned most; /* constant; the most workers at a time */
    unsigned busy;
    /* Streams that only wait for a worker of the partition.  Indexed by
     * -priority. */
    struct cpu_stream_list waiting[CPU_PRIORITIES];
};

/* Accepts NULL. */
void cpu_partition_unref_locked(struct cpu_partition *partition);

/* ---- Times ---- */

/* A thread's value is where its next operation must write its times. */
extern pthread_key_t cpu_times_key;

/* Take the calling thread's value of cpu_times_key.  NULL if there is none. */
struct ps_times *cpu_times_take(void);

/* Write that the operation begins, or ends, now. */
void
cpu_times_begin(struct cpu_engine *engine, struct cpu_operation *operation);
void cpu_times_end(struct cpu_stream *stream, struct cpu_operation *operation);

/* When the record is done, write its time as the end of *times.  If out of
 * memory, give *times back to its owner at once. */
void
cpu_times_promise_locked(struct cpu_record *record, struct ps_times *times);

/* ---- Queues: streams ---- */

/* Initialize an idle stream, and add it to the device's list. */
void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority);
/* Free a stream if it was destroyed and nothing uses it any more.  A failure
 * that no call has returned is passed on to the device. */
void cpu_stream_reap_locked(struct cpu_stream *stream);
/* Find a stream by its handle.  0 means the device's default stream.
 * PS_STREAM_PER_THREAD means the calling thread's, if it exists.  Returns NULL
 * if there is no such stream on the device. */
struct cpu_stream *cpu_stream_find_locked(struct cpu_engine *engine,
                                          int device, ps_handle handle);
/* Queue a copy of the operation, and take a reference to its record.  If the
 * operation is cheap and the stream idle, do it at once.  The stream must not
 * be captured.  Statuses: PS_ERROR_QUEUE_FULL, PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN; nothing is queued then. */
ps_status cpu_stream_enqueue_locked(struct cpu_stream *stream,
                                    struct cpu_operation *operation);
/* The ticket of the stream's last operation whose ticket is at most `ticket`.
 * 0 if no notes are kept. */
uint64_t
cpu_stream_last_locked(const struct cpu_stream *stream, uint64_t ticket);
/* Append the operation itself, not a copy, even if the queue is full.  If the
 * stream is idle, the caller takes it and must settle it. */
void cpu_stream_push_locked(struct cpu_stream *stream,
                            struct cpu_operation *operation);
/* Do the operation at the head of a stream that the caller has taken, and free
 * it.  A CPU_FREE is the exception: the caller frees that.  Returns false in a
 * child process, if the operation forked.  Then only the engine still exists,
 * with its lock held. */
bool cpu_stream_serve_locked(struct cpu_stream *stream);
/* Call the function of a gate that a stream with this status has reached.
 * Called without the lock. */
void cpu_gate_enter(const struct cpu_operation *operation, ps_status status);
/* The name of an operation, for people. */
const char *cpu_operation_name(enum cpu_kind kind);
/* Give up a stream that the caller has taken: puts it where its next operation
 * belongs.  May free the stream. */
void cpu_stream_settle_locked(struct cpu_stream *stream);
/* If the stream is in the state CPU_DONE, store that in its slot. */
void cpu_stream_know_locked(struct cpu_stream *stream);
/* Store in its slot that the stream's state is unknown. */
static inline void
cpu_stream_forget_locked(struct cpu_stream *stream)
{
    if (stream->known != NULL) {
        cpu_forget(stream->known);
    }
}
/* Serve a stream that the caller has taken for as long as its operations are
 * cheap, and then give it up.  So this work waits for no worker.  Within an
 * operation of the calling thread, it only gives the stream up, so that
 * notifications never nest.  Returns false as cpu_stream_serve_locked. */
bool cpu_stream_help_locked(struct cpu_stream *stream);
/* Serve ready streams in the same way, such as streams that waited for the
 * caller's operation.  This saves a switch to another thread. */
bool cpu_engine_help_locked(struct cpu_engine *engine);

/* Create a stream with a handle.  Returns NULL if out of memory. */
struct cpu_stream *
cpu_stream_make_locked(struct cpu_engine *engine, int device, int priority,
                       bool blocking);
/* Destroy a stream's handle.  The stream is freed when nothing uses it any
 * more. */
void cpu_stream_give_up_locked(struct cpu_slot *slot);

/* ---- Queues: threads ---- */

/* Make sure that there are threads to serve an operation of this kind.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status
cpu_engine_staff_locked(struct cpu_engine *engine, enum cpu_kind kind);
/* Start a thread, and count it as running.  Returns false if that fails. */
bool cpu_thread_start_locked(struct cpu_engine *engine, void *(*body)(void *),
                             const char *name);
/* While the engine is CPU_LAZY: let a worker run the host function at the head
 * of a stream that the caller has taken.  Returns false if no worker can be
 * started. */
bool cpu_stream_hand_locked(struct cpu_stream *stream);
/* Count one thread less as running. */
void cpu_engine_leave_locked(struct cpu_engine *engine);
/* End a thread that began when cpu_forks was `forks`, and release the lock.
 * In a child that the thread itself forked, it was never counted as running.
 * Returns NULL. */
void *cpu_thread_end_locked(struct cpu_engine *engine, unsigned forks);

/* A thread's value is the stream whose operation the thread is executing, or
 * NULL. */
extern pthread_key_t cpu_serving_key;

static inline const struct cpu_stream *
cpu_serving(void)
{
    return pthread_getspecific(cpu_serving_key);
}

/* The number of forks between the first process and this one. */
extern unsigned cpu_forks;

/* Call the notifications that are due, with the lock released for each call.
 * Call this only if cpu_may_notify.  One thread at a time does this: the next
 * one that releases the lock.  So notifications run in the order in which the
 * work was done, and never nest.  Returns false as cpu_stream_serve_locked. */
bool cpu_notify_due_locked(struct cpu_engine *engine);

/* ---- Threads that wait ---- */

/* A limit, and when it is reached.  Without a limit, that is CPU_FOREVER. */
struct cpu_limit {
    int64_t deadline;
    const struct ps_limit *asked;
};

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit);

/* What a thread waits for: the work of a stream up to a ticket, or a
 * record. */
struct cpu_goal {
    struct cpu_stream *stream;
    uint64_t ticket;
    struct cpu_record *record; /* used if the stream is NULL */
};

/* Wait until the goal is reached.  Statuses: PS_ERROR_TIMED_OUT,
 * PS_ERROR_SHUTTING_DOWN, PS_ERROR_DEADLOCK. */
ps_status
cpu_wait_locked(struct cpu_engine *engine, const struct cpu_goal *goal,
                const struct cpu_limit *limit);

/* ---- Default streams of threads ---- */

/* A thread's own default streams, one for each device. */
struct cpu_thread {
    struct cpu_engine *engine;
    unsigned forks; /* cpu_forks when the handles were created */
    ps_handle handles[];
};

/* Create the key of the threads' default streams.  Returns false if the
 * process has no key left. */
bool cpu_thread_streams_init(struct cpu_engine *engine);
/* Destroy those default streams of threads that are idle. */
void cpu_thread_streams_trim_locked(struct cpu_engine *engine);

/* ---- The default stream and blocking streams ---- */

/* Make a new stream serialize with its device's default stream. */
void cpu_stream_block_locked(struct cpu_stream *stream);
/* The part of cpu_stream_order_locked for a stream that may have to wait. */
ps_status cpu_legacy_order_locked(struct cpu_stream *stream);
/* Whether a blocking stream has work for which the default stream does not
 * wait yet. */
bool cpu_stream_is_ahead_locked(const struct cpu_stream *blocking);
/* Returns PS_ERROR_CAPTURE_IMPLICIT if this is the default stream of a device
 * with blocking streams, and one of these is being captured. */
ps_status cpu_legacy_check_locked(const struct cpu_stream *stream);

/* Make the stream wait for the streams with which it serializes.  Called
 * before work is queued on it.  Statuses: PS_ERROR_CAPTURE_IMPLICIT, and then
 * the capture is invalid; PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
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
    ps_status status; /* or PS_ERROR_CAPTURE_INVALIDATED */
    struct cpu_stream *origin;
    struct cpu_stream *streams; /* a list by `peer` */
    struct cpu_plan *plan;
    LIST_ENTRY(cpu_capture) neighbours;
};

/* Add a copy of the operation to the stream's capture.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_CAPTURE_INVALIDATED. */
ps_status cpu_capture_add_locked(struct cpu_stream *stream,
                                 const struct cpu_operation *operation);
/* Capture a record: it marks the end of the stream's captured operations so
 * far. */
ps_status cpu_capture_record_locked(struct cpu_stream *stream,
                                    struct cpu_record *record);
/* Capture a wait for a record.  Called if the stream, the record or both are
 * captured.  The stream joins the record's capture.  Statuses:
 * PS_ERROR_CAPTURE_ISOLATION, PS_ERROR_CAPTURE_MERGE,
 * PS_ERROR_CAPTURE_INVALIDATED. */
ps_status
cpu_capture_wait_locked(struct cpu_stream *stream, struct cpu_record *record);
/* Call when a stream that is being captured is destroyed.  If the capture
 * began on this stream, it ends, and the stream may be freed.  Otherwise the
 * capture becomes invalid. */
void cpu_capture_lose_locked(struct cpu_stream *stream);

/* ---- Interprocess events; see shared.h ---- */

/* An open file of the engine.  A forked child closes the files of its parent.
 * Otherwise a child could keep a record's pipe open after the parent has
 * ended, and other processes would not see that end. */
struct cpu_file {
    int number; /* -1 if closed */
    LIST_ENTRY(cpu_file) neighbours;
};

/* The thread that completes records of other processes, when their pipes show
 * that these are done. */
struct cpu_poller {
    struct cpu_file epoll; /* closed until it is needed */
    struct cpu_file doorbell;
};

/* ---- The engine ---- */

enum cpu_phase {
    CPU_OPEN,
    CPU_LAZY,     /* a schedule runs the work, not the threads */
    CPU_STOPPING, /* no more work starts; running work may end */
    CPU_STOPPED,  /* no wait begins any more */
};

struct cpu_device {
    struct cpu_stream default_stream;
    _Atomic int64_t known;           /* the default stream's; see cpu_slot */
    LIST_HEAD(, cpu_stream) streams; /* all streams, the newest first */
    LIST_HEAD(, cpu_stream) blocking;
    ps_status unreported; /* the failure of a stream that was freed */
    /* The failures of work from before the schedule that is explored: its own
     * work must not see them. */
    struct cpu_failures {
        ps_status unreported;
        ps_status of_default_stream;
        bool reported;
    } earlier;
    int partitioned; /* processors in partitions */
    /* For an emulated device, bytes of memory: in use; reserved, as a pool
     * would; the most that was ever reserved; and the threshold up to which
     * the pool keeps freed memory. */
    uint64_t used;
    uint64_t reserved;
    uint64_t peak;
    uint64_t threshold;
};

/* A table of the engine, which finds the engine by it. */
struct cpu_table {
    struct ps_backend base;
    struct cpu_engine *engine;
};

/* ---- Schedules that are explored ---- */

/* The functions that replace the threads while the engine is CPU_LAZY. */
struct cpu_driver {
    /* Release the lock.  If the call has queued work, first run the operations
     * that the schedule picks. */
    void (*release_locked)(struct cpu_engine *engine);
    /* Run work until the waiter is woken.  Statuses: those of
     * cpu_wait_locked. */
    ps_status (*wait_locked)(struct cpu_engine *engine,
                             struct cpu_waiter *waiter,
                             const struct cpu_goal *goal,
                             const struct cpu_limit *limit);
    /* A gate was opened whose function had been called during the schedule. */
    void (*opened_locked)(struct cpu_engine *engine);
    /* Add a note, if notes are kept.  Operations are given by ticket, and
     * steps as in cpu_record.step. */
    void (*note_locked)(struct cpu_engine *engine, enum ps_note_kind kind,
                        uint64_t first, uint64_t second);
    /* If notes are kept: the host is about to query, so run the operations
     * that the schedule picks.  Returns false for a query of the library
     * itself.  Such a query must report as pending what the schedule has run,
     * because otherwise the order of the operations would change what the
     * library does. */
    bool (*ask_locked)(struct cpu_engine *engine,
                       const struct ps_backend *backend);
    /* If notes are kept: the host has queried the stream's work or, if stream
     * is NULL, the record. */
    void (*asked_locked)(struct cpu_engine *engine,
                         const struct cpu_stream *stream,
                         const struct cpu_record *record);
    /* If notes are kept: a wait of the host is over. */
    void (*arrived_locked)(struct cpu_engine *engine);
    /* The stream is about to get its first work of the schedule. */
    void (*used_locked)(struct cpu_stream *stream);
};

extern const struct cpu_driver cpu_lazy_driver;
extern const struct cpu_clock cpu_lazy_clock;

struct cpu_lazy {
    struct ps_schedule asked;
    uint64_t random; /* the generator's state */
    uint64_t first;  /* the ticket before its first operation */
    uint64_t seen;   /* the latest ticket that a release has seen */
    uint64_t steps;  /* calls that queued work, plus operations run */
    uint64_t order;  /* a hash of the steps */
    uint64_t rank;   /* the host's, as a stream's */
    unsigned streams;
    unsigned polls;            /* queries that found work pending */
    struct cpu_stream *polled; /* of the latest such query; may be freed */
    bool busy;                 /* a thread is running an operation */
    bool ending;               /* the remaining work is being dropped */
    bool impatient;            /* do not wait for running callables */
    unsigned naps;      /* weighted naps of callables while the host runs */
    int64_t nap;        /* when a nap was last counted, in real time */
    unsigned callables; /* running callables and host functions */
    unsigned ending_callables; /* those that have called ending() */
    /* The streams whose host functions workers will run. */
    struct cpu_stream_list handed;
    unsigned handed_count;
    LIST_HEAD(, ps_blocked) blocked; /* the latest first */
    pthread_cond_t changed;          /* one of the fields above has changed */
    struct ps_schedule_entry *log;
    size_t logged;
    size_t taken;        /* how many of the streams of PS_GIVEN were used */
    bool queried;        /* the host's latest query found work pending */
    uint64_t step;       /* the latest step; grows over all schedules */
    uint64_t first_step; /* the value of `step` before the schedule */
    uint64_t ran;        /* the latest step that ran an operation */
    struct ps_note *notes;
    size_t noted;
    pthread_t thread;            /* it began the schedule */
    struct cpu_operation *freed; /* blocks kept, so no address is used twice */
    struct ps_deadlock deadlock;
};

struct cpu_engine {
    struct cpu_table table;      /* constant */
    struct cpu_table lazy_table; /* constant; has PS_BACKEND_SHARED */
    /* These two are changed with the lock held and also read without it.  They
     * lie far from the lock, because its cache line moves between threads. */
    _Atomic(enum cpu_phase) phase;
    /* Chunks of slots.  NULL from the first one that is not allocated. */
    _Atomic(struct cpu_slot *) chunks[CPU_CHUNKS];
    unsigned number;           /* constant; below CPU_ENGINES */
    pthread_key_t current_key; /* a thread's device; changed while unused */
    pthread_key_t thread_key;  /* constant; the key of a thread's cpu_thread */
    const struct cpu_clock *_Atomic clock; /* also read without the lock */
    const struct cpu_driver *driver;       /* constant */
    struct cpu_engine *next; /* the next engine; the list's lock guards it */

    pthread_mutex_t lock;
    pthread_condattr_t monotonic; /* constant; for all conditions */
    struct cpu_handles handles;
    union cpu_item *items; /* unused items */
    uint64_t tickets;      /* operations that were ever queued */
    uint64_t captured;     /* captures and captured operations so far */
    LIST_HEAD(, cpu_capture) captures;

    struct ps_notification *due; /* a ring */
    bool notifying;              /* a thread is calling due notifications */

    struct cpu_stream_list ready[CPU_PRIORITIES]; /* indexed by -priority */
    unsigned ready_count;
    struct cpu_stream *sleepers; /* a skew heap, with the earliest on top */

    unsigned worker_limit; /* constant */
    unsigned workers;      /* workers that were ever started */
    unsigned idle;         /* workers that wait for work */
    bool coming;           /* a worker is about to look for work */
    bool timer;            /* the timer thread was started */
    atomic_bool timing;    /* times were asked for at least once */
    unsigned running;      /* threads, and callers that serve streams */
    pthread_cond_t work;   /* there is work, or the phase has changed */
    pthread_cond_t early;  /* the first sleeper or the phase has changed */
    pthread_cond_t ended;  /* a running thread has ended */

    struct cpu_lazy lazy;

    LIST_HEAD(, cpu_file) files;
    struct cpu_poller poller;

    /* The bytes of each emulated device; 0 if the devices use the host's
     * memory.  Changed while the engine is unused. */
    uint64_t memory;
    void *ranges; /* a tree of emulated devices' blocks, by address */
    void *pinned; /* a tree of pinned ranges, by address */

    int device_count; /* constant */
    struct cpu_device devices[];
};

/* The initial priority of the stream with this number; of the host for 0. */
uint64_t cpu_lazy_rank(uint64_t seed, unsigned number);

/* Whether the calling thread runs a callable of this engine's streams. */
bool cpu_lazy_is_callable(const struct cpu_engine *engine);
/* Wait until every running callable waits itself. */
void cpu_lazy_await_locked(struct cpu_engine *engine);
/* Let threads continue that wait for something other than work. */
void cpu_lazy_wake_locked(struct cpu_engine *engine);
/* For struct ps_schedules: `ending` and `ended`. */
void cpu_lazy_ending_locked(struct cpu_engine *engine);
void cpu_lazy_ended_locked(struct cpu_engine *engine);

/* Add the calling thread to the list of blocked threads.  deadline: when its
 * wait expires.  goal: NULL if it is unknown.  The caller removes the
 * entry. */
void
cpu_lazy_block_locked(struct cpu_engine *engine, struct ps_blocked *blocked,
                      const struct cpu_goal *goal, int64_t deadline);

/* Call after cpu_lazy_block_locked.  If the thread is the host, the limits of
 * callables' waits may now expire.  When the host continues, they wait for it
 * again. */
void cpu_lazy_host_waits_locked(struct cpu_engine *engine,
                                const struct ps_blocked *blocked);

/* The virtual time, which all engines share.  cpu_lazy_begin_time sets it to
 * the real time, unless the schedule continues the time of the last one.
 * cpu_lazy_pass_time advances it to `time`, unless it is later already. */
void cpu_lazy_begin_time(bool continues);
int64_t cpu_lazy_now(void);
void cpu_lazy_pass_time(int64_t time);

/* See struct ps_schedules.  With PS_EXPIRED, nothing can run before the
 * deadline, and the time has not been advanced. */
void cpu_lazy_poll_locked(struct cpu_engine *engine);
enum ps_progress
cpu_lazy_advance_locked(struct cpu_engine *engine, int64_t deadline);

/* Add a note, if notes are kept.  Operations are given by ticket, and steps as
 * in cpu_record.step. */
void cpu_lazy_note_locked(struct cpu_engine *engine, enum ps_note_kind kind,
                          uint64_t first, uint64_t second);
void cpu_lazy_arrived_locked(struct cpu_engine *engine);

/* For struct ps_schedules: `hold` and `released`. */
void cpu_lazy_hold_locked(struct cpu_engine *engine);
void cpu_lazy_released_locked(struct cpu_engine *engine);

/* Returns whether there is pending work, with a description of it. */
bool cpu_lazy_pending_locked(struct cpu_engine *engine, char text[256]);

/* Run or drop the remaining work.  Returns false if callables still run at
 * `end`, in real time. */
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

/* The slot to which the bits of a handle point, whether the handle is valid or
 * not.  NULL if it is not allocated. */
static inline struct cpu_slot *
cpu_slot_at(const struct cpu_engine *engine, ps_handle handle)
{
    struct cpu_slot *slots = atomic_load_explicit(
        &engine->chunks[handle / CPU_CHUNK_BYTES % CPU_CHUNKS],
        memory_order_acquire);
    return slots != NULL ? &slots[handle / CPU_SLOT_BYTES % CPU_CHUNK_SLOTS]
                         : NULL;
}

/* Find the slot of a live handle with this tag and on this device.  NULL if
 * there is none. */
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

/* As cpu_slot_find_locked, without the lock: returns what is known of the
 * object, which was true at some time during the call.  Returns CPU_UNKNOWN
 * while the engine is CPU_LAZY, because a schedule must see each call. */
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
    /* `known` and `handle` belong to the same object.  The caller got the
     * handle from the call that created the object, and handles are never
     * reused. */
    return atomic_load_explicit(&slot->handle, memory_order_relaxed) ==
                       handle &&
                   handle % CPU_TAGS == tag &&
                   (device == home || device == CPU_ANY_DEVICE)
               ? known
               : CPU_UNKNOWN;
}

/* As cpu_slot_known: whether the stream is known to be CPU_DONE. */
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

/* Whether this is the default stream of a device that has blocking streams. */
static inline bool
cpu_stream_is_legacy_locked(const struct cpu_stream *stream)
{
    const struct cpu_device *device = &stream->engine->devices[stream->device];
    return stream == &device->default_stream && !LIST_EMPTY(&device->blocking);
}

/* Whether a schedule is explored and the stream has had no work of it. */
static inline bool
cpu_is_earlier(const struct cpu_stream *stream)
{
    return cpu_is_lazy(stream->engine) && stream->number == 0;
}

/* Whether a schedule is explored that keeps notes. */
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

/* Release the lock.  Wakes or starts a worker if there is work. */
void cpu_release(struct cpu_engine *engine);

/* Whether the calling thread must run notifications that are due. */
static inline bool
cpu_may_notify(const struct cpu_engine *engine)
{
    return engine->due != NULL && !engine->notifying && cpu_serving() == NULL;
}

/* Run the notifications that are due, if cpu_may_notify, and release the
 * lock. */
static inline void
cpu_unlock(struct cpu_engine *engine)
{
    if (cpu_may_notify(engine)) {
        cpu_notify_due_locked(engine);
    }
    cpu_release(engine);
}

/* ---- Members of the table ---- */

/* Declare a variable for the engine of a table, and hold the engine's lock
 * until the end of the block. */
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

/* Get the event's latest record.  For an interprocess event, it may be another
 * process's.  Statuses: PS_ERROR_INVALID_HANDLE, PS_ERROR_CAPTURED_EVENT, and
 * those of cpu_shared_refresh_locked. */
ps_status
cpu_event_record_locked(struct cpu_engine *engine, int device,
                        ps_handle handle, struct cpu_record **record);

/* Queue the operation, or capture it.  Statuses: PS_ERROR_INVALID_HANDLE, and
 * those of cpu_stream_enqueue_locked and cpu_capture_add_locked. */
ps_status
cpu_stream_enqueue(const struct ps_backend *backend, int device,
                   ps_handle handle, struct cpu_operation *operation);

/* An address range of memory. */
struct cpu_range {
    uintptr_t first;
    size_t nbytes; /* including padding */
    int device;
    bool counted; /* part of the device's used memory */
};

/* If the devices are emulated, add the range to the engine's tree, which tells
 * to which device an address belongs.  Returns PS_ERROR_OUT_OF_MEMORY also if
 * the range is counted and larger than the free memory. */
ps_status
cpu_range_add_locked(struct cpu_engine *engine, struct cpu_range *range);
void
cpu_range_remove_locked(struct cpu_engine *engine, struct cpu_range *range);

/* Overwrite the memory that a CPU_FREE frees. */
void cpu_memory_poison(struct cpu_operation *end);
/* The memory that a CPU_FREE frees. */
void *cpu_memory_of(struct cpu_operation *end, size_t *nbytes);

/* The number of the machine's processors. */
int cpu_host_processors(void);

/* The size of the machine's memory in bytes. */
uint64_t cpu_host_memory(void);

/* Each function sets the members of the table that its file implements. */
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
