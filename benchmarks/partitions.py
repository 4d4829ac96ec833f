"""How long a small kernel takes while heavy kernels fill the GPU: on
ordinary streams, on a stream with a higher priority, and in partitions.

python -m benchmarks.partitions [--sms N]

Needs CuPy.  A block of any of the kernels fills half a multiprocessor; a heavy
kernel has so many blocks that it takes some milliseconds.
"""

import argparse
import statistics
import time
import warnings

SECONDS = 0.5
SMALL_US, HEAVY_US = 20, 200
SOURCE = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds)
{
    unsigned long long now, until;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(until));
    until += nanoseconds;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now < until);
}
"""


class Kernel:
    def __init__(self):
        import cupy

        # CuPy warns that ExternalStream is deprecated, but older versions of
        # CuPy lack its replacement, Stream.from_external.
        warnings.filterwarnings("ignore", "ExternalStream")
        self.cupy = cupy
        self.spin = cupy.RawKernel(SOURCE, "spin")
        self.spin.compile()
        self(cupy.cuda.Stream.null.ptr, 1, 1)

    def __call__(self, handle, blocks, microseconds):
        with self.cupy.cuda.ExternalStream(handle):
            argument = self.cupy.uint64(microseconds * 1000)
            self.spin((blocks,), (1024,), (argument,))


def latencies(kernel, small, small_blocks, heavy, heavy_blocks):
    """Return the microseconds from the launch to the end of each small kernel,
    and the number of heavy kernels that were done per second meanwhile."""
    queue, done, found = [], 0, []
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        while heavy is not None and len(queue) < 4:
            kernel(heavy.cuda_stream, heavy_blocks, HEAVY_US)
            queue.append(heavy.record_event())
        start = time.perf_counter()
        kernel(small.cuda_stream, small_blocks, SMALL_US)
        small.synchronize()
        found.append((time.perf_counter() - start) * 1e6)
        while queue and queue[0].query():
            queue.pop(0)
            done += 1
    rate = done / (time.perf_counter() - begin)
    if heavy is not None:
        heavy.synchronize()
    return found, rate


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions")
    parser.add_argument("--sms", type=int, default=16)
    sms = parser.parse_args().sms
    from pystreams import cuda

    kernel = Kernel()
    whole = cuda.get_device_properties().multi_processor_count
    first, rest = cuda.GreenContext(sms), cuda.GreenContext(whole - sms)
    small, heavy = first.sm_count, 2 * 16 * whole
    greatest = cuda.Stream.priority_range()[1]
    print(f"{cuda.get_device_name()}: {whole} multiprocessors; partitions of")
    print(f"{first.sm_count} and {rest.sm_count}; small kernels have {small}")
    print(f"blocks of {SMALL_US} us, heavy ones {heavy} of {HEAVY_US} us.")
    print("Microseconds from a small kernel's launch to its end:")
    print()
    print("| streams | median | 99th percentile | heavy kernels a second |")
    print("| --- | --- | --- | --- |")
    for title, one, other in (
        ("alone", cuda.Stream(), None),
        ("alone in its partition", first.Stream(), None),
        ("ordinary", cuda.Stream(), cuda.Stream()),
        (
            "of a higher priority",
            cuda.Stream(priority=greatest),
            cuda.Stream(),
        ),
        ("in partitions", first.Stream(), rest.Stream()),
    ):
        found, rate = latencies(kernel, one, small, other, heavy)
        middle = statistics.median(found)
        late = statistics.quantiles(found, n=100)[-1]
        print(f"| {title} | {middle:,.0f} | {late:,.0f} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
