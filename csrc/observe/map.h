/* A hash table from pairs of numbers to values other than NULL. */
#ifndef PYSTREAMS_OBSERVE_MAP_H
#define PYSTREAMS_OBSERVE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Open addressing; the room is a power of two. */
struct ps_map {
    struct ps_map_slot {
        uint64_t first, second;
        void *value; /* NULL: empty */
    } * slots;
    size_t room, count;
};

/* NULL if it is not there. */
void *ps_map_get(const struct ps_map *map, uint64_t first, uint64_t second);

/* Set the value, which is not NULL; false if there is no memory. */
bool
ps_map_set(struct ps_map *map, uint64_t first, uint64_t second, void *value);

/* Take the value out; NULL if it is not there. */
void *ps_map_take(struct ps_map *map, uint64_t first, uint64_t second);

/* Remove all values, which the caller owns, and free the table. */
void ps_map_clear(struct ps_map *map);

#endif
