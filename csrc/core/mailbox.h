/* Mailboxes: queues of messages about completed work.  A backend reports a
 * completion by a callback, usually on one of its own threads.  The callback
 * posts a message to a mailbox.  Another thread, the receiver, waits for
 * messages and takes them.
 *
 * A message is allocated before its notification is registered with the
 * backend, so that posting the message cannot fail.  A message can be
 * cancelled until the receiver takes it. */
#ifndef PYSTREAMS_CORE_MAILBOX_H
#define PYSTREAMS_CORE_MAILBOX_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "notify.h"

/* A message.  The mailbox's mutex guards it once ps_message_expect has been
 * called. */
struct ps_message {
    /* The notification whose callback posts the message to the mailbox.  It is
     * registered with a function of notify.h.  A message whose notification is
     * never registered is posted by ps_mailbox_post instead. */
    struct ps_registration registration;
    struct ps_mailbox *mailbox;
    /* A number that the receiver has chosen to identify the message. */
    uint64_t token;
    /* The status with which the work ended. */
    ps_status status;
    /* An object for the receiver, or NULL.  release(attached) is called when
     * the message is freed. */
    void *attached;
    void (*release)(void *attached);
    /* Whether a thread is registering or cancelling the notification.  That
     * thread still accesses the message, so the receiver must not take the
     * message yet. */
    bool held;
    bool arrived;
    /* Whether the message was cancelled too late to cancel its notification.
     * The notification's callback will still run, and then frees the
     * message. */
    bool abandoned;
    struct ps_message *next; /* the next one in a list of taken messages */
    struct ps_message *same_hash; /* the next one in the hash bucket */
};

ps_status ps_mailbox_create(struct ps_mailbox **mailbox);

/* Cancel all messages of the mailbox, and free it.  Accepts NULL.  The mailbox
 * must not be used afterwards. */
void ps_mailbox_destroy(struct ps_mailbox *mailbox);

/* Create a message.  The message is held (see `held`) until the caller calls
 * ps_message_expect or ps_message_drop.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_message_create(struct ps_mailbox *mailbox, uint64_t token,
                            struct ps_message **message);

/* Let the receiver take the message as soon as it has arrived.  Call this
 * after the notification was registered.  A message that ps_mailbox_post will
 * post needs no notification.  The message may already have arrived. */
void ps_message_expect(struct ps_message *message);

/* Free a message whose notification could not be registered, so that it will
 * never arrive.  Call this instead of ps_message_expect. */
void ps_message_drop(struct ps_message *message);

/* Post an expected message that has this token and no registered notification.
 * Returns false if there is no such message. */
bool ps_mailbox_post(struct ps_mailbox *mailbox, uint64_t token);

/* Cancel all messages with the token, including messages that arrived and were
 * not taken.  Never blocks. */
void ps_mailbox_cancel(struct ps_mailbox *mailbox, uint64_t token);
void ps_mailbox_cancel_all(struct ps_mailbox *mailbox);

/* Get the token and status of the oldest message that has arrived and was not
 * taken.  Returns false if there is none.  seen(attached) is called with the
 * mailbox's lock held. */
bool ps_mailbox_first(struct ps_mailbox *mailbox, uint64_t *token,
                      ps_status *status, void (*seen)(void *attached));

/* Take all messages that have arrived.  Returns a list that starts with the
 * oldest message, or NULL if there are none.  The caller frees each message
 * with ps_message_free, or returns the rest of the list with
 * ps_mailbox_put_back. */
struct ps_message *ps_mailbox_take(struct ps_mailbox *mailbox);
void ps_message_free(struct ps_message *message);
void
ps_mailbox_put_back(struct ps_mailbox *mailbox, struct ps_message *messages);

/* Wait until there is a message to take.  Returns PS_ERROR_TIMED_OUT if there
 * is none after timeout_ns nanoseconds.  May block. */
ps_status ps_mailbox_wait(struct ps_mailbox *mailbox, int64_t timeout_ns);

/* Returns a file descriptor that is readable while there are messages to take.
 * The mailbox owns it.  Returns -1 and sets errno on failure. */
int ps_mailbox_fd(struct ps_mailbox *mailbox);

#endif
