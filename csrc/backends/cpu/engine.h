/* The insides of the embedded CPU engine: a small CUDA on threads.
 *
 * One lock per engine guards every field below that does not say otherwise.
 * It is released only around copies, fills, host functions and frees, and
 * while a thread waits.  No other lock is ever taken under it. */
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

#include <pystreams/backend.h>

enum {
    CPU_ENGINES = 8,         /* engines in one process */
    CPU_WORKERS = 8,         /* threads of one engine */
    CPU_PRIORITIES = 6,      /* 0 to -5 */
    CPU_QUEUE_LIMIT = 65536, /* operations of one stream */
};

#define CPU_FOREVER INT64_MAX

/* ---- Items of one size, never given back to malloc ---- */

struct cpu_item {
    struct cpu_item *next;
};

struct cpu_pool {
    size_t size; /* bytes of an item */
    struct cpu_item *free;
    struct cpu_item *chunks;
};

/* NULL when out of memory. */
void *cpu_pool_take_locked(struct cpu_pool *pool);
void cpu_pool_give_locked(struct cpu_pool *pool, void *item);
/* Take every item back, whoever has it. */
void cpu_pool_reset_locked(struct cpu_pool *pool);

/* ---- Handles ---- */

enum cpu_tag { CPU_STREAM = 0, CPU_EVENT = 1 };

struct cpu_slot {
    ps_handle handle; /* 0 in a free slot */
    void *object;
    uint32_t generation; /* of the latest handle */
    uint32_t next_free;
};

struct cpu_handles {
    struct cpu_slot *slots;
    uint32_t count;    /* slots ever used, and slot 0 */
    uint32_t capacity; /* slots allocated */
    uint32_t first_free;
};

struct cpu_engine;

/* A handle for an object made by malloc; 0 when out of memory. */
ps_handle cpu_handle_create_locked(struct cpu_engine *engine, enum cpu_tag tag,
                                   void *object);
/* The object; NULL unless exactly this handle is live with this tag. */
void *cpu_handle_find_locked(struct cpu_engine *engine, enum cpu_tag tag,
                             ps_handle handle);
void cpu_handle_destroy_locked(struct cpu_engine *engine, ps_handle handle);
/* Free all objects and make all handles stale. */
void cpu_handles_reset_locked(struct cpu_engine *engine);

/* ---- Streams ---- */

/* What a stream is doing.  Whoever made it RUNNING owns its head until it
 * settles the stream; others only append.
 *
 *             head can run              a worker takes it
 *   IDLE ---------------------> READY ---------------------> RUNNING
 *    |                          ^   ^                         | | |
 *    |              record done |   '-------------------------' | |
 *    |          or time reached |          turn is over         | |
 *    |                          |                               | |
 *    '----------------------> PARKED <--------------------------' |
 *          head must wait                   head must wait        |
 *                                                                 |
 *   IDLE <--------------------------------------------------------'
 *          queue empty
 *
 * A small copy on an IDLE stream makes it RUNNING on the calling thread. */
enum cpu_state { CPU_IDLE, CPU_READY, CPU_RUNNING, CPU_PARKED };

enum cpu_kind {
    /* Done under the lock. */
    CPU_RECORD,
    CPU_WAIT,
    CPU_SLEEP,
    CPU_FAIL,
    /* Done with the lock released. */
    CPU_COPY,
    CPU_FILL,
    CPU_CALL,
    CPU_FREE,
};

/* Queued work; from the pool, but for CPU_FREE, whose operation is the head
 * of the block that it frees. */
struct cpu_operation {
    struct cpu_operation *next;
    enum cpu_kind kind;
    union {
        struct cpu_record *record; /* CPU_RECORD, CPU_WAIT; a reference */
        ps_status status;          /* CPU_FAIL */
        struct {
            uint64_t duration; /* nanoseconds */
            bool started;
        } sleep;
        struct {
            void *destination;
            const void *source;
            size_t nbytes;
        } copy;
        struct {
            void *destination;
            size_t nbytes;
            uint8_t value;
        } fill;
        struct {
            ps_host_function function;
            void *argument;
        } call;
    };
};

struct cpu_stream {
    struct cpu_engine *engine; /* constant */
    int device;                /* constant */
    int priority;              /* constant */
    ps_handle handle;          /* constant; 0 for a default stream */
    enum cpu_state state;
    ps_status status; /* the first failure; changed by the owner */
    bool told;        /* a synchronize returned status */
    bool destroyed;   /* freed once idle and not pinned */
    unsigned pins;    /* threads that hold on to it while they wait */
    struct cpu_operation *first;
    struct cpu_operation **tail;
    uint64_t queued; /* operations ever queued */
    /* Operations ever done.  Advanced by the owner, also without the lock,
     * and then compared with watch; see stream_wait_locked. */
    _Atomic uint64_t done;
    _Atomic uint64_t watch;  /* the least done that a thread waits for */
    struct cpu_stream *next; /* in a cpu_stream_list */
    struct cpu_stream *older;
    struct cpu_stream *newer; /* on the device */
};

/* Streams in order; a stream is in one list at most. */
struct cpu_stream_list {
    struct cpu_stream *first;
    struct cpu_stream *last;
};

/* Make a stream of the device, IDLE, and add it to the device's. */
void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority);
/* The stream of the handle, the device's default stream for 0; NULL if there
 * is no such stream on the device. */
struct cpu_stream *cpu_stream_find_locked(struct cpu_engine *engine,
                                          int device, ps_handle handle);
/* Lock the engine and find the stream; NULL, and nothing locked, if there is
 * none. */
struct cpu_stream *cpu_stream_lock(const struct ps_backend *backend,
                                   int device, ps_handle handle);
/* Queue a copy of the operation.
 * Statuses: PS_ERROR_NOT_READY (full), PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN; nothing is queued then. */
ps_status cpu_stream_append_locked(struct cpu_stream *stream,
                                   const struct cpu_operation *operation);
/* Queue the operation itself, room or not. */
void cpu_stream_push_locked(struct cpu_stream *stream,
                            struct cpu_operation *operation);
/* Give up ownership: the stream becomes READY, PARKED, or IDLE, when it may
 * be freed. */
void cpu_stream_settle_locked(struct cpu_stream *stream);
/* Park a stream whose head must wait; false if it need not. */
bool cpu_stream_park_locked(struct cpu_stream *stream);
void cpu_stream_ready_locked(struct cpu_stream *stream);
void cpu_stream_fail_locked(struct cpu_stream *stream, ps_status status);
/* Count an operation of an owned stream as done, and wake who waited for it.
 * The second form is for an owner without the lock. */
void cpu_stream_advance_locked(struct cpu_stream *stream);
void cpu_stream_advance(struct cpu_stream *stream);

void cpu_list_append(struct cpu_stream_list *list, struct cpu_stream *stream);
struct cpu_stream *cpu_list_take(struct cpu_stream_list *list);

/* ---- Events ---- */

/* One record of an event.  It is the event's latest, or referenced by queued
 * operations or waiting threads, or in the pool. */
struct cpu_record {
    unsigned refs;
    bool timed; /* time is wanted */
    bool done;
    ps_status status; /* the failure of the work before it, once done */
    int64_t time;     /* when it was done, in nanoseconds */
    struct cpu_stream_list parked;
};

void cpu_record_complete_locked(struct cpu_engine *engine,
                                struct cpu_record *record, ps_status status);
void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record);

/* ---- Waiting threads ---- */

/* A thread that waits for an object to reach a target; on its stack. */
struct cpu_waiter {
    const void *object;
    uint64_t target;
    bool woken;
    pthread_cond_t wake;
    struct cpu_waiter *next;
    struct cpu_waiter **link;
};

/* Wait until the object is said to have reached the target.
 * Statuses: PS_ERROR_NOT_READY at the deadline, PS_ERROR_SHUTTING_DOWN. */
ps_status cpu_wait_locked(struct cpu_engine *engine, const void *object,
                          uint64_t target, int64_t deadline);
/* Say so, and return the least target still waited for. */
uint64_t cpu_wake_locked(struct cpu_engine *engine, const void *object,
                         uint64_t reached);
/* Pass a moment in a loop that looks for a change. */
void cpu_relax(int times);
/* The time timeout_ns from now. */
int64_t cpu_deadline(struct cpu_engine *engine, uint64_t timeout_ns);

/* ---- Workers ---- */

/* The first seam: which ready stream is served next. */
struct cpu_scheduler {
    /* Take one out of engine->ready; NULL when there is none. */
    struct cpu_stream *(*next_locked)(struct cpu_engine *engine);
};

/* The second seam: what time it is, in nanoseconds. */
struct cpu_clock {
    int64_t (*now)(struct cpu_engine *engine);
    /* Release the lock and wait until the condition is signalled (or for no
     * reason); false once the deadline has passed. */
    bool (*wait_locked)(struct cpu_engine *engine, pthread_cond_t *condition,
                        int64_t deadline);
};

extern const struct cpu_scheduler cpu_threaded_scheduler;
extern const struct cpu_clock cpu_monotonic_clock;

struct cpu_worker {
    struct cpu_engine *engine; /* constant */
    pthread_t thread;
    pthread_cond_t wake;
    bool idle;        /* in engine->idle */
    bool ended;       /* touches the engine no more, can be joined */
    int64_t deadline; /* until when it sleeps, while idle */
    struct cpu_worker *next;
};

/* A parked stream whose head sleeps. */
struct cpu_timer {
    int64_t deadline;
    struct cpu_stream *stream;
};

/* Make sure that queued work will be served.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status cpu_engine_staff_locked(struct cpu_engine *engine);
/* Wake or start as many workers as there is work for.  Called by whoever made
 * work and will not look for it before releasing the lock. */
void cpu_engine_rouse_locked(struct cpu_engine *engine);
/* Room for the timers of so many streams; false when out of memory. */
bool cpu_timers_reserve_locked(struct cpu_engine *engine, size_t streams);
void cpu_timers_add_locked(struct cpu_stream *stream, uint64_t duration);
/* Execute an operation of the unlocked kinds. */
void cpu_operation_run(struct cpu_operation *operation);

/* The stream whose work the calling thread executes, or NULL. */
extern _Thread_local const struct cpu_stream *cpu_serving;

/* ---- The engine ---- */

enum cpu_phase {
    CPU_OPEN,
    CPU_STOPPING, /* no more work starts; waits for what runs */
    CPU_STOPPED,  /* no wait begins any more */
};

struct cpu_device {
    struct cpu_stream standard; /* stream 0 */
    struct cpu_stream *streams; /* all, the newest first */
    ps_status lost;             /* failure of a stream that is gone */
};

struct cpu_engine {
    struct ps_backend table;               /* constant */
    unsigned number;                       /* constant; below CPU_ENGINES */
    const struct cpu_scheduler *scheduler; /* constant */
    const struct cpu_clock *clock;         /* constant */
    struct cpu_engine *next;               /* guarded by the list's lock */

    pthread_mutex_t lock;
    pthread_condattr_t monotonic; /* constant; for every condition */
    _Atomic int phase;            /* enum cpu_phase; read without the lock */
    unsigned forks;               /* times this process became a child */
    struct cpu_handles handles;
    struct cpu_pool operations;
    struct cpu_pool records;
    struct cpu_waiter *waiters;

    struct cpu_stream_list ready[CPU_PRIORITIES]; /* by -priority */
    _Atomic unsigned ready_count;                 /* read without the lock */
    struct cpu_timer *timers;                     /* a heap */
    _Atomic size_t timer_count;                   /* read without the lock */
    size_t timer_capacity;                        /* at least stream_count */
    size_t stream_count;

    struct cpu_worker workers[CPU_WORKERS];
    unsigned worker_limit;   /* constant */
    unsigned worker_count;   /* started, ever */
    unsigned worker_running; /* started and not ended */
    unsigned woken;          /* workers that will look for work unasked */
    struct cpu_worker *idle;
    pthread_cond_t ended; /* a worker has ended */

    int device_count; /* constant */
    struct cpu_device devices[];
};

static inline struct cpu_engine *
cpu_engine_of(const struct ps_backend *backend)
{
    return (struct cpu_engine *)((char *)backend -
                                 offsetof(struct cpu_engine, table));
}

/* Lock what another thread holds: it will not for long. */
void cpu_lock_held(struct cpu_engine *engine);

static inline void
cpu_lock(struct cpu_engine *engine)
{
    if (pthread_mutex_trylock(&engine->lock))
        cpu_lock_held(engine);
}

static inline void
cpu_unlock(struct cpu_engine *engine)
{
    pthread_mutex_unlock(&engine->lock);
}

/* Each file fills in the members of the table that it implements. */
void cpu_device_members(struct ps_backend *table);
void cpu_stream_members(struct ps_backend *table);
void cpu_event_members(struct ps_backend *table);
void cpu_memory_members(struct ps_backend *table);
void cpu_worker_members(struct ps_backend *table);

#endif
