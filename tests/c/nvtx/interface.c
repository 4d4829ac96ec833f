/* Checks at compile time that the declarations in csrc/observe/nvtx.h agree
 * with those in the installed headers of NVTX. */
#include "../../../csrc/observe/nvtx.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#define SAME(theirs, ours) \
    _Static_assert((int)(theirs) == (int)(ours), #theirs);

#define SAME_FIELD(theirs, ours)                                       \
    _Static_assert(offsetof(nvtxEventAttributes_t, theirs) ==          \
                           offsetof(struct nvtx_event, ours) &&        \
                       sizeof(((nvtxEventAttributes_t *)0)->theirs) == \
                           sizeof(((struct nvtx_event *)0)->ours),     \
                   #theirs);

SAME(NVTX_ETID_CALLBACKS, NVTX_CALLBACKS)
SAME(NVTX_CB_MODULE_CORE, NVTX_CORE)
SAME(NVTX_CB_MODULE_CORE2, NVTX_CORE2)
SAME(NVTX_CBID_CORE_MarkEx, NVTX_MARK_EX)
SAME(NVTX_CBID_CORE_MarkA, NVTX_MARK_A)
SAME(NVTX_CBID_CORE_MarkW, NVTX_MARK_W)
SAME(NVTX_CBID_CORE_RangeStartEx, NVTX_RANGE_START_EX)
SAME(NVTX_CBID_CORE_RangeStartA, NVTX_RANGE_START_A)
SAME(NVTX_CBID_CORE_RangeStartW, NVTX_RANGE_START_W)
SAME(NVTX_CBID_CORE_RangeEnd, NVTX_RANGE_END)
SAME(NVTX_CBID_CORE_RangePushEx, NVTX_RANGE_PUSH_EX)
SAME(NVTX_CBID_CORE_RangePushA, NVTX_RANGE_PUSH_A)
SAME(NVTX_CBID_CORE_RangePushW, NVTX_RANGE_PUSH_W)
SAME(NVTX_CBID_CORE_RangePop, NVTX_RANGE_POP)
SAME(NVTX_CBID_CORE2_DomainMarkEx, NVTX_DOMAIN_MARK_EX)
SAME(NVTX_CBID_CORE2_DomainRangeStartEx, NVTX_DOMAIN_RANGE_START_EX)
SAME(NVTX_CBID_CORE2_DomainRangeEnd, NVTX_DOMAIN_RANGE_END)
SAME(NVTX_CBID_CORE2_DomainRangePushEx, NVTX_DOMAIN_RANGE_PUSH_EX)
SAME(NVTX_CBID_CORE2_DomainRangePop, NVTX_DOMAIN_RANGE_POP)
SAME(NVTX_CBID_CORE2_DomainRegisterStringA, NVTX_DOMAIN_REGISTER_STRING_A)
SAME(NVTX_CBID_CORE2_DomainRegisterStringW, NVTX_DOMAIN_REGISTER_STRING_W)
SAME(NVTX_CBID_CORE2_DomainCreateA, NVTX_DOMAIN_CREATE_A)
SAME(NVTX_CBID_CORE2_DomainCreateW, NVTX_DOMAIN_CREATE_W)
SAME(NVTX_MESSAGE_TYPE_ASCII, NVTX_TEXT)
SAME(NVTX_MESSAGE_TYPE_UNICODE, NVTX_WIDE_TEXT)
SAME(NVTX_MESSAGE_TYPE_REGISTERED, NVTX_REGISTERED)
SAME_FIELD(messageType, message_type)
SAME_FIELD(message, message)
SAME(sizeof(nvtxEventAttributes_t), sizeof(struct nvtx_event))
SAME(sizeof(NvtxExportTableCallbacks), sizeof(struct nvtx_callbacks))
SAME(offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable),
     offsetof(struct nvtx_callbacks, module))
