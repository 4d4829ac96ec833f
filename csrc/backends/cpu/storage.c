/* The engine's storage: items, which are the memory of operations and records,
 * and the handles by which callers name its objects.
 *
 * A handle is checked, so that a wrong one is an error and not a crash.  All
 * of its bits must match:
 *
 *   63..30  29..6  5..3    2..0
 *   serial  slot   engine  tag
 *
 * No two of 2^34 handles in a row share a serial, so a stale one stays
 * stale. */
#include "engine.h"

#include <stdlib.h>

/* ---- Items ---- */

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

/* ---- Handles ---- */

enum { ENGINE_SHIFT = 3, SLOT_SHIFT = 6, SERIAL_SHIFT = 30 };

#define TAG_MASK   (((ps_handle)1 << ENGINE_SHIFT) - 1)
#define SLOT_LIMIT ((uint32_t)1 << (SERIAL_SHIFT - SLOT_SHIFT))

_Static_assert(sizeof(ps_handle) == 8, "a handle has 64 bits");
_Static_assert(CPU_ENGINES <= 8, "an engine's number has 3 bits");

/* Have room for so many slots that were never used. */
static bool
handles_grow(struct cpu_handles *handles, size_t count)
{
    size_t capacity = handles->capacity > 0 ? handles->capacity : 64;
    while (handles->used + count >= capacity && capacity <= SLOT_LIMIT) {
        capacity *= 2;
    }
    if (capacity == handles->capacity) {
        return true;
    }
    struct cpu_slot *slots = NULL;
    if (capacity <= SLOT_LIMIT) {
        slots = realloc(handles->slots, capacity * sizeof(*slots));
    }
    if (slots == NULL) {
        return false;
    }
    handles->slots = slots;
    handles->capacity = (uint32_t)capacity;
    return true;
}

/* The index of a free slot; 0 when out of memory. */
static uint32_t
handles_next(struct cpu_handles *handles)
{
    uint32_t index = handles->first_free;
    if (index != 0) {
        handles->first_free = handles->slots[index].next_free;
        return index;
    }
    return handles_grow(handles, 1) ? ++handles->used : 0;
}

ps_status
cpu_slots_reserve_locked(struct cpu_engine *engine, size_t count)
{
    return count == 0 || handles_grow(&engine->handles, count)
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

struct cpu_slot *
cpu_slot_take_locked(struct cpu_engine *engine, enum cpu_tag tag, int device)
{
    struct cpu_handles *handles = &engine->handles;
    uint32_t index = handles_next(handles);
    if (index == 0) {
        return NULL;
    }
    handles->slots[index] = (struct cpu_slot){
        .handle = ++handles->serial << SERIAL_SHIFT |
                  (ps_handle)index << SLOT_SHIFT |
                  (ps_handle)engine->number << ENGINE_SHIFT | tag,
        .device = device,
    };
    return &handles->slots[index];
}

void
cpu_slot_give_locked(struct cpu_engine *engine, struct cpu_slot *slot)
{
    slot->handle = 0;
    slot->next_free = engine->handles.first_free;
    engine->handles.first_free = (uint32_t)(slot - engine->handles.slots);
}

struct cpu_slot *
cpu_slot_find_locked(struct cpu_engine *engine, enum cpu_tag tag, int device,
                     ps_handle handle)
{
    uint32_t index = (handle >> SLOT_SHIFT) & (SLOT_LIMIT - 1);
    if (index == 0 || index > engine->handles.used ||
        (handle & TAG_MASK) != tag) {
        return NULL;
    }
    struct cpu_slot *slot = &engine->handles.slots[index];
    if (slot->handle != handle ||
        (device != slot->device && device != CPU_ANY_DEVICE)) {
        return NULL;
    }
    return slot;
}
