/* The backends in this library, one exported symbol each, and the reading of
 * CUDA_VISIBLE_DEVICES, which backends of CUDA devices share. */
#ifndef PYSTREAMS_BACKENDS_H
#define PYSTREAMS_BACKENDS_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* cudart, linked in; absent from a build without CUDA. */
extern const struct ps_backend ps_cuda_backend;

/* The fault injection of every embedded CPU engine. */
extern const struct ps_faults ps_cpu_faults;

/* A new embedded CPU engine that shows device_count (> 0) devices of the named
 * type; marked PS_BACKEND_EMULATED if the type is not PS_DEVICE_CPU.  Each of
 * its devices then has `memory` bytes; 0: a share of the machine's.  Starts no
 * thread before work is queued.  The table lives until the process ends; so
 * must `name`.  NULL when out of memory. */
const struct ps_backend *ps_cpu_backend(const char *name, int device_type,
                                        int device_count, uint64_t memory);

/* Reset an engine, with `memory` bytes for each device; every thread's current
 * device is forgotten.  False, with nothing changed, if it has work, streams,
 * events, graphs or memory, or explores a schedule. */
bool ps_cpu_renew(const struct ps_backend *backend, uint64_t memory);

/* ---- Schedules ----
 *
 * While a schedule is explored, no thread of the CPU engines serves streams:
 * the host's calls do, on the calling thread.  The schedule decides which
 * operation is next, or that the host goes on.  Time is virtual. */

/* Statuses of its own, next to the contract's. */
enum {
    /* The wait can never end; ps_cpu_schedules.deadlock describes it. */
    PS_ERROR_DEADLOCK = 1020,
    /* An event of several processes, which no schedule can order. */
    PS_ERROR_SCHEDULED = 1021,
};

enum ps_strategy {
    PS_LATE,   /* only operations that a wait of the host needs */
    PS_EARLY,  /* everything as soon as it can run */
    PS_RANDOM, /* any operation that can run, or the host */
    PS_PCT,    /* the one with the highest of random priorities */
    PS_HELD,   /* as PS_EARLY, but some operations as PS_LATE */
    PS_GIVEN,  /* the streams that are listed, in turn; then the host while it
                  can go on, or the operation that was queued first */
};

/* The byte in memory that was not written, or was freed. */
enum { PS_SCHEDULE_POISON = 0xdb };

struct ps_schedule {
    enum ps_strategy strategy;
    uint64_t seed;
    /* PS_PCT: how often a priority changes, within so many first steps. */
    unsigned changes;
    uint64_t steps;
    /* PS_HELD: the numbers of the operations run as PS_LATE, ascending.
     * PS_GIVEN: the numbers of the streams; 0 is the host. */
    const uint64_t *numbers;
    size_t count;
    /* Whether to keep a log, and whether to keep notes. */
    bool logged;
    bool noted;
    /* Whether virtual time goes on where the last schedule ended. */
    bool continues;
    /* Whether the calling thread queues work internally, which is no step of
     * the program; whether it runs a callable of a stream of the backend, up
     * to ended(). */
    bool (*is_internal)(void);
    bool (*is_callable)(const struct ps_backend *registered);
    /* NULL, or called after operations with these numbers were queued, on the
     * queueing thread, with no lock held.  stream is that of the last
     * operation, 0 if it is no longer known. */
    void (*queued)(uint64_t first, uint64_t last, int device_type, int device,
                   ps_handle stream);
};

/* One operation that ran. */
struct ps_schedule_entry {
    const char *device_type;
    const char *operation;
    uint64_t number;  /* of the operations in the order of queueing, from 1 */
    uint64_t step;    /* when it ran; 0 if it was dropped */
    int64_t time;     /* likewise, in virtual nanoseconds */
    ps_handle handle; /* the stream's; 0 also for a branch of a graph */
    int device;
    unsigned stream; /* a number from 1, in the order of first use */
    bool overtaken;  /* the host or another operation went on before it */
};

/* The dependencies of a schedule's steps.  A note is about the step that the
 * latest PS_NOTE_STEP began, unless stated otherwise.  Operations and steps
 * are numbered from 1. */
enum ps_note_kind {
    /* A stream's number and the operation's, or 0 and 0 for the host; then how
     * many operations were queued before. */
    PS_NOTE_STEP,
    PS_NOTE_READ, /* an address and a number of bytes */
    PS_NOTE_WRITE,
    PS_NOTE_ANY,         /* it may access all memory */
    PS_NOTE_PROGRAM,     /* runs the program's code, as each host step does */
    PS_NOTE_DONE,        /* an operation, which ends in this step */
    PS_NOTE_ASKED,       /* an operation: a query whether it was done */
    PS_NOTE_ASKED_STEP,  /* likewise the step in which it ended */
    PS_NOTE_AFTER_STEP,  /* a step without which this one is impossible */
    PS_NOTE_WAITED,      /* an operation that the host's next step waits for */
    PS_NOTE_WAITED_STEP, /* likewise a step */
    PS_NOTE_TIME,        /* it reads the time */
    PS_NOTE_SLEEP,       /* time passes */
    PS_NOTE_BLOCK,       /* memory was allocated: address and bytes */
    PS_NOTE_VIEW,        /* the host may access address and bytes from here */
    PS_NOTE_VIEW_WRITES, /* likewise */
    PS_NOTE_VIEW_END,
    PS_NOTE_ARGUMENT, /* address and bytes that the next callable gets */
    PS_NOTE_CALLABLE, /* an operation: the callable that was queued */
    PS_NOTE_LOOSE,    /* there may be orders that the notes do not show */
};

struct ps_note {
    enum ps_note_kind kind;
    uint64_t values[3];
};

struct ps_schedule_result {
    uint64_t operations; /* queued */
    uint64_t steps;      /* calls that queued, and operations that ran */
    uint64_t order;      /* equal if and, in all likelihood, only if the steps
                            were the same */
    struct ps_schedule_entry *log; /* to be freed */
    size_t logged;
    struct ps_note *notes; /* likewise */
    size_t noted;
    bool worked; /* an engine with notes had work */
    bool mixed;  /* more than one had: their steps are in no common order */
};

/* The result of an attempt to run an operation.  Of the results of several
 * engines, the first in this order counts. */
enum ps_progress {
    PS_RAN,     /* one ran, or another thread has made progress */
    PS_RUNNING, /* none can, but a callable is running, or another thread goes
                   on first: its wait expires, its stream is released, or it
                   is the host and runs */
    PS_EXPIRED, /* none can before the limit, which expires next */
    PS_STUCK, /* all callables wait without a limit, and so does the caller */
    PS_NOTHING, /* there is none */
};

/* A deadlock: the caller waits for the first stream, each stream for the next,
 * and the last one for its callable, which waits for work behind it.  Without
 * streams, the caller waits for a callable. */
struct ps_deadlock {
    const char *name; /* of the device type */
    int device_type;
    int count;
    struct {
        ps_handle handle;
        int device;
        unsigned number; /* as in ps_schedule_entry */
    } streams[8];
    uint64_t operation; /* the callable's number */
};

/* A thread that is blocked, as one engine sees it. */
struct ps_blocked {
    const void *goal; /* NULL if it is unknown */
    bool callable;    /* it runs one */
    bool holds;       /* its callable holds its stream for the program */
    bool parked;      /* it has found nothing to run */
    bool woken;
    bool listed;      /* among the engine's blocked threads */
    int64_t deadline; /* of its wait, in virtual time */
    LIST_ENTRY(ps_blocked) neighbours;
};

struct ps_sleep {
    unsigned forks;
    int64_t began;                /* in virtual time */
    struct ps_blocked blocked[8]; /* by engine */
};

/* The functions are called without the GIL, unless they say otherwise. */
struct ps_schedules {
    /* The table that a CPU engine's calls go through: `registered` itself
     * unless `explored`; NULL for another backend's table.  With or without
     * the GIL. */
    const struct ps_backend *(*table)(const struct ps_backend *registered,
                                      bool explored);

    /* Begin to explore on every CPU engine.
     * Statuses: PS_ERROR_NOT_READY if one has pending work, and a description;
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*begin)(const struct ps_schedule *schedule, char pending[256]);

    /* Run the remaining work, without its effects if `drop`, and end.  Then
     * the engines have threads again.
     * PS_ERROR_TIMED_OUT: callables still run, and the schedule is still
     * on. */
    ps_status (*end)(bool drop, int64_t timeout_ns,
                     struct ps_schedule_result *result);

    /* Whether a schedule is explored.  With or without the GIL. */
    bool (*is_on)(void);

    /* The calling thread polls: the schedule may run operations. */
    void (*poll)(void);

    /* The calling thread waits for something other than work of a stream or an
     * event, such as a Future, for *left_ns of virtual time at most.  Run one
     * operation, and subtract its time from *left_ns. */
    enum ps_progress (*advance)(int64_t *left_ns);

    /* The calling thread begins to sleep in such a wait, which expires after
     * left_ns of virtual time; it stops.  The second function subtracts the
     * time that has passed.  seen: how many callables had ended before the
     * thread found that its wait goes on.  known: nothing but work and
     * callables can end the wait. */
    void (*sleep)(struct ps_sleep *sleep, bool known, unsigned seen,
                  int64_t left_ns);
    void (*wake)(struct ps_sleep *sleep, int64_t *left_ns);

    /* How many callables have ended. */
    unsigned (*endings)(void);

    /* Such a wait is over. */
    void (*arrived)(void);

    /* The calling thread has run its callable and is about to open the gate.
     * Other threads go on only when it calls ended(), still as a callable's
     * thread.  ending: with or without the GIL. */
    void (*ending)(void);
    void (*ended)(void);

    /* The calling thread's callable holds its stream: sleep until another
     * thread calls released(), or for a while.  The schedule does not wait for
     * it. */
    void (*hold)(void);
    /* Wake the callables that hold a stream, and let them go first. */
    void (*released)(void);

    /* Whether notes are kept.  With or without the GIL. */
    bool (*is_noted)(void);

    /* Add a note to the current step. */
    void (*note)(enum ps_note_kind kind, uintptr_t first, size_t second);

    /* Describe the latest PS_ERROR_DEADLOCK or PS_STUCK. */
    void (*deadlock)(struct ps_deadlock *deadlock);
};

/* The schedules of all CPU engines together. */
extern const struct ps_schedules ps_cpu_schedules;

/* The index of the one device whose UUID begins with the text; -1 when there
 * is none, or several. */
typedef int
uuid_finder(const void *devices, int total, const char *text, size_t length);

/* The index of the device that an item names, by its number or its UUID; -1 if
 * it names none. */
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

/* The number of devices that the variable leaves visible, of at most
 * MOST_VISIBLE, and a mask of them.  The list ends at the first item that
 * names no device, or that is of another kind (number or UUID) than the first;
 * it is empty if it names a device twice.  -1 if only the driver knows.  find:
 * NULL if the devices have no UUIDs. */
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
