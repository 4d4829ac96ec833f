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

ps_status
cpu_items_reserve_locked(struct cpu_engine *engine, size_t count)
{
    union cpu_item *taken = NULL, *item = NULL;
    while (count-- > 0 && (item = cpu_item_take_locked(engine)) != NULL) {
        item->next = taken;
        taken = item;
    }
    while (taken != NULL) {
        union cpu_item *next = taken->next;
        cpu_item_give_locked(engine, taken);
        taken = next;
    }
    return item != NULL ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

void
cpu_item_give_locked(struct cpu_engine *engine, void *memory)
{
    union cpu_item *item = memory;
    item->next = engine->items;
    engine->items = item;
}
