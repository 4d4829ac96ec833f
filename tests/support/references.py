"""Count the references that each public call leaves, on a debug build of
Python, and print a line for each call that leaves any:

    python tests/support/references.py cpu|cuda [plant]
"""

import gc
import sys

from calls import World, cases
from producers import keep

CALLS = 20
WARM_UP = 2
BATCHES = 10


def plant(world):
    return lambda: keep(object())


def references(world, prepare):
    """Make CALLS calls; return the total number of references afterwards."""
    for _ in range(CALLS):
        prepare(world)()
        world.settle()
    gc.collect()
    return sys.gettotalrefcount()


def main(name, *planted):
    world = World(name)
    table = {"the planted leak": plant} if planted else cases(name)
    for case, prepare in table.items():
        for _ in range(WARM_UP):
            references(world, prepare)
        count = references(world, prepare)
        # A cache grows now and then, but a leak grows with each call, and
        # therefore in each batch.
        for _ in range(BATCHES):
            before, count = count, references(world, prepare)
            grown = count - before
            if grown < CALLS // 2:
                break
        else:
            print(f"{name}, {case}: {grown} references in {CALLS} calls")
    world.close()


main(*sys.argv[1:])
