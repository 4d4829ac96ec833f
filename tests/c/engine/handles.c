/* Tests that the engine rejects invalid handles: handles of destroyed objects,
 * of objects of another kind or from another engine, and arbitrary numbers. */
#include "check.h"
#include "tests.h"
#include "work.h"

#include <stdlib.h>

void
test_handles(void)
{
    const struct ps_backend *other =
        ps_cpu_backend("cuda", PS_DEVICE_CUDA, 3, 0);
    ps_handle stream = stream_new(0), event = event_new(), foreign = 0;
    int device = -1;
    CHECK(other->flags == (PS_BACKEND_FORKABLE | PS_BACKEND_EMULATED));
    OK(other->device_set(other, 2));
    OK(cpu->device_current(cpu, &device));
    CHECK(device == 0);
    OK(other->device_current(other, &device));
    CHECK(device == 2);
    OK(other->stream_create(other, 2, 0, &foreign));
    OK(other->stream_device(other, foreign, &device));
    CHECK(device == 2 && foreign != stream);

    ps_handle stale_stream = stream_new(0), stale_event = event_new();
    OK(cpu->stream_destroy(cpu, 0, stale_stream));
    OK(cpu->event_destroy(cpu, 0, stale_event));
    ps_handle bad[] = {event,      foreign,     stale_stream, stale_event,
                       1,          2,           UINTPTR_MAX,  stream + 16,
                       stream ^ 2, stream << 1, stream >> 1,  (uintptr_t)&bad};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_STATUS(cpu->stream_query(cpu, 0, bad[i]),
                     PS_ERROR_INVALID_HANDLE);
        CHECK_STATUS(cpu->stream_destroy(cpu, 0, bad[i]),
                     PS_ERROR_INVALID_HANDLE);
        CHECK_STATUS(cpu->event_record(cpu, 0, event, bad[i]),
                     PS_ERROR_INVALID_HANDLE);
        if (bad[i] != event) {
            CHECK_STATUS(cpu->event_query(cpu, 0, bad[i]),
                         PS_ERROR_INVALID_HANDLE);
        }
    }
    unsigned seed = 1;
    for (int i = 0; i < 100000; i++) {
        ps_handle garbage = (ps_handle)rand_r(&seed) << 32 ^
                            (ps_handle)rand_r(&seed) << 4 ^ i % 16;
        if (garbage == stream || garbage == event || !garbage) {
            continue;
        }
        if (!cpu->stream_query(cpu, 0, garbage) ||
            !cpu->event_query(cpu, 0, garbage)) {
            CHECK(!"garbage was taken for a handle");
        }
    }
    CHECK_STATUS(cpu->stream_query(cpu, 1, stream), PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->stream_destroy(cpu, 0, 0), PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->event_query(cpu, 0, 0), PS_ERROR_INVALID_HANDLE);
    OK(cpu->stream_query(cpu, 1, 0));
    OK(other->stream_destroy(other, 2, foreign));
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->event_destroy(cpu, 0, event));
}
