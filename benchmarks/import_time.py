"""What `import pystreams` adds to a bare interpreter, in milliseconds.

Also fails where the import starts a thread or maps the CUDA driver.
"""

import statistics
import subprocess
import sys
import time

RUNS = 40
LIMIT_MS = 20.0
CHECK = """
import os, pystreams
print(len(os.listdir("/proc/self/task")))
print("libcuda.so" in open("/proc/self/maps").read())
"""


def python(code: str) -> str:
    # -I: the installed package, not the folder this is run from.
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def milliseconds(code: str) -> float:
    began = time.perf_counter()
    python(code)
    return (time.perf_counter() - began) * 1000


def main() -> int:
    threads, driver = python(CHECK).split()
    python("import pystreams")
    bare, imported = [], []
    for _ in range(RUNS):
        bare.append(milliseconds("pass"))
        imported.append(milliseconds("import pystreams"))
    base, whole = statistics.median(bare), statistics.median(imported)
    print(f"bare interpreter       {base:6.1f} ms")
    print(f"with import pystreams  {whole:6.1f} ms")
    print(f"difference             {whole - base:6.1f} ms, limit {LIMIT_MS:g}")
    print(f"threads {threads}, driver mapped: {driver}")
    good = whole - base <= LIMIT_MS and threads == "1" and driver == "False"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
