/* The watcher: one thread for all that an engine waits for of other processes.
 */
#include "shared.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct watch {
    struct cpu_file pipe;
    struct cpu_record *record;
    struct cpu_shared *shared;
    uint64_t serial; /* of the record there */
};

static void
watch_end_locked(struct cpu_engine *engine, struct watch *watch)
{
    struct cpu_record *record = watch->record;
    int bytes = 0;
    ioctl(watch->pipe.number, FIONREAD, &bytes);
    ps_status status =
        cpu_shared_end_locked(watch->shared, watch->serial, bytes);
    if (!record->done) {
        cpu_record_complete_locked(engine, record, status);
    }
    cpu_record_unref_locked(engine, record);
    /* Closing would not do, while a forked child has the file, too. */
    epoll_ctl(engine->watcher.epoll.number, EPOLL_CTL_DEL, watch->pipe.number,
              NULL);
    cpu_file_close_locked(&watch->pipe);
    free(watch);
}

static void *
watcher_main(void *argument)
{
    enum { AT_A_TIME = 64 };
    struct cpu_engine *engine = argument;
    struct epoll_event events[AT_A_TIME];
    cpu_lock(engine);
    while (engine->phase == CPU_OPEN) {
        int epoll = engine->watcher.epoll.number;
        cpu_unlock(engine);
        int count = epoll_wait(epoll, events, AT_A_TIME, -1);
        cpu_lock(engine);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr != NULL) {
                watch_end_locked(engine, events[i].data.ptr);
            }
        }
    }
    cpu_engine_leave_locked(engine);
    cpu_unlock(engine);
    return NULL;
}

static ps_status
watcher_start_locked(struct cpu_engine *engine)
{
    struct cpu_watcher *watcher = &engine->watcher;
    struct epoll_event rung = {.events = EPOLLIN};
    if (engine->phase != CPU_OPEN) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (watcher->epoll.number >= 0) {
        return PS_SUCCESS;
    }
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int bell = eventfd(0, EFD_CLOEXEC);
    if (epoll >= 0 && bell >= 0 &&
        epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &rung) == 0 &&
        cpu_thread_start_locked(engine, watcher_main, "ps-cpu-watcher")) {
        cpu_file_keep_locked(engine, &watcher->epoll, epoll);
        cpu_file_keep_locked(engine, &watcher->bell, bell);
        return PS_SUCCESS;
    }
    close(epoll);
    close(bell);
    return PS_ERROR_OUT_OF_MEMORY;
}

ps_status
cpu_watcher_add_locked(struct cpu_engine *engine, int pipe,
                       struct cpu_record *record, struct cpu_shared *shared,
                       uint64_t serial)
{
    ps_status status = watcher_start_locked(engine);
    if (status != PS_SUCCESS) {
        return status;
    }
    struct watch *watch = malloc(sizeof(*watch));
    struct epoll_event ended = {.events = EPOLLIN, .data.ptr = watch};
    if (watch == NULL || epoll_ctl(engine->watcher.epoll.number, EPOLL_CTL_ADD,
                                   pipe, &ended) != 0) {
        free(watch);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    cpu_file_keep_locked(engine, &watch->pipe, pipe);
    watch->record = record;
    record->refs++;
    watch->shared = shared;
    watch->serial = serial;
    return PS_SUCCESS;
}

void
cpu_watcher_stop_locked(struct cpu_engine *engine)
{
    if (engine->watcher.bell.number >= 0) {
        eventfd_write(engine->watcher.bell.number, 1);
    }
}
