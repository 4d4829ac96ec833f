/* Mailboxes: how completion, which a backend reports on some thread of its
 * own, reaches the thread that waits for it.
 *
 * A message is made, with room for what it reports, before it is needed, so
 * that posting it cannot fail; and it can be taken back until then. */
#ifndef PYSTREAMS_CORE_MAILBOX_H
#define PYSTREAMS_CORE_MAILBOX_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "notify.h"

/* The mailbox's mutex guards it, once it was expected. */
struct ps_message {
    /* reached posts the message; what is watched, if anything, is the
     * sender's to say, by one of the functions of notify.h. */
    struct ps_watch watch;
    struct ps_mailbox *mailbox;
    /* The receiver's, to tell messages apart. */
    uint64_t token;
    /* How the work ended. */
    ps_status status;
    /* Somebody registers or cancels the notification, and so looks at the
     * message: it is not for the receiver yet. */
    bool held;
    bool arrived;
    /* It is taken back, but will arrive. */
    bool abandoned;
    /* Of those that arrived: the next, and what points to this one. */
    struct ps_message *next;
    struct ps_message **link;
    struct ps_message *same_hash; /* of those that can be cancelled */
};

ps_status ps_mailbox_create(struct ps_mailbox **mailbox);

/* Accepts NULL.  Cancels what is still to come; no other function is called
 * from here on. */
void ps_mailbox_destroy(struct ps_mailbox *mailbox);

/* A message that is to come, held by the caller until ps_message_expect or
 * ps_message_drop.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_message_create(struct ps_mailbox *mailbox, uint64_t token,
                            struct ps_message **message);

/* It was asked for, and may have come. */
void ps_message_expect(struct ps_message *message);

/* It will not come: asking failed. */
void ps_message_drop(struct ps_message *message);

/* Post a message with this token that watches nothing: false where none is
 * expected. */
bool ps_mailbox_post(struct ps_mailbox *mailbox, uint64_t token);

/* Take back all messages with the token, those that came and were not taken
 * too.  Answers. */
void ps_mailbox_cancel(struct ps_mailbox *mailbox, uint64_t token);
void ps_mailbox_cancel_all(struct ps_mailbox *mailbox);

/* The oldest that came and was not taken; false for none. */
bool ps_mailbox_first(struct ps_mailbox *mailbox, uint64_t *token,
                      ps_status *status);

/* All that came since the last call, the oldest first; NULL for none.  Each is
 * the caller's to free(), or goes back with those behind it. */
struct ps_message *ps_mailbox_take(struct ps_mailbox *mailbox);
void
ps_mailbox_put_back(struct ps_mailbox *mailbox, struct ps_message *messages);

/* Wait until there is a message to take, or for timeout_ns (then
 * PS_ERROR_TIMED_OUT).  May block. */
ps_status ps_mailbox_wait(struct ps_mailbox *mailbox, int64_t timeout_ns);

/* A file descriptor that is readable while there are messages, the mailbox's
 * own; -1 with errno. */
int ps_mailbox_fd(struct ps_mailbox *mailbox);

#endif
