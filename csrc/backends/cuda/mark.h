/* Marks: what is asked for, with the notifications that wait for it. */
#ifndef PYSTREAMS_CUDA_MARK_H
#define PYSTREAMS_CUDA_MARK_H

#include <stdatomic.h>

#include <pystreams/backend.h>

#include "driver.h"

struct cuda_line;

struct cuda_mark {
    /* Those to be called, a ring; the lock of the line's bucket guards it. */
    struct ps_notification *notifications;
    /* One of the two.  The event is the mark's own, but in a line of an event
     * that somebody else has. */
    CUevent event;
    _Atomic uint32_t *word;
    uint32_t number;
    int device; /* of the event */
    /* The side stream that waits for somebody's event, so that the mark's own
     * could be recorded there; NULL without one. */
    struct cuda_side *side;
    /* Of a mark that is done: what the work came to, and the kind of line
     * that it was in. */
    ps_status status;
    int kind;
    struct cuda_line *line;
    struct cuda_mark *next, *previous; /* of the line */
};

/* A mark with an event that stands for nothing yet; and where it goes back
 * once it is in no line. */
ps_status cuda_mark_find(int device, struct cuda_mark **mark);
void cuda_mark_release(struct cuda_mark *mark);

/* A mark of a number that the device writes: that the word is no less, a
 * multiple of 2^31 apart at most.  It says nothing of failures.  NULL when out
 * of memory. */
struct cuda_mark *cuda_mark_word(_Atomic uint32_t *word, uint32_t number);

/* What the work came to, or PS_ERROR_NOT_READY. */
ps_status cuda_mark_ask(const struct cuda_mark *mark);

#endif
