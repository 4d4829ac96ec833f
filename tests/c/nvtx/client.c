/* A library that has ranges, with the functions of NVTX's headers. */
#define NVTX_EXPORT_API
#include <nvtx3/nvToolsExt.h>
