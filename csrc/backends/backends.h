/* The backends in this library, one exported symbol each, and the reading of
 * CUDA_VISIBLE_DEVICES, which backends of CUDA devices share. */
#ifndef PYSTREAMS_BACKENDS_H
#define PYSTREAMS_BACKENDS_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* cudart, linked in; absent from a build without CUDA. */
extern const struct ps_backend ps_cuda_backend;

/* The fault injection of every embedded CPU engine. */
extern const struct ps_faults ps_cpu_faults;

/* A new embedded CPU engine that shows device_count (> 0) devices of the named
 * type; marked PS_BACKEND_EMULATED if the type is not PS_DEVICE_CPU.  Each of
 * its devices then has `memory` bytes; 0: a share of the machine's.  Starts no
 * thread before work is queued.  The table lives until the process ends, and
 * so must name.  NULL when out of memory. */
const struct ps_backend *ps_cpu_backend(const char *name, int device_type,
                                        int device_count, uint64_t memory);

/* The index of the one device whose UUID begins with the text; -1 when there
 * is none, or several. */
typedef int
uuid_finder(const void *devices, int total, const char *text, size_t length);

/* The index of the device that an item names, by its number or its UUID; -1 if
 * it names none. */
static inline int
visible_index(const char *item, int uuids, int total, uuid_finder *find,
              const void *devices)
{
    size_t length = strcspn(item, ",");
    char *end;
    if (uuids) {
        return find != NULL && length > strlen("GPU-")
                   ? find(devices, total, item, length)
                   : -1;
    }
    long index = strtol(item, &end, 10);
    return end != item && index >= 0 && index < total ? (int)index : -1;
}

enum { MOST_VISIBLE = 1024 };

/* The number of devices that the variable leaves visible, of at most
 * MOST_VISIBLE, and a mask of them.  The list ends at the first item that
 * names no device, or that is of another kind (number or UUID) than the first;
 * it is empty if it names a device twice.  -1 if only the driver knows.  find:
 * NULL if the devices have no UUIDs. */
static inline int
visible_devices(int total, uuid_finder *find, const void *devices,
                uint64_t seen[MOST_VISIBLE / 64])
{
    const char *item = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    memset(seen, item == NULL ? 0xff : 0, MOST_VISIBLE / 8);
    if (item == NULL) {
        return total;
    }
    if (strncmp(item, "MIG-", 4) == 0) {
        return -1;
    }
    int uuids = strncmp(item, "GPU-", 4) == 0;
    for (;; item++) {
        int index = visible_index(item, uuids, total, find, devices);
        if (index < 0) {
            return count;
        }
        uint64_t bit = UINT64_C(1) << index % 64;
        if (seen[index / 64] & bit) {
            return 0;
        }
        seen[index / 64] |= bit;
        count++;
        item += strcspn(item, ",");
        if (*item == '\0') {
            return count;
        }
    }
}

#endif
