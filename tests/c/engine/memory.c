/* Memory, the properties of a device, and transfers from many threads. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

void
test_memory(void)
{
    enum { SIZE = 1 << 20 };
    ps_handle stream = stream_new(0);
    struct ps_device_properties properties;
    uint64_t available = 0, total = 0;
    unsigned char *a = NULL, *b = NULL, *pinned = NULL;
    int accessible = -1;
    OK(cpu->memory_allocate(cpu, 0, stream, SIZE, (void **)&a));
    OK(cpu->memory_allocate(cpu, 1, 0, SIZE, (void **)&b));
    OK(cpu->pinned_allocate(cpu, 0, SIZE, (void **)&pinned));
    CHECK((uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0);
    for (size_t size = 1; size <= SIZE; size *= 4) {
        OK(cpu->memory_fill(cpu, 0, stream, a, (uint8_t)size + 1, size));
        OK(cpu->memory_copy(cpu, 0, stream, b, a, size));
        OK(cpu->memory_copy(cpu, 0, stream, pinned, b, size));
        OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
        CHECK(pinned[0] == (uint8_t)(size + 1));
        CHECK(pinned[size - 1] == (uint8_t)(size + 1));
    }
    void *huge = NULL;
    CHECK_STATUS(cpu->memory_allocate(cpu, 0, stream, SIZE_MAX, &huge),
                 PS_ERROR_OUT_OF_MEMORY);
    OK(cpu->peer_accessible(cpu, 0, 1, &accessible));
    CHECK(accessible == 1);
    OK(cpu->memory_info(cpu, 0, &available, &total));
    CHECK(available > 0 && available <= total);
    OK(cpu->device_properties(cpu, 0, &properties));
    CHECK(properties.total_memory == total && properties.name[0]);
    CHECK(properties.multi_processor_count > 0);
    CHECK(strcmp(cpu->status_text(cpu, 101), "invalid device ordinal") == 0);
    CHECK(cpu->status_name(cpu, -7) && cpu->status_text(cpu, 12345));
    OK(cpu->memory_free(cpu, 0, stream, a));
    OK(cpu->memory_free(cpu, 1, 0, b));
    OK(cpu->pinned_free(cpu, 0, pinned));
    stream_end(stream);
}

enum { BLOCK = 64 * 1024, BLOCK_ROUNDS = 200 };

static unsigned char shared_block[BLOCK];

/* Small transfers run on the calling threads, but still in stream order.  So
 * no copy sees a half-done fill. */
static void *
fill_thread(void *argument)
{
    unsigned char *copy = malloc(BLOCK);
    ps_handle event = event_new();
    int torn = 0;
    for (int i = 0; i < BLOCK_ROUNDS; i++) {
        OK(cpu->memory_fill(cpu, 0, 0, shared_block,
                            (uint8_t)(intptr_t)argument, BLOCK));
        OK(cpu->memory_copy(cpu, 0, 0, copy, shared_block, BLOCK));
        OK(cpu->event_record(cpu, 0, event, 0));
        OK(cpu->event_synchronize(cpu, 0, event, NULL));
        torn += memcmp(copy, copy + 1, BLOCK - 1) != 0;
    }
    CHECK(torn == 0);
    OK(cpu->event_destroy(cpu, 0, event));
    free(copy);
    return NULL;
}

void
test_transfers(void)
{
    run_threads(fill_thread);
}
