/* Handles: integers that are checked, so that a wrong one is an error and not
 * a crash.  A handle is found only by all of its bits:
 *
 *   63..60  59..28      27..4   3..1    0
 *   zero    generation  slot    engine  tag
 *
 * A slot's generation grows with each use, so a stale handle stays stale. */
#include "engine.h"

#include <stdlib.h>

enum { SLOT_SHIFT = 4, GENERATION_SHIFT = 28 };

#define SLOT_LIMIT ((uint32_t)1 << (GENERATION_SHIFT - SLOT_SHIFT))

_Static_assert(sizeof(ps_handle) == 8, "a handle has 64 bits");
_Static_assert(CPU_ENGINES <= 8, "an engine's number has 3 bits");

static struct cpu_slot *
slot_find(struct cpu_handles *handles, ps_handle handle)
{
    uint32_t index = (handle >> SLOT_SHIFT) & (SLOT_LIMIT - 1);
    if (index >= handles->count || handles->slots[index].handle != handle)
        return NULL;
    return &handles->slots[index];
}

static void
slot_free(struct cpu_handles *handles, struct cpu_slot *slot)
{
    slot->handle = 0;
    slot->next_free = handles->first_free;
    handles->first_free = (uint32_t)(slot - handles->slots);
}

/* Slot 0 ends the list of free ones, so it is never used. */
static bool
handles_grow(struct cpu_handles *handles)
{
    uint32_t capacity = handles->capacity ? 2 * handles->capacity : 64;
    if (capacity > SLOT_LIMIT)
        return false;
    struct cpu_slot *slots =
        realloc(handles->slots, capacity * sizeof(*slots));
    if (!slots)
        return false;
    handles->slots = slots;
    handles->capacity = capacity;
    if (!handles->count)
        slots[handles->count++] = (struct cpu_slot){0};
    return true;
}

ps_handle
cpu_handle_create_locked(struct cpu_engine *engine, enum cpu_tag tag,
                         void *object)
{
    struct cpu_handles *handles = &engine->handles;
    uint32_t index = handles->first_free;
    if (index) {
        handles->first_free = handles->slots[index].next_free;
    }
    else {
        if (handles->count == handles->capacity && !handles_grow(handles))
            return 0;
        index = handles->count++;
        handles->slots[index].generation = 0;
    }
    struct cpu_slot *slot = &handles->slots[index];
    slot->object = object;
    slot->generation++;
    slot->handle = (ps_handle)slot->generation << GENERATION_SHIFT |
                   (ps_handle)index << SLOT_SHIFT |
                   (ps_handle)engine->number << 1 | tag;
    return slot->handle;
}

void *
cpu_handle_find_locked(struct cpu_engine *engine, enum cpu_tag tag,
                       ps_handle handle)
{
    if (!handle || (handle & 1) != tag)
        return NULL;
    struct cpu_slot *slot = slot_find(&engine->handles, handle);
    return slot ? slot->object : NULL;
}

void
cpu_handle_destroy_locked(struct cpu_engine *engine, ps_handle handle)
{
    slot_free(&engine->handles, slot_find(&engine->handles, handle));
}

void
cpu_handles_reset_locked(struct cpu_engine *engine)
{
    struct cpu_handles *handles = &engine->handles;
    for (uint32_t index = 1; index < handles->count; index++) {
        struct cpu_slot *slot = &handles->slots[index];
        if (slot->handle) {
            free(slot->object);
            slot_free(handles, slot);
        }
    }
}
