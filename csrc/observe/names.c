/* One mutex guards all variables here.  The texts themselves are read without
 * the mutex, because they are never changed, moved or freed. */
#include "names.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "lock.h"
#include "map.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* `numbers` maps the pair (hash of a name, attempt) to the name's number.
 * `attempt` is the number of earlier names that have the same hash.  The name
 * with the number n is names[n - 1]. */
static struct ps_map numbers;
static char **names;
static uint32_t count;

static uint64_t
hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    }
    return hash;
}

static uint32_t
add_locked(const char *text, uint64_t hash, uint64_t attempt)
{
    if (!PS_ARRAY_GROW(names, count)) {
        return 0;
    }
    char *copy = strdup(text);
    uintptr_t number = count + 1;
    if (copy == NULL || !ps_map_set(&numbers, hash, attempt, (void *)number)) {
        free(copy);
        return 0;
    }
    names[count++] = copy;
    return (uint32_t)number;
}

static uint32_t
number_locked(const char *text)
{
    uint64_t hash = hash_of(text);
    for (uint64_t attempt = 0;; attempt++) {
        uintptr_t known = (uintptr_t)ps_map_get(&numbers, hash, attempt);
        if (known == 0) {
            return add_locked(text, hash, attempt);
        }
        if (strcmp(names[known - 1], text) == 0) {
            return (uint32_t)known;
        }
    }
}

uint32_t
ps_name_number(const char *text)
{
    PS_HOLD(&mutex);
    return number_locked(text);
}

const char *
ps_name_text(uint32_t number)
{
    PS_HOLD(&mutex);
    return number > 0 && number <= count ? names[number - 1] : NULL;
}

void
ps_names_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void
ps_names_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void
ps_names_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}
