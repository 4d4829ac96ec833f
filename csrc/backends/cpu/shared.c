/* Events that several processes share.  No process manages them.
 *
 * An event is a page of memory in a file without a name.  The process that
 * created the event keeps the file open, and other processes open it through
 * /proc, by its descriptor in that process.  The event exists until no process
 * has the page mapped any more.  A process that ends in any way unmaps the
 * page.  The page holds the latest record as one word.  This word contains the
 * id of the process that made the record, the inode of the record's pipe, and
 * the record's outcome.
 *
 * A pending record has a pipe, which is open for writing only in the process
 * that made the record.  Other processes open the pipe through /proc and wait
 * until there are bytes in it.  The number of bytes is the outcome, that is,
 * the status + 1.  No process reads the bytes, so every process sees them.  If
 * the pipe contains no bytes and is no longer open for writing, the record's
 * process has died.
 *
 * The rule: everything in the page may change at any time, a process may stop
 * or die at any point, and another process may write anything into the page.
 * So every status from the page is checked before it is used, and only sealed
 * files that match their handle are mapped.  The page contains no lock,
 * because a process that has stopped could hold it for ever.  Even a robust
 * mutex would not do, because it contains pointers that another process could
 * overwrite.
 *
 * - A process records an event by storing the word.  This is one atomic store,
 *   so no process can stop in the middle of it.  If several processes record
 *   the event, the last store wins.
 * - When a pending record is done, a compare-and-exchange puts the outcome
 *   into its word.  This never changes a later record, because no two pending
 *   records have the same word: each word contains the inode of the record's
 *   own pipe.
 * - The outcome goes into the page first, for processes that look later, and
 *   then into the pipe, for processes that are already waiting.  If the
 *   record's process dies between these two steps, the waiting processes find
 *   the outcome in the page, unless the page has a later record by then.
 * - If a pipe cannot be opened although the word has not changed, the pipe's
 *   process counts as dead. */
#include "shared.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    OUTCOME_BITS = 10, /* the outcome: 0 while pending, else 1 + the status */
    PROCESS_BITS = 22, /* a process id, which has at most 22 bits */
    /* The most attempts to read the latest record while it keeps changing. */
    MOST_TRIES = 100,
    WORD_CHANGED = -1, /* a status that only this file uses */
};

#define OUTCOME(word) ((int)((word) & ((1 << OUTCOME_BITS) - 1)))
#define PROCESS(word) \
    ((pid_t)((word) >> OUTCOME_BITS & ((1 << PROCESS_BITS) - 1)))
#define INODE(word) ((uint32_t)((word) >> (OUTCOME_BITS + PROCESS_BITS)))
/* The record's word as it was while the record was pending. */
#define PENDING(word) ((word) >> OUTCOME_BITS << OUTCOME_BITS)

struct page {
    uint64_t nonce[3];
    /* The word of the latest record; 0 if there is none.  If the record was
     * already done when the event was recorded, the inode in the word is 0. */
    _Atomic uint64_t latest;
    /* The descriptor of the latest record's pipe in the record's process.  It
     * may be wrong, because `latest` and `pipe` are not stored in one atomic
     * step.  Two processes may have recorded the event at once, or a process
     * may have stopped between the two stores. */
    atomic_int pipe;
};

_Static_assert(sizeof(struct page) <= CPU_PAGE_BYTES,
               "struct page fits in one page of the file");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2,
               "processes share the word without a lock");

static const struct cpu_pages pages = {.nbytes = CPU_PAGE_BYTES};

struct cpu_shared {
    unsigned refs; /* held by the event and its records */
    /* The word of the latest record that this process knows; 0 if it knows
     * none. */
    uint64_t word;
    struct page *page;
    /* The file that contains the page.  It is open only in the process that
     * created the event. */
    struct cpu_file file;
    struct cpu_token token;
};

/* A pending record of this process, for which other processes may wait. */
struct promise {
    struct cpu_promise base;
    struct cpu_shared *shared;
    uint64_t word;
    struct cpu_file pipe;
};

/* A pending record of another process, whose pipe the poller watches. */
struct remote {
    struct cpu_file pipe;
    struct cpu_record *record;
    struct cpu_shared *shared;
    uint64_t word;
};

/* ---- Shared events ---- */

static void
shared_unref_locked(struct cpu_shared *shared)
{
    if (--shared->refs == 0) {
        cpu_pages_unmap(&pages, shared->page);
        free(shared);
    }
}

void
cpu_shared_export_locked(const struct cpu_shared *shared,
                         unsigned char handle[PS_IPC_HANDLE_BYTES])
{
    memcpy(handle, &shared->token, PS_IPC_HANDLE_BYTES);
}

ps_status
cpu_shared_make_locked(struct cpu_engine *engine, int device,
                       const unsigned char *handle, struct cpu_shared **result)
{
    struct cpu_shared *shared = calloc(1, sizeof(*shared));
    void *page;
    if (shared == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status =
        handle == NULL ? cpu_token_create(engine, CPU_SHARE_EVENT, device,
                                          &pages, &shared->token, &page)
                       : cpu_token_open(engine, CPU_SHARE_EVENT, device,
                                        &pages, handle, &shared->token, &page);
    if (status != PS_SUCCESS) {
        free(shared);
        return status;
    }
    shared->refs = 1;
    shared->page = page;
    shared->file.number = -1;
    if (handle == NULL) {
        cpu_file_keep_locked(engine, &shared->file, shared->token.file);
    }
    *result = shared;
    return PS_SUCCESS;
}

void
cpu_shared_close_locked(struct cpu_shared *shared)
{
    cpu_file_close_locked(&shared->file);
    shared_unref_locked(shared);
}

/* ---- Records of this process ---- */

/* Returns the status if it is one that a record may have, else
 * PS_ERROR_UNKNOWN.  Another process may have written any number.  A status
 * that says why a call failed, such as PS_ERROR_TIMED_OUT, is never that of a
 * record. */
static ps_status
checked(int status)
{
    bool of_a_call = status == PS_ERROR_NOT_READY ||
                     (status >= PS_ERROR_CAPTURE_UNSUPPORTED &&
                      status <= PS_ERROR_TIMED_OUT);
    return status >= 0 && status <= PS_ERROR_UNKNOWN && !of_a_call
               ? status
               : PS_ERROR_UNKNOWN;
}

static void
promise_end_locked(struct cpu_promise *base, const struct cpu_record *record)
{
    static const char bytes[1 << OUTCOME_BITS];
    struct promise *promise = (struct promise *)base;
    struct cpu_shared *shared = promise->shared;
    if (record->done) {
        size_t outcome = (size_t)checked(record->status) + 1;
        uint64_t pending = promise->word, ended = pending | outcome;
        if (shared->word == pending) {
            shared->word = ended;
        }
        atomic_compare_exchange_strong(&shared->page->latest, &pending, ended);
        /* The pipe has room, unless another process has filled it. */
        ssize_t written = write(promise->pipe.number, bytes, outcome);
        (void)written;
    }
    cpu_file_close_locked(&promise->pipe);
    shared_unref_locked(shared);
    free(promise);
}

ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record)
{
    struct promise *promise = malloc(sizeof(*promise));
    uint32_t inode;
    int pipe = promise != NULL ? cpu_pipe_create(&inode) : -1;
    if (pipe < 0) {
        free(promise);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *promise = (struct promise){
        .base.end_locked = promise_end_locked,
        .shared = shared,
        .word = ((uint64_t)inode << PROCESS_BITS | (uint64_t)getpid())
                << OUTCOME_BITS,
    };
    cpu_file_keep_locked(engine, &promise->pipe, pipe);
    shared->refs++;
    record->promise = &promise->base;
    return PS_SUCCESS;
}

void
cpu_shared_publish_locked(struct cpu_shared *shared,
                          const struct cpu_record *record)
{
    const struct promise *promise = (const struct promise *)record->promise;
    if (promise != NULL) {
        shared->word = promise->word;
        atomic_store(&shared->page->pipe, promise->pipe.number);
    }
    else {
        shared->word = (uint64_t)getpid() << OUTCOME_BITS |
                       ((uint64_t)checked(record->status) + 1);
    }
    atomic_store(&shared->page->latest, shared->word);
}

/* ---- Records of other processes ---- */

/* Returns the status for the outcome with which another process's record has
 * ended.  The outcome 0 means that the process died before the record was
 * done. */
static ps_status
status_of(int outcome)
{
    return outcome != 0 ? checked(outcome - 1) : PS_ERROR_CONTEXT_DESTROYED;
}

static void
remote_end_locked(struct cpu_engine *engine, struct remote *remote)
{
    uint64_t latest = atomic_load(&remote->shared->page->latest);
    int outcome = 0;
    ioctl(remote->pipe.number, FIONREAD, &outcome);
    if (outcome == 0 && PENDING(latest) == remote->word) {
        outcome = OUTCOME(latest);
    }
    if (!remote->record->done) {
        cpu_record_complete_locked(engine, remote->record, status_of(outcome));
    }
    cpu_record_unref_locked(engine, remote->record);
    shared_unref_locked(remote->shared);
    /* Closing the file alone does not remove it from epoll while a forked
     * child has it open. */
    epoll_ctl(engine->poller.epoll.number, EPOLL_CTL_DEL, remote->pipe.number,
              NULL);
    cpu_file_close_locked(&remote->pipe);
    free(remote);
}

static void *
poller_main(void *argument)
{
    enum { AT_A_TIME = 64 };
    struct cpu_engine *engine = argument;
    struct epoll_event events[AT_A_TIME];
    unsigned forks = cpu_forks;
    cpu_lock(engine);
    while (engine->phase < CPU_STOPPING && cpu_forks == forks) {
        int epoll = engine->poller.epoll.number;
        cpu_unlock(engine);
        int count = epoll_wait(epoll, events, AT_A_TIME, -1);
        cpu_lock(engine);
        for (int i = 0; i < count && cpu_forks == forks; i++) {
            if (events[i].data.ptr != NULL) {
                remote_end_locked(engine, events[i].data.ptr);
            }
        }
    }
    return cpu_thread_end_locked(engine, forks);
}

static ps_status
poller_start_locked(struct cpu_engine *engine)
{
    struct cpu_poller *poller = &engine->poller;
    struct epoll_event wake = {.events = EPOLLIN};
    if (engine->phase != CPU_OPEN) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (poller->epoll.number >= 0) {
        return PS_SUCCESS;
    }
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int doorbell = eventfd(0, EFD_CLOEXEC);
    if (epoll >= 0 && doorbell >= 0 &&
        epoll_ctl(epoll, EPOLL_CTL_ADD, doorbell, &wake) == 0 &&
        cpu_thread_start_locked(engine, poller_main, "ps-cpu-poller")) {
        cpu_file_keep_locked(engine, &poller->epoll, epoll);
        cpu_file_keep_locked(engine, &poller->doorbell, doorbell);
        return PS_SUCCESS;
    }
    close(epoll);
    close(doorbell);
    return PS_ERROR_OUT_OF_MEMORY;
}

void
cpu_poller_stop_locked(struct cpu_engine *engine)
{
    if (engine->poller.doorbell.number >= 0) {
        eventfd_write(engine->poller.doorbell.number, 1);
    }
}

/* Arrange that the poller completes the record when the pipe shows the
 * record's outcome.  Takes over the descriptor `pipe`, even if this fails.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
static ps_status
remote_begin_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                    uint64_t word, int pipe, struct cpu_record *record)
{
    ps_status status = poller_start_locked(engine);
    struct remote *remote = NULL;
    struct epoll_event ended = {.events = EPOLLIN};
    if (status == PS_SUCCESS) {
        ended.data.ptr = remote = malloc(sizeof(*remote));
        if (remote == NULL || epoll_ctl(engine->poller.epoll.number,
                                        EPOLL_CTL_ADD, pipe, &ended) != 0) {
            status = PS_ERROR_OUT_OF_MEMORY;
        }
    }
    if (status != PS_SUCCESS) {
        free(remote);
        close(pipe);
        return status;
    }
    *remote =
        (struct remote){.record = record, .shared = shared, .word = word};
    cpu_file_keep_locked(engine, &remote->pipe, pipe);
    record->refs++;
    shared->refs++;
    return PS_SUCCESS;
}

/* The word describes a record of another process.  Make that record the
 * event's latest one in this process.  Returns WORD_CHANGED if the word in the
 * page has changed meanwhile.  Other statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
static ps_status
adopt_locked(struct cpu_engine *engine, struct cpu_slot *event, uint64_t word)
{
    struct cpu_shared *shared = event->shared;
    struct page *page = shared->page;
    ps_status status = PS_ERROR_INVALID_HANDLE;
    int pipe;
    struct cpu_record *record = cpu_item_take_locked(engine);
    if (record == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *record = (struct cpu_record){.refs = 1};
    if (OUTCOME(word) == 0) {
        status = cpu_pipe_open(PROCESS(word), atomic_load(&page->pipe),
                               INODE(word), &pipe);
    }
    if (status == PS_SUCCESS && atomic_load(&page->latest) != word) {
        /* The other process may have completed the record and closed its pipe
         * just when this process opened the pipe.  The pipe is then empty,
         * which would look as if the process had died. */
        close(pipe);
        status = WORD_CHANGED;
    }
    else if (status == PS_SUCCESS) {
        status = remote_begin_locked(engine, shared, word, pipe, record);
    }
    else if (status == PS_ERROR_INVALID_HANDLE) {
        cpu_record_complete_locked(engine, record, status_of(OUTCOME(word)));
        status =
            atomic_load(&page->latest) == word ? PS_SUCCESS : WORD_CHANGED;
    }
    if (status == PS_SUCCESS) {
        struct cpu_record *before = event->object;
        event->object = record;
        shared->word = word;
        record = before;
    }
    cpu_record_unref_locked(engine, record);
    return status;
}

ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event)
{
    struct cpu_shared *shared = event->shared;
    for (int i = 0; i < MOST_TRIES; i++) {
        struct cpu_record *record = event->object;
        uint64_t word = atomic_load(&shared->page->latest);
        if (word == shared->word) {
            return PS_SUCCESS;
        }
        if (INODE(word) != 0 && PENDING(word) == PENDING(shared->word)) {
            /* The record is done, but the poller may not have completed it
             * yet. */
            if (!record->done && record->capture == 0 &&
                record->promise == NULL) {
                cpu_record_complete_locked(engine, record,
                                           status_of(OUTCOME(word)));
            }
            return PS_SUCCESS;
        }
        ps_status status = adopt_locked(engine, event, word);
        if (status != WORD_CHANGED) {
            return status;
        }
    }
    return PS_ERROR_UNKNOWN;
}
