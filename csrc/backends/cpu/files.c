/* Files that processes share: anonymous memory (memfd) and pipes.  When a
 * process ends, the readers of its pipes see the end of the file, and so know
 * that the process has ended.  A process opens a file of another process
 * through /proc/PID/fd, by the descriptor that the file has in that process.
 *
 * Always inspect such a file before you open or map it, and leave it alone if
 * it is not of the expected kind, because opening may have side effects.  For
 * example, the writer of a named pipe sees that there is a reader. */
#include "shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Files of an engine ---- */

void
cpu_file_keep_locked(struct cpu_engine *engine, struct cpu_file *file,
                     int number)
{
    file->number = number;
    LIST_INSERT_HEAD(&engine->files, file, neighbours);
}

void
cpu_file_close_locked(struct cpu_file *file)
{
    if (file->number < 0) {
        return;
    }
    LIST_REMOVE(file, neighbours);
    close(file->number);
    file->number = -1;
}

/* ---- Files of other processes ---- */

/* The properties that a file of another process must have.  Otherwise the file
 * is not opened. */
struct expected {
    mode_t type;
    uint64_t inode;
    /* The beginning of the target of the file's link in /proc/PID/fd. */
    const char *name;
    int flags; /* the flags to open it with */
};

/* Returns whether the open file has the expected properties and belongs to
 * this user. */
static bool
is_expected(int file, const char *link, const struct expected *expected)
{
    char name[64];
    struct stat found;
    ssize_t length = readlink(link, name, sizeof(name));
    size_t wanted = strlen(expected->name);
    return length >= (ssize_t)wanted &&
           memcmp(name, expected->name, wanted) == 0 &&
           fstat(file, &found) == 0 &&
           (found.st_mode & S_IFMT) == expected->type &&
           found.st_ino == expected->inode && found.st_uid == geteuid();
}

static ps_status
open_failure(void)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM
               ? PS_ERROR_OUT_OF_MEMORY
               : PS_ERROR_INVALID_HANDLE;
}

/* Open the file that another process has open under the descriptor `number`.
 * Statuses: PS_ERROR_INVALID_HANDLE if that process has no such file open, if
 * the file is not as expected, or if this process has no permission;
 * PS_ERROR_OUT_OF_MEMORY. */
static ps_status
peer_open(pid_t process, int number, const struct expected *expected,
          int *opened)
{
    char link[40];
    ps_status status = PS_ERROR_INVALID_HANDLE;
    snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)process, number);
    /* Opening with O_PATH has no effect on the file. */
    int path = open(link, O_PATH | O_CLOEXEC);
    if (path < 0) {
        return open_failure();
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", path);
    if (is_expected(path, link, expected)) {
        *opened = open(link, expected->flags | O_CLOEXEC);
        status = *opened >= 0 ? PS_SUCCESS : open_failure();
    }
    close(path);
    return status;
}

/* ---- Pages ---- */

/* With these seals, no process can change the size of a file that others have
 * mapped, or add a seal that forbids the others to write. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static const struct {
    char magic[8];
    const char *file;
} names[] = {
    [CPU_SHARE_EVENT] = {"psevent2", "/memfd:pystreams-event"},
    [CPU_SHARE_MEMORY] = {"psmemor1", "/memfd:pystreams-memory"},
};

_Static_assert(sizeof(struct cpu_token) == PS_IPC_HANDLE_BYTES,
               "a token fills a handle");

/* Returns the FNV-1a checksum of the members before `checksum`.  It detects
 * every change of a single byte. */
static uint64_t
checksum(const struct cpu_token *token)
{
    const unsigned char *bytes = (const unsigned char *)token;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < offsetof(struct cpu_token, checksum); i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

/* Map the pages.  Returns NULL if that fails.  A forked child does not inherit
 * the mapping of an event.  It does inherit the mapping of memory, because it
 * may have views of the memory. */
static void *
pages_map(int file, const struct cpu_pages *pages)
{
    size_t all = pages->front + pages->nbytes;
    char *front = mmap(NULL, all, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (front == MAP_FAILED) {
        return NULL;
    }
    char *mapped = front + pages->front;
    if (mmap(mapped, pages->nbytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        munmap(front, all);
        return NULL;
    }
    if (pages->front == 0) {
        madvise(mapped, pages->nbytes, MADV_DONTFORK);
    }
    return mapped;
}

void
cpu_pages_unmap(const struct cpu_pages *pages, void *mapped)
{
    munmap((char *)mapped - pages->front, pages->front + pages->nbytes);
}

/* Set the file's size, allocate its memory, and seal it.  If the memory were
 * allocated later and the machine had none left, a write would end the program
 * with SIGBUS. */
static bool
file_fill(int file, size_t nbytes)
{
    sigset_t all, before;
    sigfillset(&all);
    /* Block signals, because a signal would interrupt the call. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool filled = fallocate(file, 0, 0, (off_t)nbytes) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return filled && fcntl(file, F_ADD_SEALS, SEALS) == 0;
}

ps_status
cpu_token_create(const struct cpu_engine *engine, enum cpu_share share,
                 int device, const struct cpu_pages *pages,
                 struct cpu_token *token, void **mapped)
{
    struct stat found;
    int file = memfd_create(strchr(names[share].file, ':') + 1,
                            MFD_CLOEXEC | MFD_ALLOW_SEALING);
    *mapped = NULL;
    *token = (struct cpu_token){
        .device_type = engine->table.base.device_type,
        .device = device,
        .process = getpid(),
        .file = file,
    };
    if (file >= 0 && file_fill(file, pages->nbytes) &&
        fstat(file, &found) == 0 &&
        getrandom(token->nonce, sizeof(token->nonce), 0) ==
            (ssize_t)sizeof(token->nonce)) {
        *mapped = pages_map(file, pages);
    }
    if (*mapped == NULL) {
        close(file);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    token->inode = found.st_ino;
    memcpy(token->magic, names[share].magic, sizeof(token->magic));
    token->checksum = checksum(token);
    memcpy(*mapped, token->nonce, sizeof(token->nonce));
    return PS_SUCCESS;
}

static ps_status
token_check(const struct cpu_engine *engine, enum cpu_share share, int device,
            const struct cpu_token *token)
{
    if (memcmp(token->magic, names[share].magic, sizeof(token->magic)) != 0 ||
        token->checksum != checksum(token) ||
        token->device_type != engine->table.base.device_type) {
        return PS_ERROR_INVALID_VALUE;
    }
    return token->device == device ? PS_SUCCESS : PS_ERROR_INVALID_DEVICE;
}

/* Returns whether the file has the seals.  This also excludes files with a
 * name, which cannot have these seals. */
static bool
is_sealed(int file)
{
    int seals = fcntl(file, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS;
}

/* Map an open file if it is the file that the token describes. */
static ps_status
file_map(int file, const struct cpu_pages *pages,
         const struct cpu_token *token, void **mapped)
{
    struct stat found;
    if (!is_sealed(file) || fstat(file, &found) != 0 ||
        found.st_size != (off_t)pages->nbytes) {
        return PS_ERROR_INVALID_HANDLE;
    }
    void *opened = pages_map(file, pages);
    if (opened == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (memcmp(opened, token->nonce, sizeof(token->nonce)) != 0) {
        cpu_pages_unmap(pages, opened);
        return PS_ERROR_INVALID_HANDLE;
    }
    *mapped = opened;
    return PS_SUCCESS;
}

ps_status
cpu_token_open(const struct cpu_engine *engine, enum cpu_share share,
               int device, const struct cpu_pages *pages,
               const unsigned char handle[PS_IPC_HANDLE_BYTES],
               struct cpu_token *token, void **mapped)
{
    int file;
    memcpy(token, handle, sizeof(*token));
    ps_status status = token_check(engine, share, device, token);
    if (status != PS_SUCCESS) {
        return status;
    }
    struct expected expected = {
        .type = S_IFREG,
        .inode = token->inode,
        .name = names[share].file,
        .flags = O_RDWR,
    };
    status = peer_open(token->process, token->file, &expected, &file);
    if (status == PS_SUCCESS) {
        status = file_map(file, pages, token, mapped);
        close(file);
    }
    return status;
}

/* ---- Pipes ---- */

int
cpu_pipe_create(uint32_t *inode)
{
    int ends[2];
    char path[32];
    struct stat found;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
    int both = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    close(ends[0]);
    close(ends[1]);
    /* On Linux, the inode number of a pipe has 32 bits. */
    if (both < 0 || fstat(both, &found) != 0 || found.st_ino > UINT32_MAX) {
        close(both);
        return -1;
    }
    *inode = (uint32_t)found.st_ino;
    return both;
}

ps_status
cpu_pipe_open(pid_t process, int likely, uint32_t inode, int *pipe)
{
    struct expected expected = {
        .type = S_IFIFO,
        .inode = inode,
        .name = "pipe:",
        .flags = O_RDONLY | O_NONBLOCK,
    };
    char path[32];
    struct dirent *entry;
    ps_status status = peer_open(process, likely, &expected, pipe);
    if (status != PS_ERROR_INVALID_HANDLE) {
        return status;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)process);
    DIR *files = opendir(path);
    if (files == NULL) {
        return open_failure();
    }
    while (status == PS_ERROR_INVALID_HANDLE &&
           (entry = readdir(files)) != NULL) {
        status = peer_open(process, atoi(entry->d_name), &expected, pipe);
    }
    closedir(files);
    return status;
}
