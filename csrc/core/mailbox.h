/* Mailboxes.  A backend reports a completion on some thread of its own, and
 * the thread that waits for it receives it as a message.
 *
 * A message is created before it is needed, so that posting it cannot fail.
 * It can be cancelled until then. */
#ifndef PYSTREAMS_CORE_MAILBOX_H
#define PYSTREAMS_CORE_MAILBOX_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "notify.h"

/* The mailbox's mutex guards it once it is expected. */
struct ps_message {
    /* Its callback posts the message to the mailbox.  The sender may register
     * it with one of the functions of notify.h. */
    struct ps_registration registration;
    struct ps_mailbox *mailbox;
    /* Chosen by the receiver to distinguish messages. */
    uint64_t token;
    /* How the work ended. */
    ps_status status;
    /* Set by the receiver; release(attached) is called when the message is
     * freed. */
    void *attached;
    void (*release)(void *attached);
    /* A thread is registering or cancelling the notification and accesses the
     * message, so the receiver cannot take it yet. */
    bool held;
    bool arrived;
    /* It was cancelled, but will still arrive. */
    bool abandoned;
    struct ps_message *next;      /* of those that were taken */
    struct ps_message *same_hash; /* of those that can be cancelled */
};

ps_status ps_mailbox_create(struct ps_mailbox **mailbox);

/* Accepts NULL.  Cancels the messages that have not arrived; no other function
 * may be called from here on. */
void ps_mailbox_destroy(struct ps_mailbox *mailbox);

/* Create a message, held by the caller until ps_message_expect or
 * ps_message_drop.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_message_create(struct ps_mailbox *mailbox, uint64_t token,
                            struct ps_message **message);

/* Call after the notification was registered; the message may have arrived
 * already. */
void ps_message_expect(struct ps_message *message);

/* Call if registering failed: drops the message, which will not arrive. */
void ps_message_drop(struct ps_message *message);

/* Deliver an expected message with this token that has no notification; false
 * if there is none. */
bool ps_mailbox_post(struct ps_mailbox *mailbox, uint64_t token);

/* Cancel all messages with the token, including those that arrived and were
 * not taken.  Answers. */
void ps_mailbox_cancel(struct ps_mailbox *mailbox, uint64_t token);
void ps_mailbox_cancel_all(struct ps_mailbox *mailbox);

/* The oldest message that arrived and was not taken; false if there is none.
 * seen(attached) is called with the mailbox's lock held. */
bool ps_mailbox_first(struct ps_mailbox *mailbox, uint64_t *token,
                      ps_status *status, void (*seen)(void *attached));

/* Take all messages that have arrived, the oldest first; NULL for none.  The
 * caller frees each with ps_message_free, or puts it back together with all
 * that follow it. */
struct ps_message *ps_mailbox_take(struct ps_mailbox *mailbox);
void ps_message_free(struct ps_message *message);
void
ps_mailbox_put_back(struct ps_mailbox *mailbox, struct ps_message *messages);

/* Wait until there is a message to take, or for timeout_ns (then
 * PS_ERROR_TIMED_OUT).  May block. */
ps_status ps_mailbox_wait(struct ps_mailbox *mailbox, int64_t timeout_ns);

/* A file descriptor that is readable while there are messages, the mailbox's
 * own; -1 with errno. */
int ps_mailbox_fd(struct ps_mailbox *mailbox);

#endif
