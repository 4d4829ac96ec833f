/* The hash table uses linear probing.  A new key goes into the slot that its
 * hash selects or, if that slot is occupied, into the next free slot. */
#include "map.h"

#include <stdlib.h>

static uint64_t
hash_of(uint64_t first, uint64_t second)
{
    uint64_t hash = (first * 0x9e3779b97f4a7c15 ^ second) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
}

static struct ps_map_slot *
map_slot(const struct ps_map *map, uint64_t first, uint64_t second)
{
    size_t i = hash_of(first, second);
    for (;; i++) {
        struct ps_map_slot *slot = &map->slots[i & (map->room - 1)];
        if (slot->value == NULL ||
            (slot->first == first && slot->second == second)) {
            return slot;
        }
    }
}

void *
ps_map_get(const struct ps_map *map, uint64_t first, uint64_t second)
{
    return map->room != 0 ? map_slot(map, first, second)->value : NULL;
}

static bool
map_grow(struct ps_map *map)
{
    struct ps_map grown = {.room = map->room != 0 ? 2 * map->room : 64,
                           .count = map->count};
    grown.slots = calloc(grown.room, sizeof(*grown.slots));
    if (grown.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->room; i++) {
        struct ps_map_slot *slot = &map->slots[i];
        if (slot->value != NULL) {
            *map_slot(&grown, slot->first, slot->second) = *slot;
        }
    }
    free(map->slots);
    *map = grown;
    return true;
}

bool
ps_map_set(struct ps_map *map, uint64_t first, uint64_t second, void *value)
{
    if (2 * (map->count + 1) > map->room && !map_grow(map)) {
        return false;
    }
    struct ps_map_slot *slot = map_slot(map, first, second);
    map->count += slot->value == NULL;
    *slot = (struct ps_map_slot){first, second, value};
    return true;
}

/* Remove a key.  map_slot() stops at the slot that becomes empty.  So the keys
 * in the following slots, up to the next empty slot, are inserted again. */
void *
ps_map_take(struct ps_map *map, uint64_t first, uint64_t second)
{
    struct ps_map_slot *hole;
    if (map->room == 0 ||
        (hole = map_slot(map, first, second))->value == NULL) {
        return NULL;
    }
    void *value = hole->value;
    hole->value = NULL;
    map->count--;
    for (size_t i = (size_t)(hole - map->slots) + 1;; i++) {
        struct ps_map_slot *slot = &map->slots[i & (map->room - 1)];
        struct ps_map_slot moved = *slot;
        if (moved.value == NULL) {
            return value;
        }
        slot->value = NULL;
        *map_slot(map, moved.first, moved.second) = moved;
    }
}

void
ps_map_clear(struct ps_map *map)
{
    free(map->slots);
    *map = (struct ps_map){NULL};
}
