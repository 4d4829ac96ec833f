/* The library's thread-local storage: a few pointer-sized words per thread,
 * each stored under a POSIX key (pthread_setspecific).  A word is NULL until
 * the thread sets it.
 *
 * _Thread_local is not used, because neither the default TLS model nor the
 * model initial-exec works here.  By default, glibc allocates the
 * _Thread_local variables of a library that was loaded with dlopen at a
 * thread's first access to one of them, and aborts the process if malloc fails
 * then.  The model initial-exec needs no malloc, but it would apply to all
 * _Thread_local variables of the library.  The statically linked cudart alone
 * has 4 KiB of them, while glibc (2.17 to 2.36) reserves only about 1.6 KiB
 * for all libraries that are loaded with dlopen.
 *
 * The keys have no destructors.  A destructor would have to call a device, but
 * it runs while the C library ends the thread, and then no device may be
 * called any more. */
#ifndef PYSTREAMS_CORE_THREAD_H
#define PYSTREAMS_CORE_THREAD_H

#include <pystreams/backend.h>

#include <pthread.h>

/* The words of a thread.  In the comments below, "it" means the thread.  Core
 * uses PS_THREAD_MEMORY, PS_THREAD_STREAMS and PS_THREAD_OWN, and reads
 * PS_THREAD_UNAWARE.  Only the Python layer uses the others. */
enum ps_thread_word {
    PS_THREAD_MEMORY,   /* whether it may wait, or is sweeping; see memory.c */
    PS_THREAD_STREAMS,  /* its default streams, as a list */
    PS_THREAD_CURRENTS, /* its current streams */
    PS_THREAD_ENDED,    /* the id of its cleared Python thread state */
    PS_THREAD_WORKER,   /* set while it runs submitted callables */
    PS_THREAD_TRACING,  /* set while it runs a trace callback */
    PS_THREAD_READING,  /* the Buffer that it only reads; see buffer.c */
    PS_THREAD_IMPLIED,  /* set in the library's own waits; see imply_begin */
    PS_THREAD_UNAWARE,  /* set while the race detector ignores its calls */
    PS_THREAD_OWN,      /* set in the library's own calls; see ps_own_begin */
    PS_THREAD_LAUNCH,   /* the graph launch that it is making */
    PS_THREAD_LATE,     /* what hooks have left for later; see late.h */
    PS_THREAD_TIMELINE, /* its index in the current timeline */
    PS_THREAD_COPY,     /* the name of the copy that it is queueing */
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

/* Set the thread's word.  May return PS_ERROR_OUT_OF_MEMORY, but never again
 * after the thread has once set this word to a value other than NULL. */
static inline ps_status
ps_thread_set_word(enum ps_thread_word word, const void *value)
{
    return pthread_setspecific(ps_thread_keys[word], value) == 0
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

#endif
