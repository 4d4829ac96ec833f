/* Events that several processes share, with no process in charge.
 *
 * The event is a page of memory, in a file without a name: its maker keeps it
 * open, others find it by number through /proc, and it is gone with the last
 * process that has it mapped, however that ends.  In the page stand the latest
 * records, by serial.
 *
 * One that is not done has a pipe, which its process alone can write.  Others
 * open that through /proc, too, and are told of the end by the number of bytes
 * in it, the status and one more; nobody reads them, so everybody sees them.
 * A pipe that ends without any was that of a process that died.
 *
 * One rule: of what stands in the page everything may change at any time, and
 * a process may die between any two lines. */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAGE_RECORDS = 64,
    PAGE_BYTES = 4096,
    OUTCOME_BITS = 10, /* 0 while it is not known, else the status + 1 */
    MOST_TRIES = 1000, /* to find a record that others replace meanwhile */
};

#define OUTCOME(state) ((int)((state) & ((1 << OUTCOME_BITS) - 1)))

/* A record; written by the process that claimed its serial. */
struct entry {
    _Atomic uint64_t state; /* the serial, and the outcome below it */
    _Atomic uint64_t inode; /* of the pipe */
    atomic_int process;
    atomic_int pipe; /* its number there */
};

struct page {
    uint64_t nonce[3];
    _Atomic uint64_t claimed; /* the serial given to the latest record */
    _Atomic uint64_t latest;  /* that of the record in effect; 0 if none */
    struct entry entries[PAGE_RECORDS]; /* by serial */
};

_Static_assert(sizeof(struct page) <= PAGE_BYTES, "a page is a page");
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
    unsigned refs;   /* the event's, and its promises' */
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

/* ---- Pages ---- */

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

static bool
is_same(const char *path, mode_t type, uint64_t inode)
{
    struct stat found;
    return stat(path, &found) == 0 && (found.st_mode & S_IFMT) == type &&
           found.st_ino == inode;
}

/* Open a file that a process has open.
 * Statuses: PS_ERROR_INVALID_HANDLE where it no longer has or is out of reach,
 * PS_ERROR_OUT_OF_MEMORY. */
static ps_status
peer_open(pid_t process, int number, mode_t type, uint64_t inode, int flags,
          int *opened)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)process, number);
    /* It is looked at before, as opening may have effects, and after. */
    if (!is_same(path, type, inode)) {
        return PS_ERROR_INVALID_HANDLE;
    }
    int file = open(path, flags | O_CLOEXEC);
    if (file < 0) {
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM
                   ? PS_ERROR_OUT_OF_MEMORY
                   : PS_ERROR_INVALID_HANDLE;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    if (!is_same(path, type, inode)) {
        close(file);
        return PS_ERROR_INVALID_HANDLE;
    }
    *opened = file;
    return PS_SUCCESS;
}

/* NULL when it cannot be mapped.  A forked child has no such page. */
static struct page *
page_map(int file)
{
    void *page =
        mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    madvise(page, PAGE_BYTES, MADV_DONTFORK);
    return page;
}

/* A new page, with its file; NULL where there is no room for either. */
static struct page *
page_create(int *file)
{
    struct page *page = NULL;
    *file = memfd_create("pystreams-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*file < 0) {
        return NULL;
    }
    /* Sealed, no process can make another's page end. */
    if (ftruncate(*file, PAGE_BYTES) == 0 &&
        fcntl(*file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
        page = page_map(*file);
    }
    if (page != NULL && getrandom(page->nonce, sizeof(page->nonce), 0) !=
                            (ssize_t)sizeof(page->nonce)) {
        munmap(page, PAGE_BYTES);
        page = NULL;
    }
    if (page == NULL) {
        close(*file);
    }
    return page;
}

/* ---- Shared events ---- */

static void
shared_unref_locked(struct cpu_shared *shared)
{
    if (--shared->refs == 0) {
        munmap(shared->page, PAGE_BYTES);
        free(shared);
    }
}

ps_status
cpu_shared_create_locked(struct cpu_engine *engine, int device,
                         struct cpu_shared **result)
{
    struct stat found;
    int file;
    struct cpu_shared *shared = calloc(1, sizeof(*shared));
    if (shared == NULL || (shared->page = page_create(&file)) == NULL) {
        free(shared);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    fstat(file, &found);
    shared->refs = 1;
    cpu_file_keep_locked(engine, &shared->file, file);
    shared->token = (struct token){
        .device_type = engine->table.device_type,
        .device = device,
        .process = getpid(),
        .file = file,
        .inode = found.st_ino,
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

/* The page that the token names.  Statuses: PS_ERROR_INVALID_HANDLE where it
 * is gone, PS_ERROR_OUT_OF_MEMORY. */
static ps_status
page_open(const struct token *token, struct page **result)
{
    struct stat found;
    int file;
    ps_status status = peer_open(token->process, token->file, S_IFREG,
                                 token->inode, O_RDWR, &file);
    if (status != PS_SUCCESS) {
        return status;
    }
    struct page *page = NULL;
    if (fstat(file, &found) != 0 || found.st_size != PAGE_BYTES) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    else if ((page = page_map(file)) == NULL) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    else if (memcmp(page->nonce, token->nonce, sizeof(page->nonce)) != 0) {
        munmap(page, PAGE_BYTES);
        status = PS_ERROR_INVALID_HANDLE;
    }
    close(file);
    *result = page;
    return status;
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
    int ends[2];
    char path[32];
    struct stat found;
    struct cpu_promise *promise = calloc(1, sizeof(*promise));
    if (promise == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(promise);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    /* One that reads and writes: a pipe nobody can read raises SIGPIPE. */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
    int both = open(path, O_RDWR | O_CLOEXEC);
    close(ends[0]);
    close(ends[1]);
    if (both < 0) {
        free(promise);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    fstat(both, &found);
    cpu_file_keep_locked(engine, &promise->pipe, both);
    promise->inode = found.st_ino;
    promise->shared = shared;
    shared->refs++;
    record->promise = promise;
    return PS_SUCCESS;
}

static uint64_t
outcome(const struct cpu_record *record)
{
    return record->done ? (uint64_t)record->status + 1 : 0;
}

void
cpu_shared_publish_locked(struct cpu_shared *shared, struct cpu_record *record)
{
    struct page *page = shared->page;
    uint64_t serial = atomic_fetch_add(&page->claimed, 1) + 1;
    struct entry *entry = &page->entries[serial % PAGE_RECORDS];
    /* So that nobody takes what follows for the record before. */
    atomic_store(&entry->state, 0);
    if (record->promise != NULL) {
        record->promise->serial = serial;
        atomic_store(&entry->inode, record->promise->inode);
        atomic_store(&entry->process, getpid());
        atomic_store(&entry->pipe, record->promise->pipe.number);
    }
    atomic_store(&entry->state, serial << OUTCOME_BITS | outcome(record));
    uint64_t latest = atomic_load(&page->latest);
    while (latest < serial &&
           !atomic_compare_exchange_weak(&page->latest, &latest, serial)) {
    }
    shared->serial = serial;
}

void
cpu_promise_keep_locked(struct cpu_record *record)
{
    static const char bytes[1 << OUTCOME_BITS];
    struct cpu_promise *promise = record->promise;
    uint64_t serial = promise->serial, state = serial << OUTCOME_BITS;
    uint64_t told = outcome(record);
    struct entry *entry =
        &promise->shared->page->entries[serial % PAGE_RECORDS];
    if (told != 0) {
        atomic_compare_exchange_strong(&entry->state, &state, state | told);
        /* There is always room, and nobody to be told of a failure. */
        ssize_t written = write(promise->pipe.number, bytes, told);
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
    ps_status status = peer_open(
        atomic_load(&entry->process), atomic_load(&entry->pipe), S_IFIFO,
        atomic_load(&entry->inode), O_RDONLY | O_NONBLOCK, pipe);
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
record_import_locked(struct cpu_engine *engine, int known, int *pipe,
                     struct cpu_record **result)
{
    struct cpu_record *record = cpu_item_take_locked(engine);
    ps_status status = PS_SUCCESS;
    if (record == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *record = (struct cpu_record){.refs = 1};
    if (known != 0) {
        cpu_record_complete_locked(engine, record, known - 1);
    }
    else {
        status = cpu_watcher_add_locked(engine, *pipe, record);
    }
    if (status != PS_SUCCESS) {
        cpu_item_give_locked(engine, record);
        return status;
    }
    *pipe = known != 0 ? *pipe : -1;
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
    struct entry *entry = &shared->page->entries[serial % PAGE_RECORDS];
    uint64_t state = atomic_load(&entry->state);
    struct cpu_record *record = NULL;
    ps_status status = PS_SUCCESS;
    int pipe = -1;
    if (state == serial << OUTCOME_BITS) {
        status = entry_open(entry, &state, &pipe);
    }
    if (status == PS_SUCCESS && state >> OUTCOME_BITS == serial) {
        status = record_import_locked(engine, OUTCOME(state), &pipe, &record);
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
    /* Its end may be known before the watcher comes to it. */
    struct cpu_record *record = event->object;
    uint64_t state = atomic_load(
        &shared->page->entries[shared->serial % PAGE_RECORDS].state);
    if (!record->done && record->capture == 0 &&
        state >> OUTCOME_BITS == shared->serial && OUTCOME(state) != 0) {
        cpu_record_complete_locked(engine, record, OUTCOME(state) - 1);
    }
    return latest <= shared->serial ? PS_SUCCESS : PS_ERROR_UNKNOWN;
}
