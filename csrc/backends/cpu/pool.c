/* Pools: items of one size that are reused and never returned, so that work
 * in its steady state allocates nothing. */
#include "engine.h"

#include <stdlib.h>

enum { CHUNK_ITEMS = 128, CHUNK_HEADER = 16 };

static void
pool_spread(struct cpu_pool *pool, struct cpu_item *chunk)
{
    char *items = (char *)chunk + CHUNK_HEADER;
    for (size_t i = 0; i < CHUNK_ITEMS; i++)
        cpu_pool_give_locked(pool, items + i * pool->size);
}

void *
cpu_pool_take_locked(struct cpu_pool *pool)
{
    if (!pool->free) {
        struct cpu_item *chunk =
            malloc(CHUNK_HEADER + CHUNK_ITEMS * pool->size);
        if (!chunk)
            return NULL;
        chunk->next = pool->chunks;
        pool->chunks = chunk;
        pool_spread(pool, chunk);
    }
    struct cpu_item *item = pool->free;
    pool->free = item->next;
    return item;
}

void
cpu_pool_give_locked(struct cpu_pool *pool, void *memory)
{
    struct cpu_item *item = memory;
    item->next = pool->free;
    pool->free = item;
}

void
cpu_pool_reset_locked(struct cpu_pool *pool)
{
    pool->free = NULL;
    for (struct cpu_item *chunk = pool->chunks; chunk; chunk = chunk->next)
        pool_spread(pool, chunk);
}
