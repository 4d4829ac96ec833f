/* A fake NVML, for machines without one.  The environment variable GPUS has
 * one character for each GPU.  "." means a GPU with MIG off.  A digit means a
 * GPU with MIG on and this number of MIG devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *gpus;

int
nvmlInit_v2(void)
{
    gpus = getenv("GPUS");
    return gpus == NULL;
}

int
nvmlShutdown(void)
{
    return 0;
}

int
nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)strlen(gpus);
    return 0;
}

int
nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(gpus + index);
    return index >= strlen(gpus);
}

int
nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    snprintf(uuid, size, "GPU-%d0", (int)((const char *)device - gpus));
    return 0;
}

#ifndef WITHOUT_MIG
int
nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    *current = *pending = *(const char *)device != '.';
    return 0;
}

int
nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    (void)device;
    *count = 7;
    return 0;
}

/* The existing MIG devices have the highest of the seven indices.  On a real
 * GPU, too, the indices of existing MIG devices need not begin at 0. */
int
nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part)
{
    *part = device;
    return index < 7u - (unsigned)(*(const char *)device - '0');
}
#endif
