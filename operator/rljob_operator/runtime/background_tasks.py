"""The tasks that run as long as the process leads. One that ends ends the process, which the kubelet restarts.

Without this, a process whose resync or worker has died would still answer probes and renew its Lease.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

TASK_ENDED = 1
"""exit code of a process whose background task has ended"""
END_S = 30.0
"""time for an orderly end of the process after that; the Lease is released then [s]"""


class BackgroundTasks:
    """Named tasks of the process."""

    def __init__(self, stop: asyncio.Event, die: Callable[[int], None] = os._exit) -> None:
        """`stop` is set when a task ends before `close`; `die` is called if the process does not end for long."""
        self._stop = stop
        self._die = die
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.failed: str | None = None
        """name of the first task that has ended by itself; None: all run"""

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run this without an end."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self, timeout_s: float) -> None:
        """Cancel all tasks, and wait for their end, at most this time [s]."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._is_closing:
            return
        error = None if task.cancelled() else task.exception()
        log.critical("action=end reason=TaskEnded task=%s error=%r", task.get_name(), error, exc_info=error)
        self.failed = self.failed or task.get_name()
        self._stop.set()
        task.get_loop().call_later(END_S, self._die, TASK_ENDED)
