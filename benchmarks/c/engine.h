/* Starts a CPU engine with one device and two streams, for the programs that
 * measure it. */
#ifndef BENCHMARKS_ENGINE_H
#define BENCHMARKS_ENGINE_H

#include "../../csrc/backends/backends.h"

static const struct ps_backend *cpu;
static ps_handle first, second;

/* Start the engine and create the streams.  Returns 0, or another number if
 * something failed. */
static int
engine_start(void)
{
    cpu = ps_cpu_backend("cpu", PS_DEVICE_CPU, 1, 0);
    return cpu == NULL ? PS_ERROR_OUT_OF_MEMORY
                       : cpu->stream_create(cpu, 0, 0, &first) ||
                             cpu->stream_create(cpu, 0, 0, &second);
}

static int
settle(void)
{
    return cpu->stream_synchronize(cpu, 0, first, NULL) ||
           cpu->stream_synchronize(cpu, 0, second, NULL);
}

#endif
