/* A hash table.  A key is a pair of numbers, and a value is a pointer other
 * than NULL. */
#ifndef PYSTREAMS_OBSERVE_MAP_H
#define PYSTREAMS_OBSERVE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `room` is the number of slots, which is a power of two.  `count` is the
 * number of slots that are not empty. */
struct ps_map {
    struct ps_map_slot {
        uint64_t first, second;
        void *value; /* NULL if the slot is empty */
    } * slots;
    size_t room, count;
};

/* Returns the value for the key (first, second), or NULL if the key is not in
 * the table. */
void *ps_map_get(const struct ps_map *map, uint64_t first, uint64_t second);

/* Set the value for the key.  The value must not be NULL.  Returns false if
 * out of memory. */
bool
ps_map_set(struct ps_map *map, uint64_t first, uint64_t second, void *value);

/* Remove the key and return its value.  Returns NULL if the key is not in the
 * table. */
void *ps_map_take(struct ps_map *map, uint64_t first, uint64_t second);

/* Remove all keys, and free the slots.  The objects to which the values point
 * are not freed. */
void ps_map_clear(struct ps_map *map);

#endif
