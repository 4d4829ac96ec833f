/* Arrays to which elements are appended one by one.  An array's capacity is
 * not stored, because it follows from the count: it is the count rounded up to
 * a power of two, but at least PS_ARRAY_LEAST.  An empty array may have the
 * capacity 0. */
#ifndef PYSTREAMS_OBSERVE_ARRAY_H
#define PYSTREAMS_OBSERVE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

enum { PS_ARRAY_LEAST = 64 };

/* Make room for one more element in an array of `count` elements.  `array` is
 * a pointer variable, initially NULL; it may get a new value.  The macro
 * evaluates to false if out of memory. */
#define PS_ARRAY_GROW(array, count)                                    \
    ({                                                                 \
        void *grown_ = ps_array_grown(array, count, sizeof(*(array))); \
        (array) = grown_ != NULL ? grown_ : (array);                   \
        grown_ != NULL;                                                \
    })

static inline void *
ps_array_grown(void *array, size_t count, size_t size)
{
    if (count == 0) {
        return realloc(array, PS_ARRAY_LEAST * size);
    }
    return count < PS_ARRAY_LEAST || (count & (count - 1)) != 0
               ? array
               : realloc(array, 2 * count * size);
}

#endif
