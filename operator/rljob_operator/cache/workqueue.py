"""The queue of jobs to reconcile: each queued once and worked on once at a time, with back-off after failures.

add ─► waiting ─► get ─► in work ─► done, or failed (again after a back-off)
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from rljob_operator.cache.cache import Key

FIRST_S = 0.5
LONGEST_S = 60.0


class WorkQueue:
    """Keys to reconcile, the earliest due first. For one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._working: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._failing_since: dict[Key, float] = {}
        self._backs_off_until: dict[Key, float] = {}
        self._changed = asyncio.Event()

    def waiting_s(self) -> tuple[float, ...]:
        """Return how long each key that is due and not in work has been so [s]."""
        now = self._clock()
        # Metrics ask from another thread: a copy is made by one operation.
        return tuple(now - due for key, due in tuple(self._due.items()) if due <= now and key not in self._working)

    def failing_s(self) -> tuple[float, ...]:
        """Return for how long each key has failed whose last work has failed [s]."""
        now = self._clock()
        return tuple(now - since for since in tuple(self._failing_since.values()))

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a key for this time from now, or earlier if it was queued so already.

        A key whose work has failed waits for the end of its back-off all the same: otherwise every event, such as a
        report of its driver, would retry a broken key.
        """
        due = max(self._clock() + after_s, self._backs_off_until.get(key, 0.0))
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._changed.set()

    async def get(self) -> Key:
        """Return the next key that is due and not in work; it is in work until `done` or `failed`."""
        # Work on a job that only reads what is cached never waits: the renewal of the Lease and probes come between.
        await asyncio.sleep(0)
        while True:
            if (key := self._take()) is not None:
                return key
            self._changed.clear()
            wait_s = self._heap[0][0] - self._clock() if self._heap else None
            try:
                # Not wait_for: Python 3.11's forgets a cancellation that comes together with what it waits for.
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key, again_s: float | None) -> None:
        """Note that the work on a key has succeeded; queue it again after this time, if any."""
        self._failures.pop(key, None)
        self._failing_since.pop(key, None)
        self._backs_off_until.pop(key, None)
        self._finish(key)
        if again_s is not None:
            self.add(key, again_s)

    def failed(self, key: Key) -> float:
        """Note that the work on a key has failed; return the time until it is retried [s]."""
        times = self._failures[key] = self._failures.get(key, 0) + 1
        self._failing_since.setdefault(key, self._clock())
        self._finish(key)
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(times - 1, 16))
        self._backs_off_until[key] = self._clock() + wait_s
        self._due.pop(key, None)
        self.add(key, wait_s)
        return wait_s

    def retry(self, key: Key) -> None:
        """Queue a key whose author has changed it: its failures are forgotten, and it may succeed now.

        It is still tried no sooner than after a first failure, however often the author changes it.
        """
        if self._failures.pop(key, None) is not None:
            soon = self._clock() + FIRST_S
            self._backs_off_until[key] = min(soon, self._backs_off_until.get(key, soon))
        self.add(key)

    def _finish(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], next(self._order), key))
        self._changed.set()

    def _take(self) -> Key | None:
        while self._heap and self._heap[0][0] <= self._clock():
            due, _, key = heapq.heappop(self._heap)
            # An entry that is outdated, or of a key in work, whose end pushes it again.
            if self._due.get(key) != due or key in self._working:
                continue
            del self._due[key]
            self._working.add(key)
            return key
        return None
