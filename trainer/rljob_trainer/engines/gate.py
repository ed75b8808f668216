"""A gate in front of the engines. While closed, no request enters; those inside drain.

A publication closes it, and waits until all requests have ended. Belongs to one asyncio loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Wait until the gate is open; count as inside for the length of the body."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self) -> None:
        """Admit no further request."""
        self._open.clear()

    async def open(self) -> None:
        """Admit requests again."""
        self._open.set()

    @property
    def is_closed(self) -> bool:
        return not self._open.is_set()

    async def emptied(self, timeout_s: float | None = None) -> bool:
        """Wait until no request is inside, at most `timeout_s` [s]; return whether that is the case."""
        if self._empty.is_set():
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
