/* A hash table.  A key is a pair of numbers, and a value is a pointer other
 * than NULL. */
#ifndef PYSTREAMS_OBSERVE_MAP_H
#define PYSTREAMS_OBSERVE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Uses open addressing.  The room is a power of two. */
struct ps_map {
    struct ps_map_slot {
        uint64_t first, second;
        void *value; /* NULL: the slot is empty */
    } * slots;
    size_t room, count;
};

/* Returns the value; NULL if there is none. */
void *ps_map_get(const struct ps_map *map, uint64_t first, uint64_t second);

/* Set the value, which must not be NULL.  Returns false if there is no
 * memory. */
bool
ps_map_set(struct ps_map *map, uint64_t first, uint64_t second, void *value);

/* Remove and return the value; NULL if there is none. */
void *ps_map_take(struct ps_map *map, uint64_t first, uint64_t second);

/* Remove all values, and free the table.  The values belong to the caller. */
void ps_map_clear(struct ps_map *map);

#endif
