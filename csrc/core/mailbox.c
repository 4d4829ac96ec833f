/* Mailboxes.  The descriptor is written once per run of letters, not once per
 * letter: a full mailbox wakes its reader no more. */
#include "mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct ps_mailbox {
    atomic_uint refs;
    /* Guards what follows. */
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    struct ps_letter *first;
    struct ps_letter **tail;
    int fd; /* -1 until asked for */
};

ps_status
ps_mailbox_create(struct ps_mailbox **result)
{
    struct ps_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    pthread_condattr_t monotonic;
    if (mailbox == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    atomic_init(&mailbox->refs, 1);
    mailbox->tail = &mailbox->first;
    mailbox->fd = -1;
    pthread_mutex_init(&mailbox->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&mailbox->posted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *result = mailbox;
    return PS_SUCCESS;
}

struct ps_mailbox *
ps_mailbox_ref(struct ps_mailbox *mailbox)
{
    atomic_fetch_add_explicit(&mailbox->refs, 1, memory_order_relaxed);
    return mailbox;
}

void
ps_mailbox_unref(struct ps_mailbox *mailbox)
{
    if (mailbox == NULL || atomic_fetch_sub_explicit(
                               &mailbox->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    while (mailbox->first != NULL) {
        struct ps_letter *letter = mailbox->first;
        mailbox->first = letter->next;
        free(letter);
    }
    ps_mailbox_close_fd(mailbox);
    pthread_cond_destroy(&mailbox->posted);
    pthread_mutex_destroy(&mailbox->mutex);
    free(mailbox);
}

ps_status
ps_letter_create(struct ps_mailbox *mailbox, uint64_t token,
                 struct ps_letter **result)
{
    struct ps_letter *letter = calloc(1, sizeof(*letter));
    if (letter == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    letter->mailbox = ps_mailbox_ref(mailbox);
    letter->token = token;
    *result = letter;
    return PS_SUCCESS;
}

void
ps_letter_destroy(struct ps_letter *letter)
{
    ps_mailbox_unref(letter->mailbox);
    free(letter);
}

static void
signal_locked(struct ps_mailbox *mailbox)
{
    uint64_t one = 1;
    pthread_cond_signal(&mailbox->posted);
    if (mailbox->fd >= 0) {
        /* It holds at most one, so it cannot be full. */
        ssize_t written = write(mailbox->fd, &one, sizeof(one));
        (void)written;
    }
}

void
ps_letter_post(void *posted, ps_status status)
{
    struct ps_letter *letter = posted;
    struct ps_mailbox *mailbox = letter->mailbox;
    letter->mailbox = NULL;
    letter->status = status;
    pthread_mutex_lock(&mailbox->mutex);
    bool was_empty = mailbox->first == NULL;
    *mailbox->tail = letter;
    mailbox->tail = &letter->next;
    if (was_empty) {
        signal_locked(mailbox);
    }
    pthread_mutex_unlock(&mailbox->mutex);
    ps_mailbox_unref(mailbox);
}

struct ps_letter *
ps_mailbox_take(struct ps_mailbox *mailbox)
{
    uint64_t count;
    pthread_mutex_lock(&mailbox->mutex);
    struct ps_letter *letters = mailbox->first;
    mailbox->first = NULL;
    mailbox->tail = &mailbox->first;
    if (letters != NULL && mailbox->fd >= 0) {
        ssize_t taken = read(mailbox->fd, &count, sizeof(count));
        (void)taken;
    }
    pthread_mutex_unlock(&mailbox->mutex);
    return letters;
}

ps_status
ps_mailbox_wait(struct ps_mailbox *mailbox, int64_t timeout_ns)
{
    enum { SECOND = 1000000000 };
    struct timespec end;
    int error = 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t whole = timeout_ns / SECOND;
    end.tv_nsec += (long)(timeout_ns % SECOND);
    end.tv_sec += (time_t)whole + end.tv_nsec / SECOND;
    end.tv_nsec %= SECOND;
    pthread_mutex_lock(&mailbox->mutex);
    while (mailbox->first == NULL && error == 0) {
        error =
            pthread_cond_timedwait(&mailbox->posted, &mailbox->mutex, &end);
    }
    bool arrived = mailbox->first != NULL;
    pthread_mutex_unlock(&mailbox->mutex);
    return arrived ? PS_SUCCESS : PS_ERROR_NOT_READY;
}

int
ps_mailbox_fd(struct ps_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->fd < 0) {
        mailbox->fd =
            eventfd(mailbox->first != NULL, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    int fd = mailbox->fd;
    pthread_mutex_unlock(&mailbox->mutex);
    return fd;
}

void
ps_mailbox_close_fd(struct ps_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->mutex);
    int fd = mailbox->fd;
    mailbox->fd = -1;
    pthread_mutex_unlock(&mailbox->mutex);
    if (fd >= 0) {
        close(fd);
    }
}
