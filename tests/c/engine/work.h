/* Work for the tests: streams and events of the engine under test, and host
 * functions to queue on the streams. */
#ifndef ENGINE_WORK_H
#define ENGINE_WORK_H

#include <semaphore.h>

#include "../../../csrc/backends/backends.h"

ps_handle stream_new(int priority);
ps_handle event_new(void); /* with timing */

/* Wait for the stream, which has not failed, and destroy it. */
void stream_end(ps_handle stream);

/* A host function that stops its stream until it is released. */
struct hold {
    sem_t entered;
    sem_t released;
};

/* hold_take queues the hold on the stream, and returns when the stream has
 * reached it.  hold_release lets the stream continue. */
void hold_take(const struct ps_backend *backend, struct hold *hold,
               ps_handle stream);
void hold_release(struct hold *hold);

/* A host function that adds one to the int that it is given.  It takes no lock
 * on purpose: the order of streams and events must be enough to prevent a
 * data race. */
void count(void *argument);

#endif
