"""How fast a Buffer is copied from one GPU to another, compared with torch.

    python benchmarks/peer_copy.py [--bytes 1073741824] [--json]

Prints the GB/s of the best of some rounds of copies on one stream.  Each
library runs in its own process, and they take turns, so that both find the
same conditions.  The ratio is pystreams to torch.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time

COPIES = 20
ROUNDS = 5
TURNS = 2


def rate(copy, synchronize, nbytes):
    """The best of the rounds, in GB/s."""
    best = float("inf")
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        for _ in range(COPIES):
            copy()
        synchronize()
        best = min(best, time.perf_counter() - begin)
    return nbytes * COPIES / best / 1e9


def pystreams_rate(nbytes):
    import pystreams
    from pystreams import cuda

    source = pystreams.empty(nbytes, device="cuda:0").zero_()
    target = pystreams.empty(nbytes, device="cuda:1").zero_()
    stream = cuda.Stream(0)
    cuda.synchronize(0)
    cuda.synchronize(1)

    def copy():
        target.copy_(source, non_blocking=True, stream=stream)

    return rate(copy, stream.synchronize, nbytes)


def torch_rate(nbytes):
    import torch

    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:0")
    target = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream(0)

    def copy():
        target.copy_(source, non_blocking=True)

    with torch.cuda.stream(stream):
        return rate(copy, stream.synchronize, nbytes)


LIBRARIES = {"pystreams": pystreams_rate, "torch": torch_rate}


def run(library, nbytes):
    command = [sys.executable, __file__, "--bytes", str(nbytes)]
    done = subprocess.run(
        [*command, "--library", library],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bytes", type=int, default=1 << 30, help="of each copy"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(LIBRARIES[options.library](options.bytes))
        return

    from pystreams import cuda

    count = 0 if cuda.is_emulated() else cuda.device_count()
    if count < 2:
        raise SystemExit(f"peer_copy.py needs two GPUs, and there are {count}")
    libraries = ["pystreams"]
    if importlib.util.find_spec("torch") is not None:
        libraries.append("torch")
    turns = [
        (name, run(name, options.bytes))
        for _ in range(TURNS)
        for name in libraries
    ]
    result = {
        name: max(rate for turn, rate in turns if turn == name)
        for name in libraries
    }
    result["bytes"] = options.bytes
    result["peer_access"] = cuda.can_device_access_peer(0, 1)
    if "torch" in result:
        result["ratio"] = result["pystreams"] / result["torch"]
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name in libraries:
        print(f"{name:10} {result[name]:8.1f} GB/s")
    if "ratio" in result:
        print(f"{'ratio':10} {result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
