"""Waits for a condition with a deadline, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], until: Callable[[T], bool], deadline_s: float = 60.0, poll_s: float = 0.2) -> T:
    """Return what `look` returns once `until` holds for it; raise AssertionError with the last look if it is late."""
    deadline = time.monotonic() + deadline_s
    while not until(seen := look()):
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s; last seen: {seen}"
        time.sleep(poll_s)
    return seen
