"""The demo's speed on the CPU engine against the same copies in plain C.

The C loop reads each chunk of the file and copies it in and out with memcpy,
on one thread.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import pystreams
from pystreams import demo

LIMIT = 0.6
SOURCE = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

long
copy_file(const char *path, size_t chunk)
{
    int file = open(path, O_RDONLY);
    char *in = malloc(chunk), *device = malloc(chunk), *out = malloc(chunk);
    long total = 0;
    ssize_t count;
    while ((count = read(file, in, chunk)) > 0) {
        memcpy(device, in, (size_t)count);
        memcpy(out, device, (size_t)count);
        /* Keeps the compiler from dropping the copies. */
        __asm__ volatile("" : : "r"(out), "r"(device) : "memory");
        total += count;
    }
    free(in), free(device), free(out);
    close(file);
    return count < 0 ? -1 : total;
}
"""


def compile_copy(folder: str) -> ctypes.CDLL:
    source = os.path.join(folder, "copy.c")
    library = os.path.join(folder, "copy.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, source], check=True)
    loaded = ctypes.CDLL(library)
    loaded.copy_file.restype = ctypes.c_long
    loaded.copy_file.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return loaded


def write_file(path: str, nbytes: int) -> None:
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(nbytes >> 20):
            file.write(block)


def silent(title: str, total: int):
    return lambda nbytes: None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--chunk", type=int, default=demo.DEFAULT_CHUNK)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    nbytes = options.mib << 20
    plain, streamed, one = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_copy(folder)
        path = os.path.join(folder, "data")
        write_file(path, nbytes)
        for _ in range(options.runs):
            began = time.perf_counter()
            copied = library.copy_file(path.encode(), options.chunk)
            plain.append(time.perf_counter() - began)
            if copied != nbytes:
                raise RuntimeError(f"copied {copied} of {nbytes} bytes")
            result = demo.run(
                path,
                [pystreams.device("cpu:0")],
                options.streams,
                options.chunk,
                silent,
            )
            streamed.append(result["seconds"])
            one.append(result["one_stream_seconds"])
    ratio = min(plain) / min(streamed)
    for name, times in ("C", plain), ("demo", streamed), ("1 stream", one):
        print(f"{name:<10} {nbytes / min(times) / 1e9:6.2f} GB/s")
    print(f"demo / C   {ratio:6.2f}, limit {LIMIT:g}")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
