/* The POSIX keys of the thread-local words.  They exist until the process
 * ends. */
#include "thread.h"

pthread_key_t ps_thread_keys[PS_THREAD_WORDS];
static int made;

ps_status
ps_thread_init(void)
{
    for (; made < PS_THREAD_WORDS; made++) {
        if (pthread_key_create(&ps_thread_keys[made], NULL) != 0) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
    }
    return PS_SUCCESS;
}
