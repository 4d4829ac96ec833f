/* Mailboxes.  The file descriptor of a mailbox is an eventfd.  To save system
 * calls, it is written only when a message arrives while no other one waits to
 * be taken, and read only when the last waiting message has been removed.
 *
 *   created --expected--> pending --arrives--> to be taken --> freed
 *                            |                     |
 *                            '----- cancelled -----' */
#include "mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"

enum { LEAST_BUCKETS = 8 };

struct ps_mailbox {
    /* Guards the fields below.  Never held across a call to a backend. */
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    /* The messages that can be taken, as a ring of their notifications. */
    struct ps_notification *arrived;
    /* A hash table of the messages by token, without those that were taken or
     * abandoned.  `count` is the number of messages in the table plus the
     * number of abandoned messages. */
    struct ps_message **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    int fd; /* -1 until ps_mailbox_fd creates it */
    /* Whether ps_mailbox_destroy was called.  Then the mailbox is freed
     * together with its last abandoned message. */
    bool destroyed;
};

ps_status
ps_mailbox_create(struct ps_mailbox **result)
{
    struct ps_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    struct ps_message **buckets = calloc(LEAST_BUCKETS, sizeof(*buckets));
    pthread_condattr_t monotonic;
    if (mailbox == NULL || buckets == NULL) {
        free(mailbox);
        free(buckets);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    mailbox->buckets = buckets;
    mailbox->bucket_count = LEAST_BUCKETS;
    mailbox->fd = -1;
    pthread_mutex_init(&mailbox->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&mailbox->posted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *result = mailbox;
    return PS_SUCCESS;
}

/* Unlock the mailbox.  If it was destroyed and has no messages any more, free
 * it. */
static void
unlock(struct ps_mailbox *mailbox)
{
    bool last = mailbox->destroyed && mailbox->count == 0;
    pthread_mutex_unlock(&mailbox->mutex);
    if (last) {
        pthread_cond_destroy(&mailbox->posted);
        pthread_mutex_destroy(&mailbox->mutex);
        free(mailbox->buckets);
        free(mailbox);
    }
}

/* ---- Messages by their tokens ---- */

static struct ps_message **
bucket_of(const struct ps_mailbox *mailbox, uint64_t token)
{
    return &mailbox->buckets[token & (mailbox->bucket_count - 1)];
}

static void
insert_locked(struct ps_mailbox *mailbox, struct ps_message *message)
{
    struct ps_message **bucket = bucket_of(mailbox, message->token);
    message->same_hash = *bucket;
    *bucket = message;
}

static void
remove_locked(struct ps_mailbox *mailbox, struct ps_message *message)
{
    struct ps_message **link = bucket_of(mailbox, message->token);
    while (*link != message) {
        link = &(*link)->same_hash;
    }
    *link = message->same_hash;
}

/* Double the hash table.  If memory runs out, the old one stays in use. */
static void
grow_locked(struct ps_mailbox *mailbox)
{
    size_t count = mailbox->bucket_count;
    struct ps_message **old = mailbox->buckets;
    struct ps_message **new = calloc(2 * count, sizeof(*new));
    if (new == NULL) {
        return;
    }
    mailbox->buckets = new;
    mailbox->bucket_count = 2 * count;
    for (size_t i = 0; i < count; i++) {
        struct ps_message *message = old[i], *next;
        for (; message != NULL; message = next) {
            next = message->same_hash;
            insert_locked(mailbox, message);
        }
    }
    free(old);
}

/* ---- Arrivals ---- */

static void
signal_locked(struct ps_mailbox *mailbox)
{
    uint64_t one = 1;
    pthread_cond_signal(&mailbox->posted);
    if (mailbox->fd >= 0) {
        /* The counter is at most 1, so the write cannot block. */
        ssize_t written = write(mailbox->fd, &one, sizeof(one));
        (void)written;
    }
}

static void
quiet_locked(struct ps_mailbox *mailbox)
{
    uint64_t count;
    if (mailbox->fd >= 0) {
        ssize_t taken = read(mailbox->fd, &count, sizeof(count));
        (void)taken;
    }
}

void
ps_message_free(struct ps_message *message)
{
    if (message->release != NULL) {
        message->release(message->attached);
    }
    free(message);
}

static void
forget_locked(struct ps_mailbox *mailbox, struct ps_message *message)
{
    if (!message->abandoned) {
        remove_locked(mailbox, message);
    }
    mailbox->count--;
    ps_message_free(message);
}

/* Deliver a message that has arrived and is not held.  If it was abandoned,
 * frees it.  Otherwise appends it to the messages that can be taken. */
static void
deliver_locked(struct ps_mailbox *mailbox, struct ps_message *message)
{
    if (message->abandoned) {
        forget_locked(mailbox, message);
        return;
    }
    bool was_empty = mailbox->arrived == NULL;
    ps_notification_append(&mailbox->arrived,
                           &message->registration.notification);
    if (was_empty) {
        signal_locked(mailbox);
    }
}

static void
arrive_locked(struct ps_mailbox *mailbox, struct ps_message *message,
              ps_status status)
{
    message->status = status;
    message->arrived = true;
    if (!message->held) {
        deliver_locked(mailbox, message);
    }
}

/* The callback of a message's notification. */
static void
post(void *argument, ps_status status)
{
    struct ps_message *message = argument;
    struct ps_mailbox *mailbox = message->mailbox;
    pthread_mutex_lock(&mailbox->mutex);
    arrive_locked(mailbox, message, status);
    unlock(mailbox);
}

ps_status
ps_message_create(struct ps_mailbox *mailbox, uint64_t token,
                  struct ps_message **result)
{
    struct ps_message *message = malloc(sizeof(*message));
    if (message == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *message = (struct ps_message){
        .registration.notification = {.reached = post, .argument = message},
        .mailbox = mailbox,
        .token = token,
        .held = true,
    };
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->count >= mailbox->bucket_count) {
        grow_locked(mailbox);
    }
    insert_locked(mailbox, message);
    mailbox->count++;
    pthread_mutex_unlock(&mailbox->mutex);
    *result = message;
    return PS_SUCCESS;
}

void
ps_message_expect(struct ps_message *message)
{
    struct ps_mailbox *mailbox = message->mailbox;
    PS_HOLD(&mailbox->mutex);
    message->held = false;
    if (message->arrived) {
        deliver_locked(mailbox, message);
    }
}

void
ps_message_drop(struct ps_message *message)
{
    struct ps_mailbox *mailbox = message->mailbox;
    PS_HOLD(&mailbox->mutex);
    forget_locked(mailbox, message);
}

bool
ps_mailbox_post(struct ps_mailbox *mailbox, uint64_t token)
{
    PS_HOLD(&mailbox->mutex);
    struct ps_message *message = *bucket_of(mailbox, token);
    while (message != NULL &&
           (message->token != token || message->arrived || message->held ||
            message->registration.device != NULL)) {
        message = message->same_hash;
    }
    if (message != NULL) {
        arrive_locked(mailbox, message, PS_SUCCESS);
    }
    return message != NULL;
}

/* ---- Cancelling ---- */

/* Cancel the notification of a message that this thread has marked as held.
 * Called with the mutex unlocked, because this may call the backend. */
static void
finish_cancel(struct ps_message *message)
{
    struct ps_mailbox *mailbox = message->mailbox;
    ps_status status = ps_notify_cancel(&message->registration);
    PS_HOLD(&mailbox->mutex);
    message->held = false;
    if (status == PS_SUCCESS || message->arrived) {
        forget_locked(mailbox, message);
    }
    else {
        remove_locked(mailbox, message);
        message->abandoned = true;
    }
}

/* Remove a message from the messages that can be taken. */
static void
unlink_locked(struct ps_mailbox *mailbox, struct ps_message *message)
{
    ps_notification_remove(&message->registration.notification);
    if (mailbox->arrived == NULL) {
        quiet_locked(mailbox);
    }
}

/* Cancel the messages of one bucket that have this token, or all messages of
 * the bucket if token is NULL.  `message` is the first one in the bucket.
 * Stops at a message whose notification must be cancelled first, marks this
 * message as held, and returns it.  The caller must then unlock the mutex,
 * call finish_cancel, and call this function again.  Returns NULL when no
 * message is left to cancel. */
static struct ps_message *
cancel_some_locked(struct ps_mailbox *mailbox, struct ps_message *message,
                   const uint64_t *token)
{
    struct ps_message *next;
    for (; message != NULL; message = next) {
        next = message->same_hash;
        if (message->held || (token != NULL && message->token != *token)) {
            continue;
        }
        if (!message->arrived && message->registration.device != NULL) {
            message->held = true;
            return message;
        }
        if (message->arrived) {
            unlink_locked(mailbox, message);
        }
        forget_locked(mailbox, message);
    }
    return NULL;
}

void
ps_mailbox_cancel(struct ps_mailbox *mailbox, uint64_t token)
{
    struct ps_message *message;
    do {
        pthread_mutex_lock(&mailbox->mutex);
        message =
            cancel_some_locked(mailbox, *bucket_of(mailbox, token), &token);
        pthread_mutex_unlock(&mailbox->mutex);
        if (message != NULL) {
            finish_cancel(message);
        }
    } while (message != NULL);
}

void
ps_mailbox_cancel_all(struct ps_mailbox *mailbox)
{
    size_t bucket = 0;
    pthread_mutex_lock(&mailbox->mutex);
    while (bucket < mailbox->bucket_count) {
        struct ps_message *message =
            cancel_some_locked(mailbox, mailbox->buckets[bucket], NULL);
        bucket += message == NULL;
        if (message != NULL) {
            pthread_mutex_unlock(&mailbox->mutex);
            finish_cancel(message);
            pthread_mutex_lock(&mailbox->mutex);
        }
    }
    pthread_mutex_unlock(&mailbox->mutex);
}

void
ps_mailbox_destroy(struct ps_mailbox *mailbox)
{
    if (mailbox == NULL) {
        return;
    }
    ps_mailbox_cancel_all(mailbox);
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->fd >= 0) {
        close(mailbox->fd);
    }
    mailbox->fd = -1;
    mailbox->destroyed = true;
    unlock(mailbox);
}

/* ---- The receiver ---- */

/* Returns the oldest message that can be taken, or NULL. */
static struct ps_message *
first_locked(const struct ps_mailbox *mailbox)
{
    return mailbox->arrived != NULL ? mailbox->arrived->next->argument : NULL;
}

bool
ps_mailbox_first(struct ps_mailbox *mailbox, uint64_t *token,
                 ps_status *status, void (*seen)(void *attached))
{
    PS_HOLD(&mailbox->mutex);
    const struct ps_message *first = first_locked(mailbox);
    if (first != NULL) {
        *token = first->token;
        *status = first->status;
        seen(first->attached);
    }
    return first != NULL;
}

struct ps_message *
ps_mailbox_take(struct ps_mailbox *mailbox)
{
    struct ps_message *messages, **tail = &messages, *message;
    PS_HOLD(&mailbox->mutex);
    while ((message = first_locked(mailbox)) != NULL) {
        remove_locked(mailbox, message);
        unlink_locked(mailbox, message);
        mailbox->count--;
        *tail = message;
        tail = &message->next;
    }
    *tail = NULL;
    return messages;
}

void
ps_mailbox_put_back(struct ps_mailbox *mailbox, struct ps_message *messages)
{
    struct ps_message *next;
    PS_HOLD(&mailbox->mutex);
    struct ps_notification *last = mailbox->arrived;
    for (; messages != NULL; messages = next) {
        next = messages->next;
        insert_locked(mailbox, messages);
        mailbox->count++;
        deliver_locked(mailbox, messages);
    }
    if (last != NULL) {
        /* The messages that are put back come before those that have arrived
         * since. */
        mailbox->arrived = last;
    }
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
    PS_HOLD(&mailbox->mutex);
    while (mailbox->arrived == NULL && error == 0) {
        error =
            pthread_cond_timedwait(&mailbox->posted, &mailbox->mutex, &end);
    }
    return mailbox->arrived != NULL ? PS_SUCCESS : PS_ERROR_TIMED_OUT;
}

int
ps_mailbox_fd(struct ps_mailbox *mailbox)
{
    PS_HOLD(&mailbox->mutex);
    if (mailbox->fd < 0) {
        mailbox->fd =
            eventfd(mailbox->arrived != NULL, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    return mailbox->fd;
}
