/* Work for the tests; see work.h. */
#include "check.h"
#include "work.h"

ps_handle
stream_new(int priority)
{
    ps_handle stream = 0;
    OK(cpu->stream_create(cpu, 0, priority, &stream));
    return stream;
}

ps_handle
event_new(void)
{
    ps_handle event = 0;
    OK(cpu->event_create(cpu, 0, PS_EVENT_TIMING, &event));
    return event;
}

void
stream_end(ps_handle stream)
{
    OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
    OK(cpu->stream_destroy(cpu, 0, stream));
}

static void
hold_pass(void *argument)
{
    struct hold *hold = argument;
    sem_post(&hold->entered);
    sem_wait(&hold->released);
}

void
hold_take(const struct ps_backend *backend, struct hold *hold,
          ps_handle stream)
{
    sem_init(&hold->entered, 0, 0);
    sem_init(&hold->released, 0, 0);
    OK(backend->host_function(backend, 0, stream, hold_pass, hold));
    sem_wait(&hold->entered);
}

void
hold_release(struct hold *hold)
{
    sem_post(&hold->released);
}

void
count(void *argument)
{
    ++*(int *)argument;
}
