/* The engine's storage: items, which are the memory of operations and records,
 * and the handles by which callers name its objects.
 *
 * Each function that takes a handle checks it, so that a wrong handle causes
 * an error and not a crash.  A handle is accepted only if all of its bits are
 * those of an existing object's handle:
 *
 *   63..62  61..30  29..6  5..3    2..0
 *   0       serial  slot   engine  tag
 *
 * Any 2^32 handles that are created in a row have different serial numbers.
 * So a handle that was destroyed does not become valid again before that many
 * handles were created. */
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
    union cpu_item *taken = NULL, *item;
    while (count > 0 && (item = cpu_item_take_locked(engine)) != NULL) {
        item->next = taken;
        taken = item;
        count--;
    }
    while (taken != NULL) {
        union cpu_item *next = taken->next;
        cpu_item_give_locked(engine, taken);
        taken = next;
    }
    return count == 0 ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
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

#define SLOT_LIMIT ((uint32_t)1 << (SERIAL_SHIFT - SLOT_SHIFT))

_Static_assert(sizeof(ps_handle) == 8, "a handle has 64 bits");
_Static_assert(1 << ENGINE_SHIFT == CPU_TAGS, "a tag has 3 bits");
_Static_assert(CPU_ENGINES <= 8, "an engine's number has 3 bits");
_Static_assert(1 << SLOT_SHIFT == CPU_SLOT_BYTES &&
                   SLOT_LIMIT == CPU_CHUNKS * CPU_CHUNK_SLOTS,
               "the chunks have a slot for every index");

static struct cpu_slot *
slot_of(const struct cpu_engine *engine, uint32_t index)
{
    return cpu_slot_at(engine, (ps_handle)index << SLOT_SHIFT);
}

/* Allocate a chunk of slots, aligned to the size of a slot.  Returns NULL if
 * out of memory.  A chunk is never freed, so the address that calloc returned
 * is not kept. */
static struct cpu_slot *
chunk_create(void)
{
    char *memory = calloc(1, CPU_CHUNK_BYTES + CPU_SLOT_BYTES);
    return memory != NULL
               ? (struct cpu_slot *)(memory + CPU_SLOT_BYTES -
                                     (uintptr_t)memory % CPU_SLOT_BYTES)
               : NULL;
}

/* Allocate chunks for `count` more slots.  Returns false if that fails. */
static bool
handles_grow(struct cpu_engine *engine, size_t count)
{
    uint32_t used = engine->handles.used;
    if (count >= SLOT_LIMIT - used) {
        return false;
    }
    for (size_t i = (used + 1) / CPU_CHUNK_SLOTS;
         i <= (used + count) / CPU_CHUNK_SLOTS; i++) {
        struct cpu_slot *slots = engine->chunks[i];
        if (slots == NULL && (slots = chunk_create()) == NULL) {
            return false;
        }
        engine->chunks[i] = slots;
    }
    return true;
}

/* Take a free slot, or else a new one, and return its index.  Returns 0 if out
 * of memory. */
static uint32_t
handles_next(struct cpu_engine *engine)
{
    struct cpu_handles *handles = &engine->handles;
    uint32_t index = handles->first_free;
    if (index != 0) {
        handles->first_free = slot_of(engine, index)->next_free;
        return index;
    }
    return handles_grow(engine, 1) ? ++handles->used : 0;
}

ps_status
cpu_slots_reserve_locked(struct cpu_engine *engine, size_t count)
{
    return count == 0 || handles_grow(engine, count) ? PS_SUCCESS
                                                     : PS_ERROR_OUT_OF_MEMORY;
}

struct cpu_slot *
cpu_slot_take_locked(struct cpu_engine *engine, enum cpu_tag tag, int device)
{
    uint32_t index = handles_next(engine);
    if (index == 0) {
        return NULL;
    }
    struct cpu_slot *slot = slot_of(engine, index);
    /* The two highest bits of a handle are 0, because they are used for the
     * names of threads' default streams (see PS_THREAD_STREAM_NAME). */
    ps_handle serial = ++engine->handles.serial & UINT32_MAX;
    ps_handle handle = serial << SERIAL_SHIFT |
                       (ps_handle)index << SLOT_SHIFT |
                       (ps_handle)engine->number << ENGINE_SHIFT | tag;
    slot->object = NULL;
    slot->shared = NULL;
    /* These are release stores, like those of a known state to `known`,
     * because a thread that sees the new object's `known` must also see the
     * new handle. */
    atomic_store_explicit(&slot->device, device, memory_order_release);
    atomic_store_explicit(&slot->handle, handle, memory_order_release);
    return slot;
}

void
cpu_slot_give_locked(struct cpu_engine *engine, struct cpu_slot *slot)
{
    slot->next_free = engine->handles.first_free;
    engine->handles.first_free =
        (slot->handle >> SLOT_SHIFT) & (SLOT_LIMIT - 1);
    atomic_store_explicit(&slot->handle, 0, memory_order_relaxed);
    cpu_forget(&slot->known);
}

bool
cpu_slots_any_locked(const struct cpu_engine *engine)
{
    uint32_t i = engine->handles.used;
    while (i > 0 && slot_of(engine, i)->handle == 0) {
        i--;
    }
    return i > 0;
}

void
cpu_slots_forget(struct cpu_engine *engine)
{
    for (uint32_t i = 1; i <= engine->handles.used; i++) {
        struct cpu_slot *slot = slot_of(engine, i);
        if (slot->handle != 0) {
            slot->handle = 0;
            cpu_forget(&slot->known);
        }
    }
    engine->handles.used = engine->handles.first_free = 0;
}
