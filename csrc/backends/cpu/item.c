/* Items: memory for operations and records. */
#include "engine.h"

#include <stdlib.h>

enum { CHUNK_ITEMS = 128 };

void *
cpu_item_take_locked(struct cpu_engine *engine)
{
    if (engine->items == NULL) {
        union cpu_item *chunk = malloc(CHUNK_ITEMS * sizeof(*chunk));
        if (chunk == NULL) {
            return NULL;
        }
        for (int i = 0; i < CHUNK_ITEMS; i++) {
            cpu_item_give_locked(engine, &chunk[i]);
        }
    }
    union cpu_item *item = engine->items;
    engine->items = item->next;
    return item;
}

void
cpu_item_give_locked(struct cpu_engine *engine, void *memory)
{
    union cpu_item *item = memory;
    item->next = engine->items;
    engine->items = item;
}
