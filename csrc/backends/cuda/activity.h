/* The CUPTI declarations that the CUDA backend needs, so that no build
 * requires CUPTI's headers.
 *
 * They are valid for every version of CUPTI since CUDA 12.  Later versions
 * only append fields to the record structs.  That is harmless, because
 * cuptiActivityGetNextRecord knows the size of each record. */
#ifndef PYSTREAMS_CUDA_ACTIVITY_H
#define PYSTREAMS_CUDA_ACTIVITY_H

#include <cuda.h>

#include <stddef.h>
#include <stdint.h>

/* enum CUpti_ActivityKind */
enum {
    CUPTI_MEMCPY = 1,
    CUPTI_MEMSET = 2,
    CUPTI_KERNEL = 10, /* a kernel that may run concurrently with others */
    CUPTI_MEMCPY_PEER = 22,
    CUPTI_SYNCHRONIZATION = 38,
};

/* CUpti_ActivityMemcpyKind */
enum {
    CUPTI_HOST_TO_DEVICE = 1,
    CUPTI_DEVICE_TO_HOST = 2,
    CUPTI_HOST_TO_ARRAY = 3,
    CUPTI_ARRAY_TO_HOST = 4,
    CUPTI_ARRAY_TO_ARRAY = 5,
    CUPTI_ARRAY_TO_DEVICE = 6,
    CUPTI_DEVICE_TO_ARRAY = 7,
    CUPTI_DEVICE_TO_DEVICE = 8,
    CUPTI_HOST_TO_HOST = 9,
    CUPTI_PEER_TO_PEER = 10,
};

/* CUpti_ActivitySynchronizationType */
enum {
    CUPTI_EVENT_SYNCHRONIZE = 1,
    CUPTI_STREAM_SYNCHRONIZE = 3,
    CUPTI_CONTEXT_SYNCHRONIZE = 4,
};

/* enum CUpti_CallbackDomain */
enum { CUPTI_DRIVER = 1, CUPTI_RUNTIME = 2 };

/* enum CUptiResult */
enum { CUPTI_TAKEN = 39 /* another tool has subscribed */ };

/* CUpti_ActivityKernel9 and later */
struct cupti_kernel {
    uint32_t kind, unused[3];
    uint64_t start, end, completed;
    uint32_t device, context, stream, shape[6], memory[4], correlation;
    int64_t grid;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint32_t launch, shared_memory;
    uint64_t graph_node;
};

/* CUpti_ActivityMemcpy5 and later, CUpti_ActivityMemset4 and later */
struct cupti_transfer {
    uint32_t kind;
    /* `direction` is the CUpti_ActivityMemcpyKind of a copy, or the value of a
     * fill. */
    uint8_t direction, unused[3];
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, more[2];
    void *reserved;
    uint64_t graph_node;
};

/* CUpti_ActivityMemcpyPtoP4 and later */
struct cupti_peer_transfer {
    uint32_t kind, unused;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, sides[4], correlation;
    void *reserved;
    uint64_t graph_node;
};

/* CUpti_ActivitySynchronization and later */
struct cupti_synchronization {
    uint32_t kind, type;
    uint64_t start, end;
    uint32_t correlation;
};

/* CUpti_CallbackData */
struct cupti_call {
    uint32_t is_exit;
    const char *function;
    const void *parameters;
    void *result;
    const char *symbol;
    CUcontext context;
    uint32_t context_number;
    uint64_t *data;
    uint32_t correlation;
};

/* CUpti_SubscriberParams */
struct cupti_subscription {
    size_t size;
    const char *name;
    /* Receives the name of the tool that has subscribed already. */
    char *holder;
    size_t holder_size;
};

typedef void (*cupti_callback)(void *argument, int domain, uint32_t id,
                               const void *data);
typedef uint64_t (*cupti_clock)(void);
typedef void (*cupti_requested)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*cupti_completed)(CUcontext context, uint32_t stream,
                                uint8_t *buffer, size_t size, size_t valid);

/* Each line has three parts: the member of struct cupti (in activity.c) that
 * holds the function's address, the function's name, and the function's
 * parameters. */
#define CUPTI_FUNCTIONS(X)                                                   \
    X(subscribe, "cuptiSubscribe_v2",                                        \
      (void **, cupti_callback, void *, struct cupti_subscription *))        \
    X(unsubscribe, "cuptiUnsubscribe", (void *))                             \
    X(callback_name, "cuptiGetCallbackName", (int, uint32_t, const char **)) \
    X(callback_enable, "cuptiEnableCallback",                                \
      (uint32_t, void *, int, uint32_t))                                     \
    X(result_text, "cuptiGetResultString", (int, const char **))             \
    X(clock, "cuptiActivityRegisterTimestampCallback", (cupti_clock))        \
    X(buffers, "cuptiActivityRegisterCallbacks",                             \
      (cupti_requested, cupti_completed))                                    \
    X(enable, "cuptiActivityEnable", (int))                                  \
    X(disable, "cuptiActivityDisable", (int))                                \
    X(flush, "cuptiActivityFlushAll", (uint32_t))                            \
    X(next, "cuptiActivityGetNextRecord", (uint8_t *, size_t, void **))      \
    X(stream_id, "cuptiGetStreamIdEx",                                       \
      (CUcontext, CUstream, uint8_t, uint32_t *))                            \
    X(context_id, "cuptiGetContextId", (CUcontext, uint32_t *))

#endif
