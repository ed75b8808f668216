"""Waits for a condition with a deadline, never for a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TURNS = 50
"""more than any chain of awaits in our tests has links"""


def eventually(look: Callable[[], T], until: Callable[[T], bool], deadline_s: float = 180.0, poll_s: float = 0.2) -> T:
    """Return what `look` returns once `until` holds for it; raise AssertionError with the last look if it is late."""
    deadline = time.monotonic() + deadline_s
    while not until(seen := look()):
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s; last seen: {seen}"
        time.sleep(poll_s)
    return seen


def until(holds: Callable[[], bool]) -> None:
    """Return once the condition holds: another thread or process works on it."""
    eventually(holds, until=bool, poll_s=0.002)


async def becomes_true(holds: Callable[[], bool]) -> None:
    """Return once the condition holds; other coroutines of the loop run meanwhile."""
    async with asyncio.timeout(60.0):
        while not holds():
            await asyncio.sleep(0.001)


async def others_run() -> None:
    """Return when the loop's other coroutines have gone as far as they can without the outside world."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
