/* The backends in this library, with one exported symbol each; and how to read
 * CUDA_VISIBLE_DEVICES, which all backends of CUDA devices use. */
#ifndef PYSTREAMS_BACKENDS_H
#define PYSTREAMS_BACKENDS_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* The backend over cudart, which is linked in statically.  A build without
 * CUDA does not have it. */
extern const struct ps_backend ps_cuda_backend;

/* The fault injection of every embedded CPU engine. */
extern const struct ps_faults ps_cpu_faults;

/* Create an embedded CPU engine with device_count (> 0) devices of the named
 * type.  It has the flag PS_BACKEND_EMULATED if the type is not PS_DEVICE_CPU;
 * then each device has `memory` bytes, or a share of the machine's memory if
 * that is 0.  Starts no thread before work is queued.  The table lives until
 * the process ends, and so must `name`.  Returns NULL if out of memory. */
const struct ps_backend *ps_cpu_backend(const char *name, int device_type,
                                        int device_count, uint64_t memory);

/* Reset an engine to its initial state, with `memory` bytes for each device;
 * all threads lose their current devices.  Returns false, and changes nothing,
 * if the engine has work, streams, events, graphs or memory, or explores a
 * schedule. */
bool ps_cpu_renew(const struct ps_backend *backend, uint64_t memory);

/* ---- Schedules ----
 *
 * A schedule replaces the threads of the CPU engines.  While it is explored,
 * calls of the host run the streams' operations, on the calling thread.  The
 * host is the program's own code.  The schedule decides whether an operation
 * runs next, and which, or whether the host continues.  Time is virtual. */

/* Statuses in addition to those of the contract. */
enum {
    /* The wait can never end.  ps_cpu_schedules.deadlock describes why. */
    PS_ERROR_DEADLOCK = 1020,
    /* The event is an interprocess event, which no schedule can order. */
    PS_ERROR_SCHEDULED = 1021,
};

enum ps_strategy {
    PS_LATE,   /* only operations that a wait needs */
    PS_EARLY,  /* everything as soon as it can run */
    PS_RANDOM, /* any operation that can run, or the host */
    PS_PCT,    /* whichever has the highest random priority */
    PS_HELD,   /* as PS_EARLY, but a list of operations as PS_LATE */
    PS_GIVEN,  /* the streams in a list, in turn; after its end, the host while
                  it can continue, else the operation that was queued first */
};

/* The byte that fills memory which was allocated and not written, or was
 * freed. */
enum { PS_SCHEDULE_POISON = 0xdb };

struct ps_schedule {
    enum ps_strategy strategy;
    uint64_t seed;
    /* PS_PCT: how often a priority changes, during the first `steps` steps. */
    unsigned changes;
    uint64_t steps;
    /* PS_HELD: the numbers of the operations that run as PS_LATE, in ascending
     * order.  PS_GIVEN: the numbers of the streams to serve; 0 means the
     * host. */
    const uint64_t *numbers;
    size_t count;
    /* Whether to keep a log of the operations, and whether to keep notes of
     * the steps' dependencies. */
    bool logged;
    bool noted;
    /* Whether virtual time goes on where the last schedule ended. */
    bool continues;
    /* is_internal: whether the calling thread's work is the library's own, and
     * so not a step of the program.  is_callable: whether the calling thread
     * runs a callable of a stream of this backend, or has not called ended()
     * after it. */
    bool (*is_internal)(void);
    bool (*is_callable)(const struct ps_backend *registered);
    /* NULL, or called after the operations `first` to `last` were queued, on
     * the thread that queued them, with no lock held.  stream is that of the
     * operation `last`; 0 if it is no longer known. */
    void (*queued)(uint64_t first, uint64_t last, int device_type, int device,
                   ps_handle stream);
};

/* A log entry: one operation that ran. */
struct ps_schedule_entry {
    const char *device_type;
    const char *operation;
    uint64_t number;  /* in the order of queueing, from 1 */
    uint64_t step;    /* the step in which it ran; 0 if it was dropped */
    int64_t time;     /* when it ran, in virtual nanoseconds */
    ps_handle handle; /* its stream's; 0 also for a graph's branch */
    int device;
    unsigned stream; /* its stream's number, from 1, by first use */
    bool overtaken; /* the host or another operation ran before it, although it
                       was ready */
};

/* Notes record the dependencies of a schedule's steps.  A note is about the
 * step that the latest PS_NOTE_STEP began, unless its comment says otherwise.
 * Operations and steps are numbered from 1.  The comments say what a note's
 * values are. */
enum ps_note_kind {
    /* Begins a step.  The number of its stream and of its operation, or 0 and
     * 0 for the host; then the number of operations that were queued
     * before. */
    PS_NOTE_STEP,
    PS_NOTE_READ, /* address and size that is read */
    PS_NOTE_WRITE,
    PS_NOTE_ANY,         /* the step may access any memory */
    PS_NOTE_PROGRAM,     /* the step runs the program's code; so does each host
                            step */
    PS_NOTE_DONE,        /* the number of an operation that ends now */
    PS_NOTE_ASKED,       /* the operation whose completion is queried */
    PS_NOTE_ASKED_STEP,  /* the step in which the queried work ended */
    PS_NOTE_AFTER_STEP,  /* the step that must precede this one */
    PS_NOTE_WAITED,      /* the operation for which the next host step waits */
    PS_NOTE_WAITED_STEP, /* the step for which the next host step waits */
    PS_NOTE_TIME,        /* the step reads the time */
    PS_NOTE_SLEEP,       /* the step lets time pass */
    PS_NOTE_BLOCK,       /* address and size of allocated memory */
    PS_NOTE_VIEW, /* address and size that the host may read from here on */
    PS_NOTE_VIEW_WRITES, /* address and size that the host may write from here
                            on */
    PS_NOTE_VIEW_END,
    PS_NOTE_ARGUMENT, /* address and size that the next callable gets */
    PS_NOTE_CALLABLE, /* the operation of a callable that was queued */
    PS_NOTE_LOOSE,    /* other orders exist that the notes do not show */
};

struct ps_note {
    enum ps_note_kind kind;
    uint64_t values[3];
};

struct ps_schedule_result {
    uint64_t operations; /* operations that were queued */
    uint64_t steps;      /* calls that queued work, plus operations that ran */
    uint64_t order; /* a hash: equal for equal steps, and very likely for no
                       others */
    struct ps_schedule_entry *log; /* the caller frees it */
    size_t logged;
    struct ps_note *notes; /* the caller frees it */
    size_t noted;
    bool worked; /* an engine that kept notes had work */
    bool mixed;  /* two engines had work: their steps have no common order */
};

/* The result of an attempt to run an operation.  If several engines are tried,
 * the first result in this order counts. */
enum ps_progress {
    PS_RAN,     /* an operation ran, or another thread has made progress */
    PS_RUNNING, /* nothing can run now, but a callable or the host is running,
                   or another thread continues first */
    PS_EXPIRED, /* nothing can run before the caller's limit, which expires
                   next */
    PS_STUCK,   /* the caller and all callables wait without a limit */
    PS_NOTHING, /* there is nothing to run */
};

/* A deadlock.  The caller waits for the first stream, and each stream for the
 * next one.  The last stream waits for its callable, and the callable waits
 * for work behind itself.  If there are no streams, the caller waits for a
 * callable. */
struct ps_deadlock {
    const char *name; /* the name of the device type */
    int device_type;
    int count;
    struct {
        ps_handle handle;
        int device;
        unsigned number; /* as in ps_schedule_entry */
    } streams[8];
    uint64_t operation; /* the callable's number */
};

/* A blocked thread, from the view of one engine. */
struct ps_blocked {
    const void *goal; /* what it waits for, a cpu_goal; or NULL */
    bool callable;    /* it is a callable's thread */
    bool holds;       /* it waits in hold() */
    bool parked;      /* it has found nothing to run */
    bool woken;
    bool listed;      /* it is in the engine's list of blocked threads */
    int64_t deadline; /* when its wait expires, in virtual time */
    LIST_ENTRY(ps_blocked) neighbours;
};

struct ps_sleep {
    unsigned forks;
    int64_t began;                /* in virtual time */
    struct ps_blocked blocked[8]; /* by the engine's number */
};

/* All functions are called without the GIL, except those whose comment says
 * otherwise. */
struct ps_schedules {
    /* Returns the table through which core must call a CPU engine:
     * `registered` itself, or the schedule's table if `explored`.  NULL for a
     * backend that is not a CPU engine.  Called with or without the GIL. */
    const struct ps_backend *(*table)(const struct ps_backend *registered,
                                      bool explored);

    /* Begin to explore a schedule on every CPU engine.  Returns
     * PS_ERROR_NOT_READY, and describes the work in `pending`, if an engine
     * has pending work.  Also PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*begin)(const struct ps_schedule *schedule, char pending[256]);

    /* Run the remaining work, or drop it if `drop` is true, and end the
     * schedule.  The engines use threads again afterwards.  Returns
     * PS_ERROR_TIMED_OUT if callables still run; then the schedule goes on. */
    ps_status (*end)(bool drop, int64_t timeout_ns,
                     struct ps_schedule_result *result);

    /* Whether a schedule is explored.  Called with or without the GIL. */
    bool (*is_on)(void);

    /* The calling thread has queried work that is pending.  The schedule may
     * run operations. */
    void (*poll)(void);

    /* The calling thread waits for something other than work of a stream or an
     * event, such as a Future, for at most *left_ns of virtual time.  Runs one
     * operation, and subtracts the virtual time that it takes from
     * *left_ns. */
    enum ps_progress (*advance)(int64_t *left_ns);

    /* sleep() and wake() enclose a sleep of the calling thread in a wait like
     * that of advance().  The wait expires after left_ns of virtual time.
     * wake() subtracts the virtual time that has passed from *left_ns.  seen:
     * the value of endings() before the thread found that it has to wait on.
     * known: whether only work and callables can end the wait. */
    void (*sleep)(struct ps_sleep *sleep, bool known, unsigned seen,
                  int64_t left_ns);
    void (*wake)(struct ps_sleep *sleep, int64_t *left_ns);

    /* Returns the number of callables that have ended. */
    unsigned (*endings)(void);

    /* A wait like that of advance() is over. */
    void (*arrived)(void);

    /* The calling thread has run its callable.  It calls ending() before it
     * opens the gate, and ended() after its clean-up; other threads continue
     * only after ended().  The thread counts as a callable's until then.
     * ending() is called with or without the GIL. */
    void (*ending)(void);
    void (*ended)(void);

    /* The calling thread's callable only keeps its stream waiting.  Sleep
     * until another thread calls released(), or for a while.  The schedule
     * does not wait for this callable. */
    void (*hold)(void);
    /* Wake the callables that are in hold(), and let them continue first. */
    void (*released)(void);

    /* Whether the schedule keeps notes.  Called with or without the GIL. */
    bool (*is_noted)(void);

    /* Add a note to the current step. */
    void (*note)(enum ps_note_kind kind, uintptr_t first, size_t second);

    /* Describe the deadlock behind the latest PS_ERROR_DEADLOCK or
     * PS_STUCK. */
    void (*deadlock)(struct ps_deadlock *deadlock);
};

/* The schedules of all CPU engines together. */
extern const struct ps_schedules ps_cpu_schedules;

/* Returns the index of the only device whose UUID begins with the text; -1 if
 * there is none, or more than one. */
typedef int
uuid_finder(const void *devices, int total, const char *text, size_t length);

/* Returns the index of the device that an item of the list names, by its
 * number or its UUID; -1 if it names none. */
static inline int
visible_index(const char *item, int uuids, int total, uuid_finder *find,
              const void *devices)
{
    size_t length = strcspn(item, ",");
    char *end;
    if (uuids) {
        return find != NULL && length > strlen("GPU-")
                   ? find(devices, total, item, length)
                   : -1;
    }
    long index = strtol(item, &end, 10);
    return end != item && index >= 0 && index < total ? (int)index : -1;
}

enum { MOST_VISIBLE = 1024 };

/* Returns how many devices CUDA_VISIBLE_DEVICES leaves visible, and sets a
 * mask of them.  At most MOST_VISIBLE devices are considered.  The variable's
 * list ends before the first item that names no device, or is of another kind
 * (number or UUID) than the first item.  If the list names a device twice, no
 * device is visible.  Returns -1 if only the driver can tell.  find is NULL if
 * the devices have no UUIDs. */
static inline int
visible_devices(int total, uuid_finder *find, const void *devices,
                uint64_t seen[MOST_VISIBLE / 64])
{
    const char *item = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    memset(seen, item == NULL ? 0xff : 0, MOST_VISIBLE / 8);
    if (item == NULL) {
        return total;
    }
    if (strncmp(item, "MIG-", 4) == 0) {
        return -1;
    }
    int uuids = strncmp(item, "GPU-", 4) == 0;
    for (;; item++) {
        int index = visible_index(item, uuids, total, find, devices);
        if (index < 0) {
            return count;
        }
        uint64_t bit = UINT64_C(1) << index % 64;
        if (seen[index / 64] & bit) {
            return 0;
        }
        seen[index / 64] |= bit;
        count++;
        item += strcspn(item, ",");
        if (*item == '\0') {
            return count;
        }
    }
}

#endif
