/* For each function of struct ps_backend, this file has a function that
 * forwards the call to the observed table.  The observers' tables consist of
 * these functions. */
#include "forward.h"

#define MEMBER(type, name, parameters, arguments)              \
    static type name parameters                                \
    {                                                          \
        const struct ps_backend *inner = ps_observed(backend); \
        return inner->name arguments;                          \
    }
#include "members.h"

enum {
#define MEMBER(type, name, ...) NUMBER_OF_##name,
#include "members.h"
    MEMBERS,
};

_Static_assert(offsetof(struct ps_backend, status_name) +
                       MEMBERS * sizeof(void (*)(void)) ==
                   sizeof(struct ps_backend),
               "a member of the contract is not forwarded");

struct ps_actor_name
ps_actor_named(const struct ps_backend *backend, int device, ps_handle stream)
{
    const struct ps_backend *inner = ps_observed(backend);
    struct ps_actor_name name = {ps_observer_of(backend)->runtime, device,
                                 stream};
    if (stream == PS_STREAM_PER_THREAD && inner->thread_stream != NULL) {
        name.blocking = true;
        inner->thread_stream(inner, device, &name.stream);
    }
    return name;
}

bool
ps_actor_handle(const struct ps_backend *backend, int device, ps_handle stream,
                ps_handle *handle)
{
    ps_handle own = 0;
    *handle = stream;
    if (!ps_is_thread_stream_name(stream)) {
        return true;
    }
    *handle = PS_STREAM_PER_THREAD;
    return backend->thread_stream(backend, device, &own) == PS_SUCCESS &&
           own == stream;
}

struct ps_actor_name
ps_actor_in_order(const struct ps_backend *backend, int device,
                  ps_handle stream)
{
    const struct ps_backend *inner = ps_observed(backend);
    struct ps_actor_name name = ps_actor_named(backend, device, stream);
    int blocking = name.blocking;
    if (stream != 0 && !blocking && inner->stream_blocking != NULL) {
        inner->stream_blocking(inner, device, stream, &blocking);
    }
    name.blocking = blocking != 0;
    return name;
}

const struct ps_backend *
ps_observer_table(struct ps_observer observers[PS_MOST_RUNTIMES][2],
                  int runtime, const struct ps_backend *inner,
                  void (*replace)(struct ps_backend *table))
{
    bool released = (inner->flags & PS_BACKEND_SHARED) != 0;
    struct ps_observer *observer = &observers[runtime][released];
    if (observer->inner == NULL) {
        observer->runtime = runtime;
        observer->table = *inner;
#define MEMBER(type, name, ...) \
    observer->table.name = inner->name != NULL ? name : NULL;
#include "members.h"
        replace(&observer->table);
    }
    atomic_store(&observer->inner, inner);
    return &observer->table;
}
