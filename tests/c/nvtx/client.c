/* A library that exports the functions of NVTX's headers, so that a test can
 * make ranges through them. */
#define NVTX_EXPORT_API
#include <nvtx3/nvToolsExt.h>
