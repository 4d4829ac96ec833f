"""What it costs to wait, and to run Python callables in stream order.

    python benchmarks/waiting.py [--rounds 200] [--json]

Measures the CPU engine, and a GPU if there is one.  Calls that are compared
run in turn, and the figures are medians.  The wake-up time of a way to wait is
how much later this wait ends than the plainest one.  The plainest wait is
event.synchronize() on the CPU engine, and a spin on event.query() on a GPU.
Exits with 1 if a target is missed.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pystreams
from pystreams import _C

CALLS = 100
CALLABLES = 20_000
AWAITS = 1000
WORK = 0.001
LONG = 10.0

ROWS = {
    "executor_us": "ThreadPoolExecutor(1): submit to result, us",
    "submit_us": "stream.submit(f).result(), us",
    "submit_ratio": "of the executor's",
    "callables": "callables a second on one stream",
    "await_done_ns": "await event, done, ns",
    "await_us": "wake-up of await event, us",
    "timeout_us": "wake-up of synchronize(timeout=), us",
    "wait_us": "wake-up of pystreams.wait(), us",
    "cpu_percent": "per cent of a core, in synchronize(timeout=10)",
}
# A positive target is the greatest value that a row may have.  A negative
# target means that the row must be at least its absolute value.
EITHER = {
    "await_done_ns": 2000,
    "timeout_us": 100,
    "wait_us": 100,
    "cpu_percent": 1,
}
TARGETS = {
    "cpu": {
        **EITHER,
        "submit_ratio": 0.7,
        "callables": -200_000,
        "await_us": 60,
    },
    "cuda": {**EITHER, "await_us": 100},
}


def nothing():
    pass


def seconds(call, count=1):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def in_turn(calls, rounds, count=1):
    """The median seconds of each call.  A tenth as many rounds come first,
    and do not count."""
    times = {name: [] for name in calls}
    for number in range(rounds + rounds // 10):
        for name, call in calls.items():
            took = seconds(call, count)
            if number >= rounds // 10:
                times[name].append(took)
    return {name: statistics.median(took) for name, took in times.items()}


def sleep(stream, duration):
    """Queue a sleep of so many seconds.  _C.sleep() counts nanoseconds on the
    CPU engine, and cycles of about half a nanosecond on a GPU."""
    cycles = duration * (1e9 if stream.device.type == "cpu" else 1.9e9)
    _C.sleep(stream.device_type, int(cycles), stream)


def round_trip(stream, rounds):
    with ThreadPoolExecutor(1) as executor:
        calls = {
            "executor": lambda: executor.submit(nothing).result(),
            "submit": lambda: stream.submit(nothing).result(),
        }
        took = in_turn(calls, rounds // 4, CALLS)
    return {
        "executor_us": took["executor"] * 1e6,
        "submit_us": took["submit"] * 1e6,
        "submit_ratio": took["submit"] / took["executor"],
    }


def callables(stream):
    def batch():
        for _ in range(CALLABLES - 1):
            stream.submit(nothing)
        stream.submit(nothing).result()

    rates = [CALLABLES / seconds(batch) for _ in range(9)]
    return {"callables": statistics.median(rates)}


def await_done(event, rounds):
    async def batch():
        for _ in range(AWAITS):
            await event

    async def main():
        times = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            await batch()
            times.append((time.perf_counter_ns() - start) / AWAITS)
        return statistics.median(times)

    event.synchronize()
    return {"await_done_ns": asyncio.run(main())}


def wake_ups(stream, event, rounds):
    loop = asyncio.new_event_loop()

    async def awaiting():
        await event

    def spin():
        while not event.query():
            pass

    def after_work(wait):
        def run():
            sleep(stream, WORK)
            event.record(stream)
            wait()

        return run

    plain = event.synchronize if stream.device.type == "cpu" else spin
    ways = {
        "plain": plain,
        "await_us": lambda: loop.run_until_complete(awaiting()),
        "timeout_us": lambda: event.synchronize(timeout=60),
        "wait_us": lambda: pystreams.wait([event], timeout=60),
    }
    took = in_turn({n: after_work(w) for n, w in ways.items()}, rounds)
    # run_until_complete() also starts and stops the event loop.  Subtract the
    # time that this takes, because it is not part of the wake-up.
    took["await_us"] -= in_turn(
        {"loop": lambda: loop.run_until_complete(asyncio.sleep(0))}, rounds
    )["loop"]
    loop.close()
    least = took.pop("plain")
    return {name: (time - least) * 1e6 for name, time in took.items()}


def cpu_share(stream):
    sleep(stream, LONG * 1.1)
    start = time.process_time()
    with contextlib.suppress(TimeoutError):
        stream.synchronize(timeout=LONG)
    used = time.process_time() - start
    stream.synchronize()
    return {"cpu_percent": used / LONG * 100}


def measure(device, rounds):
    stream = pystreams.Stream(device)
    event = stream.record_event()
    return {
        **round_trip(stream, rounds),
        **callables(stream),
        **await_done(event, rounds),
        **wake_ups(stream, event, rounds),
        **cpu_share(stream),
    }


def misses(value, target):
    if target is None:
        return False
    return value > target if target > 0 else value < -target


def table(device, rows):
    width = max(map(len, ROWS.values()))
    yield f"{device:{width}} {'median':>10} {'target':>12}"
    for row, value in rows.items():
        target = TARGETS[device].get(row)
        bound = ""
        if target is not None:
            bound = f"{'<=' if target > 0 else '>='} {abs(target):,g}"
        mark = "  missed" if misses(value, target) else ""
        figure = f"{value:,.{3 if value < 10 else 0}f}"
        yield f"{ROWS[row]:{width}} {figure:>10} {bound:>12}{mark}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=200, help="of which the median is taken"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    devices = ["cpu"]
    if pystreams.cuda.is_available() and not pystreams.cuda.is_emulated():
        devices.append("cuda")
    results = {name: measure(name, options.rounds) for name in devices}
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        for device, rows in results.items():
            print(*table(device, rows), sep="\n")
    raise SystemExit(
        any(
            misses(value, TARGETS[device].get(row))
            for device, rows in results.items()
            for row, value in rows.items()
        )
    )


if __name__ == "__main__":
    main()
