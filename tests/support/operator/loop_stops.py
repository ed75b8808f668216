"""For how long the steps of an event loop held it, and what memory its process has taken."""

import asyncio
import re
import time
from pathlib import Path

from support.processor_time import slowness


class Stops:
    """The longest step of any task of the thread's loop, in time of the processor: other programs do not count."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._slowness = slowness()

    def watch(self) -> None:
        """Time all steps from now on; of a loop of asyncio, since uvloop has steps that Python does not see."""
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            self._longest_s = max(self._longest_s, time.thread_time() - begun)

        asyncio.Handle._run = timed  # type: ignore[method-assign]

    @property
    def longest_s(self) -> float:
        """Return the longest [s], as if the processor were that for which limits were set."""
        return round(self._longest_s / max(self._slowness, slowness()), 3)


def peak_mib() -> int:
    """Return the most memory that this process has held [MiB]."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) // 1024
