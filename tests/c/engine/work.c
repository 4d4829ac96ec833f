/* What the tests queue; the contracts are in work.h. */
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
    OK(cpu->stream_synchronize(cpu, 0, stream));
    OK(cpu->stream_destroy(cpu, 0, stream));
}

static void
gate_pass(void *argument)
{
    struct gate *gate = argument;
    sem_post(&gate->entered);
    sem_wait(&gate->opened);
}

void
gate_close(const struct ps_backend *backend, struct gate *gate,
           ps_handle stream)
{
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
    OK(backend->host_function(backend, 0, stream, gate_pass, gate));
    sem_wait(&gate->entered);
}

void
gate_open(struct gate *gate)
{
    sem_post(&gate->opened);
}

void
count(void *argument)
{
    ++*(int *)argument;
}
