"""The connections of the webhook's port, which any pod may reach: few, and none for long without a good request."""

import asyncio
from collections.abc import Callable

from aiohttp.web_protocol import RequestHandler

MOST = 64
"""connections at once; API servers have a few each"""
SILENT_S = 10.0
"""from the connection to the headers of a request at the right path [s]"""
HANDSHAKE_S = 5.0
"""for TLS [s]"""


class Connections:
    """Accepts connections for a server of aiohttp; those that have not proven themselves are closed first."""

    def __init__(self, server: Callable[[], RequestHandler], most: int = MOST, silent_s: float = SILENT_S) -> None:
        self._server = server
        self._most, self._silent_s = most, silent_s
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}
        """oldest first"""
        self._proven: set[RequestHandler] = set()

    def accept(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        self._proven = {each for each in self._proven if each.transport is not None}
        while self._silent and len(self._silent) + len(self._proven) >= self._most:
            self._end(next(iter(self._silent)))
        handler = self._server()
        self._silent[handler] = asyncio.get_running_loop().call_later(self._silent_s, self._end, handler)
        return handler

    def prove(self, handler: RequestHandler) -> None:
        """Note that a connection has sent a request at the right path."""
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()
            self._proven.add(handler)

    def close(self) -> None:
        """Forget all connections."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()

    def _end(self, handler: RequestHandler) -> None:
        self._silent.pop(handler).cancel()
        if handler.transport is not None:
            handler.transport.abort()
