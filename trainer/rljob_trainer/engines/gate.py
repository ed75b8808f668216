"""A gate that requests pass on their way to the engines: while it is closed, whoever is behind it comes out.

A publication closes it, and waits until no engine has anything to answer. Belongs to one asyncio loop.
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
        """Wait until the gate is open; be behind it as long as the body lasts."""
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

    def close(self) -> None:
        """Let nobody in any more."""
        self._open.clear()

    def open(self) -> None:
        """Let everybody in again."""
        self._open.set()

    async def emptied(self, timeout_s: float | None = None) -> bool:
        """Return whether nobody is behind the gate, as soon as that is so and at the latest after `timeout_s` [s]."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
