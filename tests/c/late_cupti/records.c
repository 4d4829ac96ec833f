/* Checks at compile time that the declarations in activity.h agree with those
 * in the installed headers of CUPTI.  activity.h declares only the first
 * members of CUPTI's records. */
#include <cupti.h>

#include "activity.h"

#define SAME(type, field, ours, member)                                      \
    _Static_assert(offsetof(type, field) == offsetof(struct ours, member) && \
                       sizeof(((type *)0)->field) ==                         \
                           sizeof(((struct ours *)0)->member),               \
                   #type "." #field);

#define SAME_ACTIVITY(type, ours)                \
    SAME(type, kind, ours, kind)                 \
    SAME(type, start, ours, start)               \
    SAME(type, end, ours, end)                   \
    SAME(type, deviceId, ours, device)           \
    SAME(type, contextId, ours, context)         \
    SAME(type, streamId, ours, stream)           \
    SAME(type, correlationId, ours, correlation) \
    SAME(type, graphNodeId, ours, graph_node)

#if CUPTI_API_VERSION >= 130000
SAME_ACTIVITY(CUpti_ActivityKernel10, cupti_kernel)
SAME(CUpti_ActivityKernel10, name, cupti_kernel, name)
SAME_ACTIVITY(CUpti_ActivityMemcpy6, cupti_transfer)
SAME(CUpti_ActivityMemcpy6, bytes, cupti_transfer, bytes)
SAME(CUpti_ActivityMemcpy6, copyKind, cupti_transfer, direction)
#else
SAME_ACTIVITY(CUpti_ActivityKernel9, cupti_kernel)
SAME(CUpti_ActivityKernel9, name, cupti_kernel, name)
SAME_ACTIVITY(CUpti_ActivityMemcpy5, cupti_transfer)
SAME(CUpti_ActivityMemcpy5, bytes, cupti_transfer, bytes)
SAME(CUpti_ActivityMemcpy5, copyKind, cupti_transfer, direction)
#endif
SAME_ACTIVITY(CUpti_ActivityMemset4, cupti_transfer)
SAME(CUpti_ActivityMemset4, bytes, cupti_transfer, bytes)
SAME_ACTIVITY(CUpti_ActivityMemcpyPtoP4, cupti_peer_transfer)
SAME(CUpti_ActivityMemcpyPtoP4, bytes, cupti_peer_transfer, bytes)
SAME(CUpti_ActivitySynchronization, kind, cupti_synchronization, kind)
SAME(CUpti_ActivitySynchronization, type, cupti_synchronization, type)
SAME(CUpti_ActivitySynchronization, start, cupti_synchronization, start)
SAME(CUpti_ActivitySynchronization, end, cupti_synchronization, end)
SAME(CUpti_ActivitySynchronization, correlationId, cupti_synchronization,
     correlation)
SAME(CUpti_CallbackData, callbackSite, cupti_call, is_exit)
SAME(CUpti_CallbackData, functionName, cupti_call, function)
SAME(CUpti_CallbackData, correlationId, cupti_call, correlation)
SAME(CUpti_SubscriberParams, structSize, cupti_subscription, size)
SAME(CUpti_SubscriberParams, subscriberName, cupti_subscription, name)
SAME(CUpti_SubscriberParams, oldSubscriberName, cupti_subscription, holder)
SAME(CUpti_SubscriberParams, oldSubscriberSize, cupti_subscription,
     holder_size)
_Static_assert(sizeof(CUpti_SubscriberParams) ==
                   sizeof(struct cupti_subscription),
               "CUpti_SubscriberParams");

_Static_assert((int)CUPTI_MEMCPY == (int)CUPTI_ACTIVITY_KIND_MEMCPY, "kind");
_Static_assert((int)CUPTI_MEMSET == (int)CUPTI_ACTIVITY_KIND_MEMSET, "kind");
_Static_assert((int)CUPTI_KERNEL == (int)CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
               "kind");
_Static_assert((int)CUPTI_MEMCPY_PEER == (int)CUPTI_ACTIVITY_KIND_MEMCPY2,
               "kind");
_Static_assert((int)CUPTI_SYNCHRONIZATION ==
                   (int)CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
               "kind");
_Static_assert(
    (int)CUPTI_EVENT_SYNCHRONIZE ==
            (int)CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE &&
        (int)CUPTI_STREAM_SYNCHRONIZE ==
            (int)CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE &&
        (int)CUPTI_CONTEXT_SYNCHRONIZE ==
            (int)CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE,
    "type");
#define SAME_DIRECTION(ours, theirs)                             \
    _Static_assert((int)CUPTI_##ours ==                          \
                       (int)CUPTI_ACTIVITY_MEMCPY_KIND_##theirs, \
                   "direction");

SAME_DIRECTION(HOST_TO_DEVICE, HTOD)
SAME_DIRECTION(DEVICE_TO_HOST, DTOH)
SAME_DIRECTION(HOST_TO_ARRAY, HTOA)
SAME_DIRECTION(ARRAY_TO_HOST, ATOH)
SAME_DIRECTION(ARRAY_TO_ARRAY, ATOA)
SAME_DIRECTION(ARRAY_TO_DEVICE, ATOD)
SAME_DIRECTION(DEVICE_TO_ARRAY, DTOA)
SAME_DIRECTION(DEVICE_TO_DEVICE, DTOD)
SAME_DIRECTION(HOST_TO_HOST, HTOH)
SAME_DIRECTION(PEER_TO_PEER, PTOP)

_Static_assert((int)CUPTI_DRIVER == (int)CUPTI_CB_DOMAIN_DRIVER_API, "domain");
_Static_assert((int)CUPTI_RUNTIME == (int)CUPTI_CB_DOMAIN_RUNTIME_API,
               "domain");
_Static_assert((int)CUPTI_TAKEN ==
                   (int)CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
               "result");
