/* Mailboxes: how the end of work, which a backend tells on some thread of its
 * own, reaches whoever waits for it.
 *
 * A letter is made, with room for its news, before it is needed, so that
 * posting it cannot fail; it keeps its mailbox alive. */
#ifndef PYSTREAMS_CORE_MAILBOX_H
#define PYSTREAMS_CORE_MAILBOX_H

#include <pystreams/backend.h>

struct ps_letter {
    /* Until posted: a reference. */
    struct ps_mailbox *mailbox;
    /* The sender's, to tell letters apart. */
    uint64_t token;
    /* What the work came to. */
    ps_status status;
    struct ps_letter *next;
};

ps_status ps_mailbox_create(struct ps_mailbox **mailbox);
struct ps_mailbox *ps_mailbox_ref(struct ps_mailbox *mailbox);

/* Accepts NULL.  What was posted and not taken goes with it. */
void ps_mailbox_unref(struct ps_mailbox *mailbox);

ps_status ps_letter_create(struct ps_mailbox *mailbox, uint64_t token,
                           struct ps_letter **letter);

/* A letter that was taken, or is not going to be posted. */
void ps_letter_destroy(struct ps_letter *letter);

/* Post the letter, a `struct ps_letter *`.  A ps_notification: any thread, and
 * neither waits nor calls a backend. */
void ps_letter_post(void *letter, ps_status status);

/* All that was posted since the last call, the oldest first; NULL for none.
 * Each is the caller's to destroy. */
struct ps_letter *ps_mailbox_take(struct ps_mailbox *mailbox);

/* Wait until there is a letter to take, or for timeout_ns (then
 * PS_ERROR_NOT_READY).  May block. */
ps_status ps_mailbox_wait(struct ps_mailbox *mailbox, int64_t timeout_ns);

/* A file descriptor that is readable while there are letters, the mailbox's
 * own; -1 with errno. */
int ps_mailbox_fd(struct ps_mailbox *mailbox);

/* Close the descriptor, which nobody reads any more, while letters may still
 * be on their way. */
void ps_mailbox_close_fd(struct ps_mailbox *mailbox);

#endif
