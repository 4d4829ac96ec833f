/* Events that several processes share, with no process in charge.
 *
 * The event is a page of memory, in a file without a name: its maker keeps it
 * open, others find it by number through /proc, and it is gone with the last
 * process that has it mapped, however that ends.  In the page stand the latest
 * records, by serial.
 *
 * A record that is not done has a pipe, which its process alone holds for
 * writing.  Others open that through /proc, too, and see the end by the number
 * of bytes in it, the status and one more; nobody reads them, so everybody
 * sees them.  A pipe that ends without any was that of a process that died.
 *
 * One rule: everything in the page may change at any time, a process may stop
 * or die between any two lines, and a peer may write what it likes.  So no
 * wait, index or status comes from the page unchecked, and only a page of this
 * library's is ever mapped: it is looked at before it is opened.
 *
 * To publish a record is to claim a serial, to take the serial's entry by
 * exchanging its state for CLAIMED, to fill it in, to exchange that for the
 * serial and the outcome, and to raise `latest` to the serial.
 *
 * - An entry is taken only if its record was superseded: its serial is below
 *   `latest`.  So the entry of the record in effect stays, and so does one
 *   that is about to take effect.
 * - A claimed entry is its process's alone; others claim another serial
 *   instead.  So a process that stopped there and goes on after any number of
 *   later records finds the entry as it left it, raises no `latest` that is
 *   higher, and damages nothing.
 * - An entry that a dead process had claimed is taken over.
 * - A process that dies earlier leaves a gap among the serials, which nobody
 *   asks for; one that dies later, a record without a pipe, which has failed.
 * - A state names its serial, so it is never the same twice.  A reader that
 *   finds the serial before and after it read an entry has read one record.
 * - The end of a record is exchanged for "pending" and its serial, so that it
 *   changes no later record; then it goes to the pipe, for which those look
 *   that wait already.  If the process died between the two, they find it in
 *   the entry, unless that has a later record by then. */
#include "shared.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    PAGE_RECORDS = 64,
    OUTCOME_BITS = 10, /* 0 while it is not known, else the status + 1 */
    CLAIMED = (1 << OUTCOME_BITS) - 1, /* no outcome: it is being written */
    PROCESS_BITS = 22,                 /* Linux has no process above them */
    MOST_TRIES = 1000, /* to find a record that others replace meanwhile */
};

#define OUTCOME(state) ((int)((state) & ((1 << OUTCOME_BITS) - 1)))
#define SERIAL(state)  ((state) >> OUTCOME_BITS)

/* A record; written by the process that claimed it. */
struct entry {
    /* The serial, and the outcome below it; of a claimed one the lower half of
     * the serial, and the process and CLAIMED below it. */
    _Atomic uint64_t state;
    _Atomic uint64_t inode; /* of the pipe */
    atomic_int process;
    atomic_int pipe; /* its number there */
};

struct page {
    uint64_t nonce[3];
    _Atomic uint64_t claimed; /* the latest serial that was given out */
    _Atomic uint64_t latest;  /* that of the record in effect; 0 if none */
    struct entry entries[PAGE_RECORDS]; /* by serial */
};

_Static_assert(sizeof(struct page) <= CPU_PAGE_BYTES, "a page is a page");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "locks are not for sharing");

/* A handle; the checksum of what stands before it comes last. */
struct token {
    char magic[8];
    int32_t device_type;
    int32_t device;
    int32_t process;
    int32_t file; /* the page's number there */
    uint64_t inode;
    uint64_t nonce[3];
    uint64_t checksum;
};

_Static_assert(sizeof(struct token) == PS_IPC_HANDLE_BYTES, "no gaps");

static const char magic[8] = "psevent1";

struct cpu_shared {
    unsigned refs;   /* the event's, its promises' and the watcher's */
    uint64_t serial; /* of the record that is the event's here; 0 for none */
    struct page *page;
    struct cpu_file file; /* the page; open with the maker, until destroyed */
    struct token token;
};

struct cpu_promise {
    struct cpu_shared *shared;
    uint64_t serial;
    uint64_t inode;
    struct cpu_file pipe;
};

/* FNV-1a: no change of a single byte goes unseen. */
static uint64_t
checksum(const struct token *token)
{
    const unsigned char *bytes = (const unsigned char *)token;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < offsetof(struct token, checksum); i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

/* ---- Pages ---- */

/* A new page, with its file; NULL where there is no room for either. */
static struct page *
page_create(int *file, uint64_t *inode)
{
    struct page *page = cpu_page_create(file, inode);
    if (page != NULL && getrandom(page->nonce, sizeof(page->nonce), 0) !=
                            (ssize_t)sizeof(page->nonce)) {
        cpu_page_unmap(page);
        close(*file);
        page = NULL;
    }
    return page;
}

/* The page that the token names.  Statuses: PS_ERROR_INVALID_HANDLE where it
 * is gone, PS_ERROR_OUT_OF_MEMORY. */
static ps_status
page_open(const struct token *token, struct page **page)
{
    void *opened;
    ps_status status =
        cpu_page_open(token->process, token->file, token->inode, &opened);
    if (status != PS_SUCCESS) {
        return status;
    }
    *page = opened;
    if (memcmp((*page)->nonce, token->nonce, sizeof(token->nonce)) != 0) {
        cpu_page_unmap(*page);
        return PS_ERROR_INVALID_HANDLE;
    }
    return PS_SUCCESS;
}

/* ---- Shared events ---- */

static void
shared_unref_locked(struct cpu_shared *shared)
{
    if (--shared->refs == 0) {
        cpu_page_unmap(shared->page);
        free(shared);
    }
}

ps_status
cpu_shared_create_locked(struct cpu_engine *engine, int device,
                         struct cpu_shared **result)
{
    uint64_t inode;
    int file;
    struct cpu_shared *shared = calloc(1, sizeof(*shared));
    if (shared == NULL ||
        (shared->page = page_create(&file, &inode)) == NULL) {
        free(shared);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    shared->refs = 1;
    cpu_file_keep_locked(engine, &shared->file, file);
    shared->token = (struct token){
        .device_type = engine->table.device_type,
        .device = device,
        .process = getpid(),
        .file = file,
        .inode = inode,
    };
    memcpy(shared->token.magic, magic, sizeof(magic));
    memcpy(shared->token.nonce, shared->page->nonce,
           sizeof(shared->token.nonce));
    shared->token.checksum = checksum(&shared->token);
    *result = shared;
    return PS_SUCCESS;
}

void
cpu_shared_export_locked(const struct cpu_shared *shared,
                         unsigned char handle[PS_IPC_HANDLE_BYTES])
{
    memcpy(handle, &shared->token, PS_IPC_HANDLE_BYTES);
}

static ps_status
token_check(const struct cpu_engine *engine, int device,
            const struct token *token)
{
    if (memcmp(token->magic, magic, sizeof(magic)) != 0 ||
        token->checksum != checksum(token) ||
        token->device_type != engine->table.device_type) {
        return PS_ERROR_INVALID_VALUE;
    }
    return token->device == device ? PS_SUCCESS : PS_ERROR_INVALID_DEVICE;
}

ps_status
cpu_shared_open_locked(struct cpu_engine *engine, int device,
                       const unsigned char handle[PS_IPC_HANDLE_BYTES],
                       struct cpu_shared **result)
{
    struct token token;
    memcpy(&token, handle, sizeof(token));
    ps_status status = token_check(engine, device, &token);
    if (status != PS_SUCCESS) {
        return status;
    }
    struct cpu_shared *shared = malloc(sizeof(*shared));
    if (shared == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *shared = (struct cpu_shared){
        .refs = 1,
        .file = {.number = -1},
        .token = token,
    };
    status = page_open(&token, &shared->page);
    if (status != PS_SUCCESS) {
        free(shared);
        return status;
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

ps_status
cpu_promise_make_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                        struct cpu_record *record)
{
    struct cpu_promise *promise = calloc(1, sizeof(*promise));
    int pipe = promise != NULL ? cpu_pipe_create(&promise->inode) : -1;
    if (pipe < 0) {
        free(promise);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    cpu_file_keep_locked(engine, &promise->pipe, pipe);
    promise->shared = shared;
    shared->refs++;
    record->promise = promise;
    return PS_SUCCESS;
}

/* A failure has one of the contract's statuses, whoever reports it. */
static ps_status
checked(int status)
{
    return status >= 0 && status <= PS_ERROR_UNKNOWN &&
                   status != PS_ERROR_NOT_READY
               ? status
               : PS_ERROR_UNKNOWN;
}

static uint64_t
outcome(const struct cpu_record *record)
{
    return record->done ? (uint64_t)checked(record->status) + 1 : 0;
}

/* The status of another process's record that has ended. */
static ps_status
status_of(int outcome)
{
    return outcome != 0 ? checked(outcome - 1) : PS_ERROR_CONTEXT_DESTROYED;
}

static struct entry *
entry_of(struct cpu_shared *shared, uint64_t serial)
{
    return &shared->page->entries[serial % PAGE_RECORDS];
}

/* Whether the state is that of the record with the serial. */
static bool
is_of(uint64_t state, uint64_t serial)
{
    return SERIAL(state) == serial && OUTCOME(state) != CLAIMED;
}

/* Whether nobody needs what an entry in this state holds. */
static bool
is_free(struct page *page, uint64_t state)
{
    enum { PROCESSES = 1 << PROCESS_BITS };
    if (OUTCOME(state) == CLAIMED) {
        return kill((pid_t)(SERIAL(state) % PROCESSES), 0) != 0 &&
               errno == ESRCH;
    }
    return state == 0 || SERIAL(state) < atomic_load(&page->latest);
}

/* Claim a serial and its entry, whose state is then *claimed; 0 where none is
 * to be had, which honest peers can bring about only by the dozen. */
static uint64_t
entry_claim(struct cpu_shared *shared, uint64_t *claimed)
{
    struct page *page = shared->page;
    for (int i = 0; i < MOST_TRIES; i++) {
        uint64_t serial =
            SERIAL((atomic_fetch_add(&page->claimed, 1) + 1) << OUTCOME_BITS);
        struct entry *entry = entry_of(shared, serial);
        uint64_t state = atomic_load(&entry->state);
        *claimed = serial << (PROCESS_BITS + OUTCOME_BITS) |
                   (uint64_t)getpid() << OUTCOME_BITS | CLAIMED;
        if (is_free(page, state) &&
            atomic_compare_exchange_strong(&entry->state, &state, *claimed)) {
            return serial;
        }
    }
    return 0;
}

void
cpu_shared_publish_locked(struct cpu_shared *shared, struct cpu_record *record)
{
    struct page *page = shared->page;
    uint64_t claimed, serial = entry_claim(shared, &claimed);
    struct entry *entry = entry_of(shared, serial);
    shared->serial = serial;
    if (serial == 0) {
        return;
    }
    if (record->promise != NULL) {
        record->promise->serial = serial;
        atomic_store(&entry->inode, record->promise->inode);
        atomic_store(&entry->process, getpid());
        atomic_store(&entry->pipe, record->promise->pipe.number);
    }
    if (!atomic_compare_exchange_strong(&entry->state, &claimed,
                                        serial << OUTCOME_BITS |
                                            outcome(record))) {
        return;
    }
    uint64_t latest = atomic_load(&page->latest);
    while (latest < serial &&
           !atomic_compare_exchange_weak(&page->latest, &latest, serial)) {
    }
}

void
cpu_promise_keep_locked(struct cpu_record *record)
{
    static const char bytes[1 << OUTCOME_BITS];
    struct cpu_promise *promise = record->promise;
    uint64_t serial = promise->serial, state = serial << OUTCOME_BITS;
    uint64_t known = outcome(record);
    if (serial != 0 && known != 0) {
        struct entry *entry = entry_of(promise->shared, serial);
        atomic_compare_exchange_strong(&entry->state, &state, state | known);
        /* There is room, unless a peer filled it. */
        ssize_t written = write(promise->pipe.number, bytes, known);
        (void)written;
    }
    cpu_file_close_locked(&promise->pipe);
    shared_unref_locked(promise->shared);
    free(promise);
    record->promise = NULL;
}

/* ---- Records of other processes ---- */

/* Open the pipe of a record that is pending, and look at its state again: if
 * that has not changed, there was a pipe to open, or its process is dead.
 * Statuses: PS_ERROR_OUT_OF_MEMORY. */
static ps_status
entry_open(struct entry *entry, uint64_t *state, int *pipe)
{
    uint64_t pending = *state;
    ps_status status =
        cpu_pipe_open(atomic_load(&entry->process), atomic_load(&entry->pipe),
                      atomic_load(&entry->inode), pipe);
    *state = atomic_load(&entry->state);
    if (status != PS_ERROR_INVALID_HANDLE) {
        return status;
    }
    if (*state == pending) {
        *state += PS_ERROR_CONTEXT_DESTROYED + 1;
    }
    return PS_SUCCESS;
}

/* A record here for one of another process: done, or to be completed by the
 * watcher, whose the pipe is then.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
static ps_status
record_import_locked(struct cpu_engine *engine, struct cpu_shared *shared,
                     uint64_t state, int *pipe, struct cpu_record **result)
{
    int outcome = OUTCOME(state);
    struct cpu_record *record = cpu_item_take_locked(engine);
    ps_status status = PS_SUCCESS;
    if (record == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *record = (struct cpu_record){.refs = 1};
    if (outcome != 0) {
        cpu_record_complete_locked(engine, record, status_of(outcome));
    }
    else {
        status = cpu_watcher_add_locked(engine, *pipe, record, shared,
                                        SERIAL(state));
    }
    if (status != PS_SUCCESS) {
        cpu_item_give_locked(engine, record);
        return status;
    }
    if (outcome == 0) {
        *pipe = -1;
        shared->refs++;
    }
    *result = record;
    return PS_SUCCESS;
}

/* Make the record with this serial the event's here, unless it is in effect no
 * longer. */
static ps_status
adopt_locked(struct cpu_engine *engine, struct cpu_slot *event,
             uint64_t serial)
{
    struct cpu_shared *shared = event->shared;
    struct entry *entry = entry_of(shared, serial);
    uint64_t state = atomic_load(&entry->state);
    struct cpu_record *record = NULL;
    ps_status status = PS_SUCCESS;
    int pipe = -1;
    if (state == serial << OUTCOME_BITS) {
        status = entry_open(entry, &state, &pipe);
    }
    if (status == PS_SUCCESS && is_of(state, serial)) {
        status = record_import_locked(engine, shared, state, &pipe, &record);
    }
    if (pipe >= 0) {
        close(pipe);
    }
    if (record != NULL) {
        cpu_record_unref_locked(engine, event->object);
        event->object = record;
        shared->serial = serial;
    }
    return status;
}

ps_status
cpu_shared_end_locked(struct cpu_shared *shared, uint64_t serial, int bytes)
{
    uint64_t state = atomic_load(&entry_of(shared, serial)->state);
    if (bytes == 0 && is_of(state, serial)) {
        bytes = OUTCOME(state);
    }
    shared_unref_locked(shared);
    return status_of(bytes);
}

ps_status
cpu_shared_refresh_locked(struct cpu_engine *engine, struct cpu_slot *event)
{
    struct cpu_shared *shared = event->shared;
    ps_status status = PS_SUCCESS;
    uint64_t latest = shared->serial;
    for (int i = 0; i < MOST_TRIES && status == PS_SUCCESS; i++) {
        latest = atomic_load(&shared->page->latest);
        if (latest <= shared->serial) {
            break;
        }
        status = adopt_locked(engine, event, latest);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    /* The end of another process's may be known before the watcher comes to
     * it. */
    struct cpu_record *record = event->object;
    uint64_t state = atomic_load(&entry_of(shared, shared->serial)->state);
    if (!record->done && record->capture == 0 && record->promise == NULL &&
        is_of(state, shared->serial) && OUTCOME(state) != 0) {
        cpu_record_complete_locked(engine, record, status_of(OUTCOME(state)));
    }
    return latest <= shared->serial ? PS_SUCCESS : PS_ERROR_UNKNOWN;
}
