/* Thread-local storage of the library: a few words, each under a key of
 * POSIX's, NULL until set.
 *
 * Not _Thread_local: a library that is loaded late gets the block for such
 * variables from malloc, when a thread first touches one, and glibc ends the
 * process if that fails.  Nor can they be of the initial-exec kind, whose
 * block is part of a thread's stack: all of this library's would have to be,
 * and static cudart has some of 4 KiB, aligned to as much, while glibc has
 * about 1.6 KiB for all libraries that are loaded late (2.17 to 2.36).
 *
 * A key has no destructor, as nothing may call a device when a thread ends. */
#ifndef PYSTREAMS_CORE_THREAD_H
#define PYSTREAMS_CORE_THREAD_H

#include <pystreams/backend.h>

#include <pthread.h>

/* The first and the last are core's, the others its caller's. */
enum ps_thread_word {
    PS_THREAD_MEMORY,
    PS_THREAD_CURRENTS,
    PS_THREAD_WORKER,
    PS_THREAD_TRACING,
    PS_THREAD_READING,
    PS_THREAD_IMPLIED,
    PS_THREAD_OWN,
    PS_THREAD_WORDS,
};

extern pthread_key_t ps_thread_keys[PS_THREAD_WORDS];

/* Call before all else, with no other thread in here; again after a failure.
 * PS_ERROR_OUT_OF_MEMORY: other libraries have used up the keys. */
ps_status ps_thread_init(void);

static inline void *
ps_thread_word(enum ps_thread_word word)
{
    return pthread_getspecific(ps_thread_keys[word]);
}

/* PS_ERROR_OUT_OF_MEMORY is possible until a thread has set the word to
 * another value than NULL, and not after. */
static inline ps_status
ps_thread_set_word(enum ps_thread_word word, const void *value)
{
    return pthread_setspecific(ps_thread_keys[word], value) == 0
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

#endif
