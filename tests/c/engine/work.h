/* What the tests queue: streams and events of the engine under test, and host
 * functions to put on them. */
#ifndef ENGINE_WORK_H
#define ENGINE_WORK_H

#include <semaphore.h>

#include "../../../csrc/backends/backends.h"

ps_handle stream_new(int priority);
ps_handle event_new(void); /* with timing */

/* Wait for the stream, which has not failed, and destroy it. */
void stream_end(ps_handle stream);

/* A host function that stops its stream until the gate is opened. */
struct gate {
    sem_t entered;
    sem_t opened;
};

/* Returns when the stream has come to the gate. */
void gate_close(const struct ps_backend *backend, struct gate *gate,
                ps_handle stream);
void gate_open(struct gate *gate);

/* A host function that adds one to the int that it is given.  Unlocked on
 * purpose: the order of streams and events must be enough. */
void count(void *argument);

#endif
