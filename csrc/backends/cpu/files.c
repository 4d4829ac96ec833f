/* Files that processes share: a page of memory, and the pipes that end with
 * the process.  A file of another process is found by number through /proc.
 *
 * One rule: a file is looked at before it is opened or mapped, and left alone
 * if it is not of the expected kind, since opening it may have effects: the
 * writer of a named pipe sees a reader come. */
#include "shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_NAME "pystreams-event"

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

/* A file of a peer is opened only if it matches this. */
struct expected {
    mode_t type;
    uint64_t inode;
    const char *name; /* how the link in /proc begins */
    int flags;        /* to open it with */
};

/* Whether the open file is the one expected, and of this user. */
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

/* Open a file that a process has open.
 * Statuses: PS_ERROR_INVALID_HANDLE if it no longer has, if that is another
 * file, or if this process may not look; PS_ERROR_OUT_OF_MEMORY. */
static ps_status
peer_open(pid_t process, int number, const struct expected *expected,
          int *opened)
{
    char link[40];
    ps_status status = PS_ERROR_INVALID_HANDLE;
    snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)process, number);
    /* O_PATH has no effect on the file. */
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

/* NULL if it cannot be mapped.  A forked child does not inherit the page. */
static void *
page_map(int file)
{
    void *page = mmap(NULL, CPU_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                      file, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    madvise(page, CPU_PAGE_BYTES, MADV_DONTFORK);
    return page;
}

/* With these no process can truncate a page that others have mapped, nor add
 * a seal that keeps them from writing. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

void *
cpu_page_create(int *file, uint64_t *inode)
{
    void *page = NULL;
    struct stat found;
    *file = memfd_create(PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*file < 0) {
        return NULL;
    }
    if (ftruncate(*file, CPU_PAGE_BYTES) == 0 &&
        fcntl(*file, F_ADD_SEALS, SEALS) == 0 && fstat(*file, &found) == 0) {
        *inode = found.st_ino;
        page = page_map(*file);
    }
    if (page == NULL) {
        close(*file);
    }
    return page;
}

/* Whether the file is a page that no process can make shorter.  Files that
 * have a name cannot be sealed. */
static bool
is_page(int file)
{
    struct stat found;
    int seals = fcntl(file, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS &&
           fstat(file, &found) == 0 && found.st_size == CPU_PAGE_BYTES;
}

ps_status
cpu_page_open(pid_t process, int number, uint64_t inode, void **page)
{
    struct expected expected = {
        .type = S_IFREG,
        .inode = inode,
        .name = "/memfd:" PAGE_NAME,
        .flags = O_RDWR,
    };
    int file;
    ps_status status = peer_open(process, number, &expected, &file);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (!is_page(file)) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    else if ((*page = page_map(file)) == NULL) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    close(file);
    return status;
}

void
cpu_page_unmap(void *page)
{
    munmap(page, CPU_PAGE_BYTES);
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
    /* Linux numbers pipes with 32 bits. */
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
