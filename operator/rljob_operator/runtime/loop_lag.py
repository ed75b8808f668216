"""How long the event loop was blocked: a long block delays everything, also the renewal of the Lease."""

import asyncio
from collections import deque
from collections.abc import Callable

TICK_S = 0.1
"""between two looks [s]"""
SHOWN_S = 60.0
"""a stop is shown for this time, which is longer than the time between two scrapes [s]"""


class LoopLag:
    """The stops of the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._stops: deque[tuple[float, float]] = deque()
        """when each was seen, and how long it was; no later one is longer"""

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            due = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.note(self._clock() - due)

    def note(self, stop_s: float) -> None:
        """Take in by how much a look was late [s]."""
        now = self._clock()
        while self._stops and self._stops[-1][1] <= stop_s:
            self._stops.pop()
        self._stops.append((now, max(0.0, stop_s)))
        while self._stops[0][0] < now - SHOWN_S:
            self._stops.popleft()

    @property
    def worst_s(self) -> float:
        """The longest stop of the last minute [s]; for any thread."""
        return next((stop_s for _, stop_s in tuple(self._stops)), 0.0)
