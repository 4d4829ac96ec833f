/* The race detector's use of Python. */
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

/* The moment after the work so far; NULL if nothing looks for races. */
struct ps_moment *moment_of_work(const struct work *work);

/* The name of a live stream, or None; NULL with an exception. */
PyObject *name_of_actor(const struct ps_actor_name *actor);

/* A traced call that concerns the detector. */
void races_trace(enum ps_trace_kind kind, struct ps_device *device,
                 ps_handle handle);

/* Between these calls, the calling thread's waits are the library's own, which
 * races.redundant() does not list, and the thread waits for the work that it
 * queues. */
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

/* Report an access of the host or, if a callable runs on this thread, of the
 * callable; -1 with an exception. */
int host_access(const char *operation, const void *data, Py_ssize_t nbytes,
                bool writes);

/* Call before a reference to the block, perhaps the last one, is dropped. */
void block_ends(struct ps_block *block);

/* Note the bytes that arguments view for the schedule that is explored; -1
 * with MemoryError. */
int note_arguments(PyObject *const *args, Py_ssize_t count);

/* A callable is to be queued on the stream, with these arguments: it reads
 * Buffers and views of them, those in containers, too, and the moment of its
 * run goes to the Future; -1 with an exception. */
int expect_callable(struct ps_stream *stream, PyObject *const *args,
                    Py_ssize_t count, PyObject *future);

#endif
