/* libcuda's functions for virtual memory management, in the fake CUDA; see
 * late.h.  The memory is a file without a name (memfd), so that processes can
 * share it. */
#include "late.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "late-cuda-memory"

/* Real GPUs have the same granularity. */
enum { GRANULARITY = 2 << 20 };

static CUresult
status_of(int succeeded)
{
    return succeeded ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int
is_aligned(size_t number)
{
    return number != 0 && number % GRANULARITY == 0;
}

CUresult
cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 7 + device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

CUresult
cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value =
        getenv("LATE_CUDA_UNSHARED") == NULL ||
        attribute !=
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult
cuMemGetAllocationGranularity(size_t *granularity,
                              const CUmemAllocationProp *properties,
                              CUmemAllocationGranularity_flags option)
{
    (void)properties, (void)option;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult
cuMemCreate(CUmemGenericAllocationHandle *memory, size_t nbytes,
            const CUmemAllocationProp *properties, unsigned long long flags)
{
    if (flags != 0 || !is_aligned(nbytes) ||
        properties->requestedHandleTypes !=
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int file = memfd_create(NAME, MFD_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (CUmemGenericAllocationHandle)file;
    return status_of(ftruncate(file, (off_t)nbytes) == 0);
}

CUresult
cuMemRelease(CUmemGenericAllocationHandle memory)
{
    return status_of(close((int)memory) == 0);
}

CUresult
cuMemExportToShareableHandle(void *result, CUmemGenericAllocationHandle memory,
                             CUmemAllocationHandleType type,
                             unsigned long long flags)
{
    int file = dup((int)memory);
    if (file < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)result = file;
    return status_of(flags == 0 &&
                     type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult
cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *memory,
                               void *handle, CUmemAllocationHandleType type)
{
    const char wanted[] = "/memfd:" NAME;
    char link[32], name[sizeof(wanted)];
    int number = (int)(uintptr_t)handle;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", number);
    ssize_t length = readlink(link, name, sizeof(name) - 1);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        length != sizeof(name) - 1 || memcmp(name, wanted, length) != 0) {
        return CUDA_ERROR_UNKNOWN;
    }
    int file = fcntl(number, F_DUPFD_CLOEXEC, 0);
    *memory = (CUmemGenericAllocationHandle)file;
    return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                       CUmemGenericAllocationHandle memory)
{
    (void)memory;
    *properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    return CUDA_SUCCESS;
}

CUresult
cuMemAddressReserve(CUdeviceptr *result, size_t nbytes, size_t alignment,
                    CUdeviceptr address, unsigned long long flags)
{
    (void)alignment;
    void *reserved = mmap((void *)address, nbytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *result = (CUdeviceptr)reserved;
    return status_of(flags == 0 && reserved != MAP_FAILED);
}

CUresult
cuMemAddressFree(CUdeviceptr address, size_t nbytes)
{
    return status_of(munmap((void *)address, nbytes) == 0);
}

CUresult
cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset,
         CUmemGenericAllocationHandle memory, unsigned long long flags)
{
    struct stat found;
    int file = (int)memory;
    if (offset != 0 || flags != 0 || !is_aligned(nbytes) ||
        fstat(file, &found) != 0 || (size_t)found.st_size < nbytes ||
        mmap((void *)address, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
             0) == MAP_FAILED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    begin();
    add_mapping((void *)address, nbytes);
    end();
    return CUDA_SUCCESS;
}

CUresult
cuMemUnmap(CUdeviceptr address, size_t nbytes)
{
    begin();
    remove_mapping((void *)address);
    end();
    return status_of(
        mmap((void *)address, nbytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) != MAP_FAILED);
}

CUresult
cuMemSetAccess(CUdeviceptr address, size_t nbytes,
               const CUmemAccessDesc *access, size_t count)
{
    return status_of(
        count == 1 && access->location.id == 0 &&
        mprotect((void *)address, nbytes, PROT_READ | PROT_WRITE) == 0);
}
