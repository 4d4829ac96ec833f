/* The function device_attributes, and the names of attributes.  The names are
 * those of CUDA's cudaDeviceAttr, without the prefix. */
#include "module.h"

#include "device.h"
#include "errors.h"

/* Indexed by the attribute's number; NULL if it has no name. */
static const char *const names[] = {
    [1] = "MaxThreadsPerBlock",
    [2] = "MaxBlockDimX",
    [3] = "MaxBlockDimY",
    [4] = "MaxBlockDimZ",
    [5] = "MaxGridDimX",
    [6] = "MaxGridDimY",
    [7] = "MaxGridDimZ",
    [8] = "MaxSharedMemoryPerBlock",
    [9] = "TotalConstantMemory",
    [10] = "WarpSize",
    [11] = "MaxPitch",
    [12] = "MaxRegistersPerBlock",
    [13] = "ClockRate",
    [14] = "TextureAlignment",
    [15] = "GpuOverlap",
    [16] = "MultiProcessorCount",
    [17] = "KernelExecTimeout",
    [18] = "Integrated",
    [19] = "CanMapHostMemory",
    [20] = "ComputeMode",
    [21] = "MaxTexture1DWidth",
    [22] = "MaxTexture2DWidth",
    [23] = "MaxTexture2DHeight",
    [24] = "MaxTexture3DWidth",
    [25] = "MaxTexture3DHeight",
    [26] = "MaxTexture3DDepth",
    [27] = "MaxTexture2DLayeredWidth",
    [28] = "MaxTexture2DLayeredHeight",
    [29] = "MaxTexture2DLayeredLayers",
    [30] = "SurfaceAlignment",
    [31] = "ConcurrentKernels",
    [32] = "EccEnabled",
    [33] = "PciBusId",
    [34] = "PciDeviceId",
    [35] = "TccDriver",
    [36] = "MemoryClockRate",
    [37] = "GlobalMemoryBusWidth",
    [38] = "L2CacheSize",
    [39] = "MaxThreadsPerMultiProcessor",
    [40] = "AsyncEngineCount",
    [41] = "UnifiedAddressing",
    [42] = "MaxTexture1DLayeredWidth",
    [43] = "MaxTexture1DLayeredLayers",
    [45] = "MaxTexture2DGatherWidth",
    [46] = "MaxTexture2DGatherHeight",
    [47] = "MaxTexture3DWidthAlt",
    [48] = "MaxTexture3DHeightAlt",
    [49] = "MaxTexture3DDepthAlt",
    [50] = "PciDomainId",
    [51] = "TexturePitchAlignment",
    [52] = "MaxTextureCubemapWidth",
    [53] = "MaxTextureCubemapLayeredWidth",
    [54] = "MaxTextureCubemapLayeredLayers",
    [55] = "MaxSurface1DWidth",
    [56] = "MaxSurface2DWidth",
    [57] = "MaxSurface2DHeight",
    [58] = "MaxSurface3DWidth",
    [59] = "MaxSurface3DHeight",
    [60] = "MaxSurface3DDepth",
    [61] = "MaxSurface1DLayeredWidth",
    [62] = "MaxSurface1DLayeredLayers",
    [63] = "MaxSurface2DLayeredWidth",
    [64] = "MaxSurface2DLayeredHeight",
    [65] = "MaxSurface2DLayeredLayers",
    [66] = "MaxSurfaceCubemapWidth",
    [67] = "MaxSurfaceCubemapLayeredWidth",
    [68] = "MaxSurfaceCubemapLayeredLayers",
    [69] = "MaxTexture1DLinearWidth",
    [70] = "MaxTexture2DLinearWidth",
    [71] = "MaxTexture2DLinearHeight",
    [72] = "MaxTexture2DLinearPitch",
    [73] = "MaxTexture2DMipmappedWidth",
    [74] = "MaxTexture2DMipmappedHeight",
    [75] = "ComputeCapabilityMajor",
    [76] = "ComputeCapabilityMinor",
    [77] = "MaxTexture1DMipmappedWidth",
    [78] = "StreamPrioritiesSupported",
    [79] = "GlobalL1CacheSupported",
    [80] = "LocalL1CacheSupported",
    [81] = "MaxSharedMemoryPerMultiprocessor",
    [82] = "MaxRegistersPerMultiprocessor",
    [83] = "ManagedMemory",
    [84] = "IsMultiGpuBoard",
    [85] = "MultiGpuBoardGroupID",
    [86] = "HostNativeAtomicSupported",
    [87] = "SingleToDoublePrecisionPerfRatio",
    [88] = "PageableMemoryAccess",
    [89] = "ConcurrentManagedAccess",
    [90] = "ComputePreemptionSupported",
    [91] = "CanUseHostPointerForRegisteredMem",
    [95] = "CooperativeLaunch",
    [97] = "MaxSharedMemoryPerBlockOptin",
    [98] = "CanFlushRemoteWrites",
    [99] = "HostRegisterSupported",
    [100] = "PageableMemoryAccessUsesHostPageTables",
    [101] = "DirectManagedMemAccessFromHost",
    [106] = "MaxBlocksPerMultiprocessor",
    [108] = "MaxPersistingL2CacheSize",
    [109] = "MaxAccessPolicyWindowSize",
    [111] = "ReservedSharedMemoryPerBlock",
    [112] = "SparseCudaArraySupported",
    [113] = "HostRegisterReadOnlySupported",
    [114] = "TimelineSemaphoreInteropSupported",
    [115] = "MemoryPoolsSupported",
    [116] = "GPUDirectRDMASupported",
    [117] = "GPUDirectRDMAFlushWritesOptions",
    [118] = "GPUDirectRDMAWritesOrdering",
    [119] = "MemoryPoolSupportedHandleTypes",
    [120] = "ClusterLaunch",
    [121] = "DeferredMappingCudaArraySupported",
    [125] = "IpcEventSupport",
    [126] = "MemSyncDomainCount",
    [130] = "NumaConfig",
    [131] = "NumaId",
    [133] = "MpsEnabled",
    [134] = "HostNumaId",
    [135] = "D3D12CigSupported",
    [138] = "VulkanCigSupported",
    [139] = "GpuPciDeviceId",
    [140] = "GpuPciSubsystemId",
    [142] = "HostNumaMemoryPoolsSupported",
    [143] = "HostNumaMultinodeIpcSupported",
    [144] = "HostMemoryPoolsSupported",
    [147] = "OnlyPartialHostNativeAtomicSupported",
};

enum { ATTRIBUTES = Py_ARRAY_LENGTH(names) };

static PyObject *
device_attributes(PyObject *Py_UNUSED(module), PyObject *args)
{
    int values[ATTRIBUTES];
    ps_status statuses[ATTRIBUTES];
    struct ps_device *device = parse_device(args, "i|Os:device_attributes");
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    PyObject *found = PyDict_New();
    if (found == NULL || backend->device_attribute == NULL) {
        return found;
    }
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < ATTRIBUTES; i++) {
        statuses[i] = names[i] == NULL
                          ? PS_ERROR_INVALID_VALUE
                          : backend->device_attribute(backend, device->index,
                                                      i, &values[i]);
    }
    Py_END_ALLOW_THREADS
    for (int i = 0; found != NULL && i < ATTRIBUTES; i++) {
        if (statuses[i] == PS_ERROR_INVALID_VALUE) {
            continue;
        }
        PyObject *value = statuses[i] == PS_SUCCESS
                              ? PyLong_FromLong(values[i])
                              : raise_status(device->runtime,
                                             "device_attributes", statuses[i]);
        if (value == NULL ||
            PyDict_SetItemString(found, names[i], value) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(value);
    }
    return found;
}

PyMethodDef attribute_functions[] = {
    FUNCTION("device_attributes", device_attributes, METH_VARARGS,
             "type, device=None, function='device_attributes', /",
             "Return a dict of the device's attributes, by their names in "
             "cudaDeviceAttr without the\nprefix."),
    {NULL},
};
