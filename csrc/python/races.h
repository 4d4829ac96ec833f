/* The race detector's Python side. */
#ifndef PYSTREAMS_PYTHON_RACES_H
#define PYSTREAMS_PYTHON_RACES_H

#include "../core/memory.h"
#include "../core/stream.h"
#include "../core/thread.h"
#include "../core/trace.h"
#include "../observe/races.h"

#include "module.h"
#include "wait.h"

struct ps_actor_name actor_name(const struct ps_stream *stream);

/* Returns the moment at which all of the work so far is done; NULL if the race
 * detector is off. */
struct ps_moment *moment_of_work(const struct work *work);

/* Returns the name of a live stream, or None; NULL with an exception. */
PyObject *name_of_actor(const struct ps_actor_name *actor);

/* Report a traced call to the race detector. */
void races_trace(enum ps_trace_kind kind, struct ps_device *device,
                 ps_handle handle);

/* Between imply_begin and imply_end, the waits of the calling thread are the
 * library's own, such as the wait of copy_() for its copy: races.redundant()
 * does not list them as the program's. */
static inline void
imply_begin(void)
{
    static const char implied;
    if (ps_races_are_on()) {
        ps_thread_set_word(PS_THREAD_IMPLIED, &implied);
    }
}

static inline void
imply_end(void)
{
    if (ps_thread_word(PS_THREAD_IMPLIED) != NULL) {
        ps_thread_set_word(PS_THREAD_IMPLIED, NULL);
    }
}

/* Report an access to memory by the host or, if this thread runs a callable,
 * by the callable.  On failure, returns -1 with an exception. */
int host_access(const char *operation, const void *data, Py_ssize_t nbytes,
                bool writes);

/* Call this before a reference to the block is dropped, if it may be the last
 * one. */
void block_ends(struct ps_block *block);

/* For the schedule that is explored, note the memory that the arguments refer
 * to.  On failure, returns -1 with MemoryError. */
int note_arguments(PyObject *const *args, Py_ssize_t count);

/* Call this before a callable with these arguments is queued on the stream.
 * For the race detector, the callable reads every Buffer and every view of a
 * Buffer among its arguments, also those in containers.  The moment at which
 * it runs is stored in the Future.  On failure, returns -1 with an
 * exception. */
int expect_callable(struct ps_stream *stream, PyObject *const *args,
                    Py_ssize_t count, PyObject *future);

#endif
