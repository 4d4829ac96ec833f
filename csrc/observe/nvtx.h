/* The NVTX declarations that a tool such as pystreams needs.  They are
 * repeated here so that no build requires NVTX's headers.  A library that
 * marks ranges with NVTX 2 or 3 calls the tool through this interface.  The
 * tool is the library that the environment variable NVTX_INJECTION64_PATH
 * names. */
#ifndef PYSTREAMS_OBSERVE_NVTX_H
#define PYSTREAMS_OBSERVE_NVTX_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

/* NVTX_ETID_CALLBACKS */
enum { NVTX_CALLBACKS = 1 };

/* NvtxCallbackModule */
enum { NVTX_CORE = 1, NVTX_CORE2 = 5 };

/* NvtxCallbackIdCore */
enum {
    NVTX_MARK_EX = 1,
    NVTX_MARK_A,
    NVTX_MARK_W,
    NVTX_RANGE_START_EX,
    NVTX_RANGE_START_A,
    NVTX_RANGE_START_W,
    NVTX_RANGE_END,
    NVTX_RANGE_PUSH_EX,
    NVTX_RANGE_PUSH_A,
    NVTX_RANGE_PUSH_W,
    NVTX_RANGE_POP,
};

/* NvtxCallbackIdCore2 */
enum {
    NVTX_DOMAIN_MARK_EX = 1,
    NVTX_DOMAIN_RANGE_START_EX,
    NVTX_DOMAIN_RANGE_END,
    NVTX_DOMAIN_RANGE_PUSH_EX,
    NVTX_DOMAIN_RANGE_POP,
    NVTX_DOMAIN_REGISTER_STRING_A = 10,
    NVTX_DOMAIN_REGISTER_STRING_W,
    NVTX_DOMAIN_CREATE_A,
    NVTX_DOMAIN_CREATE_W,
};

/* nvtxMessageType_t */
enum { NVTX_TEXT = 1, NVTX_WIDE_TEXT = 2, NVTX_REGISTERED = 3 };

/* The result of a push or pop if the tool does not track how deeply ranges are
 * nested. */
enum { NVTX_NO_PUSH_POP_TRACKING = -2 };

/* nvtxEventAttributes_t */
struct nvtx_event {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    union nvtx_message {
        const char *text;
        const wchar_t *wide;
        const void *registered;
    } message;
};

typedef void (*nvtx_function)(void);

/* NvtxExportTableCallbacks */
struct nvtx_callbacks {
    size_t size;
    /* Get an array of *count elements for a module.  Each element is the
     * address of a function pointer that the tool may set.  Returns 0 on
     * failure. */
    int (*module)(int module, nvtx_function ***functions, unsigned *count);
};

typedef const void *(*nvtx_export_table)(uint32_t id);

/* NVTX calls this once for each library that marks ranges, at the library's
 * first NVTX call. */
__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(nvtx_export_table export_table);

#endif
