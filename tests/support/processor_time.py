"""The time that code takes of the processor, as comparable between machines and between full and empty processes."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

YARDSTICK_S = 0.033
"""what the yardstick takes on the machine for which the limits in tests were set"""


class Spent:
    seconds = float("inf")
    slowness = 1.0


@contextmanager
def measured() -> Iterator[Spent]:
    """
    Measure the time [s] that the thread spends inside on a processor, as if it were the machine of the limits.

    What other tests left in the process is not collected meanwhile: with 20,000 tests in it that takes a second.
    A slower processor counts as slow as its yardstick is.
    """
    gc.collect()
    gc.freeze()
    spent = Spent()
    before = slowness()
    begun = time.thread_time()
    try:
        yield spent
    finally:
        took = time.thread_time() - begun
        gc.unfreeze()
        spent.slowness = max(before, slowness())
        spent.seconds = took / spent.slowness


def slowness() -> float:
    """Return how many times slower the processor is than that of the limits; at least 1."""
    begun, found = time.thread_time(), 0
    for number in range(400_000):
        found += number % 7
    return max(1.0, (time.thread_time() - begun) / YARDSTICK_S)
