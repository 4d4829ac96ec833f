/* The library's thread-local storage: a few pointer-sized words per thread,
 * each under a POSIX key.  A word is NULL until it is set.
 *
 * _Thread_local does not serve here.  In a library that is loaded with dlopen,
 * glibc allocates such variables with malloc when a thread first accesses one,
 * and ends the process if malloc fails.  The initial-exec model needs no
 * malloc, but applies to all such variables of a library.  Static cudart has 4
 * KiB of them, aligned to 4 KiB, and glibc (2.17 to 2.36) reserves about 1.6
 * KiB for all libraries that are loaded with dlopen.
 *
 * A key has no destructor, because no device may be called when a thread
 * ends. */
#ifndef PYSTREAMS_CORE_THREAD_H
#define PYSTREAMS_CORE_THREAD_H

#include <pystreams/backend.h>

#include <pthread.h>

/* The words.  PS_THREAD_MEMORY, PS_THREAD_STREAMS and PS_THREAD_OWN are used
 * by core, the others by the Python layer. */
enum ps_thread_word {
    PS_THREAD_MEMORY,
    PS_THREAD_STREAMS,
    PS_THREAD_CURRENTS,
    PS_THREAD_ENDED,
    PS_THREAD_WORKER,
    PS_THREAD_TRACING,
    PS_THREAD_READING,
    PS_THREAD_IMPLIED,
    PS_THREAD_UNAWARE,
    PS_THREAD_OWN,
    PS_THREAD_LAUNCH,
    PS_THREAD_TIMELINE,
    PS_THREAD_COPY,
    PS_THREAD_WORDS,
};

extern pthread_key_t ps_thread_keys[PS_THREAD_WORDS];

/* Create the keys.  Call this before anything else, while no other thread uses
 * core.  May be called again after a failure.  Returns PS_ERROR_OUT_OF_MEMORY
 * if other libraries have used up the keys. */
ps_status ps_thread_init(void);

static inline void *
ps_thread_word(enum ps_thread_word word)
{
    return pthread_getspecific(ps_thread_keys[word]);
}

/* Set the thread's word.  Can return PS_ERROR_OUT_OF_MEMORY only until the
 * thread has set this word to a value other than NULL. */
static inline ps_status
ps_thread_set_word(enum ps_thread_word word, const void *value)
{
    return pthread_setspecific(ps_thread_keys[word], value) == 0
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

#endif
