/* Declares the backends in this library, and the functions that control the
 * schedules of the CPU engines (see "Schedules" below).  Also contains a
 * parser of CUDA_VISIBLE_DEVICES; the CUDA backend and the emulation of CUDA
 * devices share this parser. */
#ifndef PYSTREAMS_BACKENDS_H
#define PYSTREAMS_BACKENDS_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* The backend that calls the CUDA runtime (cudart), which is linked in
 * statically.  A build without CUDA does not have this backend. */
extern const struct ps_backend ps_cuda_backend;

/* The fault injection of all CPU engines; see faults.h. */
extern const struct ps_faults ps_cpu_faults;

/* Create a CPU engine, a backend that runs work on threads of this process,
 * with device_count (> 0) devices of the type.  If the type is not
 * PS_DEVICE_CPU, the devices are emulated: the engine has the flag
 * PS_BACKEND_EMULATED, and each device has `memory` bytes.  If `memory` is 0,
 * the devices get equal shares of half of the machine's memory.  Starts no
 * thread before work is queued.  The engine is never freed, so `name` must
 * stay valid until the process ends.  Returns NULL if out of memory, if the
 * process has too many engines, or if pthread_key_create has no key left. */
const struct ps_backend *ps_cpu_backend(const char *name, int device_type,
                                        int device_count, uint64_t memory);

/* Reset an engine of emulated devices to its initial state.  Each device then
 * has `memory` (> 0) bytes, and device 0 is current on every thread.  Before
 * the reset, destroys the idle default streams of threads
 * (PS_STREAM_PER_THREAD).  Returns false without a reset if the engine still
 * has work, streams, events, graphs, partitions or memory, if it is shutting
 * down, if a schedule is being explored, or if pthread_key_create has no key
 * left. */
bool ps_cpu_renew(const struct ps_backend *backend, uint64_t memory);

/* ---- Schedules ----
 *
 * A schedule decides the order in which operations run.  While a schedule is
 * explored, from begin() to end() of struct ps_schedules, the CPU engines' own
 * threads run only host functions.  All other operations run on the threads of
 * the program, in its calls.  In each call that queues work or waits for it,
 * the schedule chooses which operation runs next, again and again, until it
 * lets the program continue or the wait is over.  Time is virtual: a sleep
 * takes no real time.
 *
 * In the comments below, "a callable" is a Python callable that was submitted
 * to a stream.  It runs on a thread of its own, while its stream waits at a
 * gate (see stream_gate in backend.h).  "The host" is the rest of the
 * program's code.  "A step" is what runs between two choices of the schedule:
 * either one operation, or code of the host. */

/* Statuses in addition to those of backend.h. */
enum {
    /* The wait can never end. */
    PS_ERROR_DEADLOCK = 1020,
    /* The event or the memory is shared with other processes.  No schedule can
     * order its uses, because the other processes use it, too. */
    PS_ERROR_SCHEDULED = 1021,
};

enum ps_strategy {
    /* An operation runs only when the program waits for it, or for an
     * operation that must run after it. */
    PS_LATE,
    /* Every operation runs as soon as it can. */
    PS_EARLY,
    /* For each step, either an operation that can run or the host is chosen at
     * random. */
    PS_RANDOM,
    /* Probabilistic concurrency testing.  Streams and the host have random
     * priorities.  Of those that can run, the one with the highest priority
     * runs next. */
    PS_PCT,
    /* The operations in a list (ps_schedule.numbers) run as in PS_LATE, all
     * others as in PS_EARLY. */
    PS_HELD,
    /* For each step, a list (ps_schedule.numbers) says which stream runs, or
     * that the host runs.  After the end of the list, the host runs if it can
     * continue.  Otherwise the operation that was queued first runs. */
    PS_GIVEN,
};

/* While a schedule is explored, memory is filled with this byte when it is
 * allocated and when it is freed. */
enum { PS_SCHEDULE_POISON = 0xdb };

struct ps_schedule {
    enum ps_strategy strategy;
    uint64_t seed;
    /* Only for PS_PCT.  Of the first `steps` steps, `changes` are chosen at
     * random.  The stream or host that takes such a step gets a low
     * priority. */
    unsigned changes;
    uint64_t steps;
    /* For PS_HELD: the numbers of the operations that run as in PS_LATE, in
     * ascending order.  For PS_GIVEN: for each step, the number of the stream
     * that runs; 0 means the host. */
    const uint64_t *numbers;
    size_t count;
    /* logged: whether to keep a log of the operations.  noted: whether to keep
     * notes about the dependencies of the steps; see enum ps_note_kind. */
    bool logged;
    bool noted;
    /* Whether virtual time begins where the last schedule ended, instead of at
     * the real time. */
    bool continues;
    /* is_internal() returns whether the calling thread's calls are made by the
     * library itself.  Such calls are not steps of the program.  is_callable()
     * returns whether the calling thread runs a callable that was submitted to
     * a stream of the backend `registered`.  A thread counts as running its
     * callable until it has called ended() of struct ps_schedules. */
    bool (*is_internal)(void);
    bool (*is_callable)(const struct ps_backend *registered);
    /* NULL, or a function that is called after work was queued, on the thread
     * that queued it, with no lock held.  `first` and `last` are the numbers
     * of the first and the last operation that were queued.  `device` and
     * `stream` say where the last operation was queued; both are 0 if that
     * operation has already run. */
    void (*queued)(uint64_t first, uint64_t last, int device_type, int device,
                   ps_handle stream);
};

/* A log entry about one operation that ran, or that end() has dropped. */
struct ps_schedule_entry {
    const char *device_type;
    const char *operation;
    /* Operations are numbered from 1, in the order in which they were
     * queued. */
    uint64_t number;
    uint64_t step; /* the step in which it ran; 0 if it was dropped */
    int64_t time;  /* the virtual ns from the schedule's start until it ran */
    /* The handle of its stream.  0 for the default stream, and for a branch of
     * a graph. */
    ps_handle handle;
    int device;
    /* The number of its stream.  Streams are numbered from 1, in the order in
     * which the schedule first used them. */
    unsigned stream;
    /* Whether the host once continued although the operation was ready. */
    bool overtaken;
};

/* Notes record how the steps of a schedule depend on each other.  From the
 * notes, pystreams/_orders.py computes all other possible orders of the steps.
 * A note is about the step that the latest PS_NOTE_STEP began, unless its
 * comment says otherwise.  Operations and steps are numbered from 1.  "Values"
 * below are those in the note's values[]. */
enum ps_note_kind {
    /* A step begins.  Values: the number of the step's stream, the number of
     * its operation, and the number of operations that were queued before the
     * step.  For a step of the host, the first two are 0. */
    PS_NOTE_STEP,
    /* The step reads, or writes, memory.  Values: the memory's address and
     * size. */
    PS_NOTE_READ,
    PS_NOTE_WRITE,
    /* The step may access any memory. */
    PS_NOTE_ANY,
    /* The step runs code of the program.  Steps of the host always do, and
     * need no such note. */
    PS_NOTE_PROGRAM,
    /* An operation ends in the step.  Value: its number. */
    PS_NOTE_DONE,
    /* The host queries whether an operation is done.  Value: its number. */
    PS_NOTE_ASKED,
    /* The host queries work that is done.  Value: the number of the step in
     * which that work ended. */
    PS_NOTE_ASKED_STEP,
    /* Another step must precede this one.  Value: the number of that step. */
    PS_NOTE_AFTER_STEP,
    /* The host has waited for an operation, or for a step, so the host's next
     * step must come after it.  Value: the number of that operation, or of
     * that step. */
    PS_NOTE_WAITED,
    PS_NOTE_WAITED_STEP,
    /* The step reads the time. */
    PS_NOTE_TIME,
    /* The step advances the time. */
    PS_NOTE_SLEEP,
    /* Memory was allocated.  Values: its address and size. */
    PS_NOTE_BLOCK,
    /* From now until a PS_NOTE_VIEW_END with the same values, the host may
     * read memory directly or, after PS_NOTE_VIEW_WRITES, read and write it.
     * Values: the memory's address and size. */
    PS_NOTE_VIEW,
    PS_NOTE_VIEW_WRITES,
    PS_NOTE_VIEW_END,
    /* The next callable that is queued has memory among its arguments.
     * Values: the memory's address and size. */
    PS_NOTE_ARGUMENT,
    /* A callable was queued.  Value: the number of its operation. */
    PS_NOTE_CALLABLE,
    /* The notes are incomplete: some possible orders cannot be computed from
     * them. */
    PS_NOTE_LOOSE,
};

struct ps_note {
    enum ps_note_kind kind;
    uint64_t values[3];
};

struct ps_schedule_result {
    uint64_t operations; /* the number of operations that were queued */
    /* The number of operations that ran, plus the number of calls in which the
     * schedule chose when the host continues. */
    uint64_t steps;
    /* A hash of the steps.  Two schedules with the same steps have the same
     * hash.  Schedules with different steps almost certainly have different
     * hashes. */
    uint64_t order;
    /* PS_GIVEN: how many of the given choices were made, up to the first one
     * that was not possible at its turn. */
    size_t followed;
    struct ps_schedule_entry *log; /* the caller frees it */
    size_t logged;
    struct ps_note *notes; /* the caller frees it */
    size_t noted;
    bool worked; /* whether an engine that kept notes had work */
    /* Whether more than one engine had work.  The notes are then those of one
     * engine only, because steps of two engines have no common order. */
    bool mixed;
};

/* The result of an attempt to run an operation.  If several engines are tried,
 * they may return different results.  Of these, the one that comes first in
 * this list is used. */
enum ps_progress {
    PS_RAN, /* an operation ran, or another thread has made progress */
    /* No operation can run now, but a callable or the host is running, or
     * another thread must continue before the caller. */
    PS_RUNNING,
    /* No operation can run before the caller's wait expires, and no other wait
     * expires earlier. */
    PS_EXPIRED,
    PS_STUCK, /* the caller and all callables wait without a limit */
    /* No operation can run, and no callable is running or waiting. */
    PS_NOTHING,
};

/* An entry in an engine's list of the threads that wait while a schedule is
 * explored. */
struct ps_blocked {
    /* The struct cpu_goal for which the thread waits; NULL if that is not
     * known. */
    const void *goal;
    bool callable; /* the thread runs a callable */
    bool holds;    /* the thread waits in ps_schedules.hold() */
    bool parked;   /* the thread has found no operation to run */
    bool woken;    /* the thread can continue without more work */
    bool listed;   /* this entry was added to the list */
    /* The virtual time at which the thread's wait expires. */
    int64_t deadline;
    LIST_ENTRY(ps_blocked) neighbours;
};

/* The state of a sleeping thread; see ps_schedules.sleep. */
struct ps_sleep {
    unsigned forks; /* the number of forks (cpu_forks) when the sleep began */
    int64_t began;  /* the virtual time at which the sleep began */
    /* An entry for each engine, indexed by the engine's number. */
    struct ps_blocked blocked[8];
};

/* All functions are called without the GIL, except those whose comment says
 * otherwise. */
struct ps_schedules {
    /* Returns the table through which core must call the CPU engine
     * `registered`.  If `explored` is true, that is a copy of `registered`
     * that has PS_BACKEND_SHARED, because calls may then wait for callables.
     * Otherwise it is `registered` itself.  Returns NULL if the backend is not
     * a CPU engine.  Called with or without the GIL. */
    const struct ps_backend *(*table)(const struct ps_backend *registered,
                                      bool explored);

    /* Begin to explore a schedule on every CPU engine.  Returns
     * PS_ERROR_NOT_READY if an engine has pending work or a capture in
     * progress, and writes a description of it to `pending`.  Also returns
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*begin)(const struct ps_schedule *schedule, char pending[256]);

    /* Run the remaining work, or drop it if `drop` is true, and end the
     * schedule.  The engines run work on their own threads again afterwards.
     * Returns PS_ERROR_TIMED_OUT if callables still run after timeout_ns of
     * real time; then the schedule has not ended. */
    ps_status (*end)(bool drop, int64_t timeout_ns,
                     struct ps_schedule_result *result);

    /* Returns whether a schedule is being explored.  Called with or without
     * the GIL. */
    bool (*is_on)(void);

    /* Call this after the calling thread has queried work and found it
     * pending.  The schedule may run operations, so that a loop of such
     * queries ends. */
    void (*poll)(void);

    /* Run one operation, if one can run, on a thread that waits for something
     * other than the work of a stream or an event, such as a Future.  The
     * thread calls this repeatedly.  *left_ns is the virtual time until the
     * thread's wait expires.  Each call subtracts the virtual time that has
     * passed. */
    enum ps_progress (*advance)(int64_t *left_ns);

    /* If advance() has found nothing to run, a waiting thread calls sleep()
     * just before it sleeps, and calls wake() afterwards.  left_ns: the
     * virtual time until the wait expires; wake() subtracts the time that has
     * passed.  seen: the value of endings() before the thread last checked
     * whether its wait is over.  If a callable has ended since that value was
     * read, that callable may have ended the wait.  known: whether only work
     * and callables can end the wait. */
    void (*sleep)(struct ps_sleep *sleep, bool known, unsigned seen,
                  int64_t left_ns);
    void (*wake)(struct ps_sleep *sleep, int64_t *left_ns);

    /* Returns the number of callables that have ended. */
    unsigned (*endings)(void);

    /* Call this when a wait that used advance() is over.  Returns when the
     * schedule lets the calling thread continue. */
    void (*arrived)(void);

    /* A thread that has run a callable calls ending() before it opens the
     * callable's gate, and ended() after it has cleaned up.  Until it calls
     * ended(), it counts as running the callable, and other threads do not
     * continue.  ending() is called with or without the GIL. */
    void (*ending)(void);
    void (*ended)(void);

    /* Called by a callable whose only purpose is to keep its stream waiting.
     * Sleeps until another thread calls released(), or until a short time has
     * passed.  Meanwhile the schedule does not wait for this callable. */
    void (*hold)(void);
    /* Wake the callables that sleep in hold(), and let them continue before
     * the calling thread does. */
    void (*released)(void);

    /* Returns whether the schedule keeps notes.  Called with or without the
     * GIL. */
    bool (*is_noted)(void);

    /* Add a note with these two values. */
    void (*note)(enum ps_note_kind kind, uintptr_t first, size_t second);

    /* Returns the stream's number in the schedule; see
     * ps_schedule_entry.stream.  Returns 0 if no schedule is explored, or if
     * the stream does not belong to a CPU engine or was not used during the
     * schedule.  Called with or without the GIL. */
    unsigned (*number)(const struct ps_backend *registered, int device,
                       ps_handle stream);
};

/* The functions that control a schedule, for all CPU engines together. */
extern const struct ps_schedules ps_cpu_schedules;

/* Returns the index of the device whose UUID begins with the text.  Returns -1
 * if no device has such a UUID, or if several devices have one. */
typedef int
uuid_finder(const void *devices, int total, const char *text, size_t length);

/* Returns the index of the device that an item of CUDA_VISIBLE_DEVICES names.
 * The item is a device's UUID if `uuids` is not 0, else a device's number.
 * Returns -1 if it names no device. */
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

/* Returns the number of devices that CUDA_VISIBLE_DEVICES leaves visible, and
 * sets their bits in seen[], which has room for MOST_VISIBLE devices.  The
 * variable's list of devices ends before the first item that names no device,
 * and before the first item whose kind (number or UUID) is not that of the
 * first item.  If the list has a device twice, no device is visible.  Returns
 * -1 if only the driver can interpret the variable.  find is NULL if the
 * devices have no UUIDs. */
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
