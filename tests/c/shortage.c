/* A library for LD_PRELOAD.  It can make the extension module's calls fail, as
 * they do on a machine that is short of memory, descriptors or threads.  It
 * also counts the memory blocks and mappings that the module holds.
 *
 * A call counts as the module's if its return address is in the module's code.
 * So calls by the interpreter, the C library and this file never fail. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <search.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

/* ---- The module's calls, and which of them fail ---- */

static const char *module_name;
static uintptr_t code_begin, code_end;
static atomic_bool armed;
static atomic_long seen, failed, first, last;
static _Atomic(const char *) failed_name;

static int
look_at_library(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    if (strstr(info->dlpi_name, module_name) == NULL) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X)) {
            code_begin = info->dlpi_addr + segment->p_vaddr;
            code_end = code_begin + segment->p_memsz;
        }
    }
    return 1;
}

/* Make the loaded library whose path contains the name "the module" from now
 * on.  Returns whether there is such a library. */
bool
shortage_of(const char *name)
{
    module_name = name;
    return dl_iterate_phdr(look_at_library, NULL) != 0;
}

/* From now on, let the module's next `skip` calls succeed, and the `count`
 * calls after those fail. */
void
shortage_begin(long skip, long count)
{
    seen = 0;
    failed = 0;
    failed_name = "";
    first = skip;
    last = skip + count;
    armed = true;
}

/* Let all further calls succeed.  Returns the number of calls that failed. */
long
shortage_end(void)
{
    armed = false;
    return failed;
}

/* Returns the name of the function that failed last. */
const char *
shortage_name(void)
{
    return failed_name;
}

static bool
is_ours(void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    return address >= code_begin && address < code_end;
}

static bool
fails(const char *name, void *caller)
{
    if (!armed || !is_ours(caller)) {
        return false;
    }
    long number = atomic_fetch_add(&seen, 1);
    if (number < first || number >= last) {
        return false;
    }
    failed_name = name;
    failed++;
    return true;
}

#define FAILS(name, error) \
    (fails(#name, __builtin_return_address(0)) && (errno = (error), true))

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- What the module holds ---- */

/* A set of addresses: open addressing, linear probing. */
enum { SLOTS = 1 << 18 };
static void *held[SLOTS];
static atomic_long held_count;
static atomic_flag held_lock = ATOMIC_FLAG_INIT;

static size_t
slot_of(const void *block)
{
    return ((uintptr_t)block >> 4) * 0x9E3779B97F4A7C15u >> 46;
}

static void
lock(void)
{
    while (
        atomic_flag_test_and_set_explicit(&held_lock, memory_order_acquire)) {
    }
}

static void
unlock(void)
{
    atomic_flag_clear_explicit(&held_lock, memory_order_release);
}

static void
hold(void *block, void *caller)
{
    if (block == NULL || !is_ours(caller) || held_count > SLOTS / 2) {
        return;
    }
    lock();
    size_t i = slot_of(block);
    while (held[i] != NULL) {
        i = (i + 1) % SLOTS;
    }
    held[i] = block;
    held_count++;
    unlock();
}

static void
give_up(void *block)
{
    if (block == NULL || held_count == 0) {
        return;
    }
    lock();
    size_t i = slot_of(block);
    while (held[i] != NULL && held[i] != block) {
        i = (i + 1) % SLOTS;
    }
    if (held[i] != NULL) {
        held_count--;
        /* Close the gap, so that later entries are still found. */
        for (size_t j = (i + 1) % SLOTS; held[j] != NULL;
             j = (j + 1) % SLOTS) {
            size_t home = slot_of(held[j]);
            if ((j - home) % SLOTS >= (j - i) % SLOTS) {
                held[i] = held[j];
                i = j;
            }
        }
        held[i] = NULL;
    }
    unlock();
}

/* Returns the number of blocks and mappings that the module holds. */
long
shortage_held(void)
{
    return held_count;
}

/* ---- Memory ---- */

void *
malloc(size_t size)
{
    if (FAILS(malloc, ENOMEM)) {
        return NULL;
    }
    void *block = __libc_malloc(size);
    hold(block, __builtin_return_address(0));
    return block;
}

void *
calloc(size_t count, size_t size)
{
    if (FAILS(calloc, ENOMEM)) {
        return NULL;
    }
    void *block = __libc_calloc(count, size);
    hold(block, __builtin_return_address(0));
    return block;
}

void *
realloc(void *old, size_t size)
{
    if (FAILS(realloc, ENOMEM)) {
        return NULL;
    }
    /* Remove the old address from the set first: as soon as the block is
     * freed, another thread may get its address. */
    give_up(old);
    void *block = __libc_realloc(old, size);
    hold(block != NULL ? block : old, __builtin_return_address(0));
    return block;
}

void *
aligned_alloc(size_t alignment, size_t size)
{
    if (FAILS(aligned_alloc, ENOMEM)) {
        return NULL;
    }
    void *block = __libc_memalign(alignment, size);
    hold(block, __builtin_return_address(0));
    return block;
}

void
free(void *block)
{
    give_up(block);
    __libc_free(block);
}

void *
tsearch(const void *key, void **root, __compar_fn_t compare)
{
    return FAILS(tsearch, ENOMEM) ? NULL : REAL(tsearch)(key, root, compare);
}

void *
mmap(void *address, size_t size, int protection, int flags, int file,
     off_t offset)
{
    if (FAILS(mmap, ENOMEM)) {
        return MAP_FAILED;
    }
    void *block = REAL(mmap)(address, size, protection, flags, file, offset);
    /* With MAP_FIXED, the result is part of a mapping that is held already. */
    if (block != MAP_FAILED && !(flags & MAP_FIXED)) {
        hold(block, __builtin_return_address(0));
    }
    return block;
}

int
munmap(void *address, size_t size)
{
    give_up(address);
    return REAL(munmap)(address, size);
}

/* ---- Threads and descriptors ---- */

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
               void *(*function)(void *), void *argument)
{
    if (FAILS(pthread_create, EAGAIN)) {
        return EAGAIN;
    }
    return REAL(pthread_create)(thread, attributes, function, argument);
}

int
eventfd(unsigned count, int flags)
{
    return FAILS(eventfd, EMFILE) ? -1 : REAL(eventfd)(count, flags);
}

int
epoll_create1(int flags)
{
    return FAILS(epoll_create1, EMFILE) ? -1 : REAL(epoll_create1)(flags);
}

int
epoll_ctl(int epoll, int operation, int file, struct epoll_event *event)
{
    /* The other operations need no memory, so they do not fail. */
    if (operation == EPOLL_CTL_ADD && FAILS(epoll_ctl, ENOSPC)) {
        return -1;
    }
    return REAL(epoll_ctl)(epoll, operation, file, event);
}

int
pipe2(int *ends, int flags)
{
    return FAILS(pipe2, EMFILE) ? -1 : REAL(pipe2)(ends, flags);
}

int
memfd_create(const char *name, unsigned flags)
{
    return FAILS(memfd_create, EMFILE) ? -1 : REAL(memfd_create)(name, flags);
}

int
fallocate(int file, int mode, off_t offset, off_t size)
{
    return FAILS(fallocate, ENOSPC)
               ? -1
               : REAL(fallocate)(file, mode, offset, size);
}

int
fstat(int file, struct stat *status)
{
    return FAILS(fstat, EIO) ? -1 : REAL(fstat)(file, status);
}

int
open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    return FAILS(open, EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int __open_2(const char *path, int flags);

int
__open_2(const char *path, int flags)
{
    return FAILS(open, EMFILE) ? -1 : REAL(__open_2)(path, flags);
}

DIR *
opendir(const char *path)
{
    return FAILS(opendir, EMFILE) ? NULL : REAL(opendir)(path);
}

FILE *
fopen(const char *path, const char *mode)
{
    return FAILS(fopen, EMFILE) ? NULL : REAL(fopen)(path, mode);
}

int
fcntl(int file, int command, ...)
{
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    return FAILS(fcntl, ENOMEM) ? -1 : REAL(fcntl)(file, command, argument);
}

ssize_t
getrandom(void *bytes, size_t size, unsigned flags)
{
    return FAILS(getrandom, EAGAIN) ? -1 : REAL(getrandom)(bytes, size, flags);
}
