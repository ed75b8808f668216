"""Watches the processes that a driver needs: Ray's raylet and GCS. The driver may notice their loss a minute late.

A driver that waits for HTTP or for a long task keeps waiting when they are killed (60 s and more with Ray 2.60), and
workers without a raylet keep computing.
"""

import time
from collections.abc import Callable

import psutil

VITAL_NAMES = frozenset({"raylet", "gcs_server"})
PATIENCE_S = 10.0
"""a driver that ends in good order stops them some seconds before itself [s]"""


class RayProcesses:
    """The vital children of one driver."""

    def __init__(self, driver_pid: int, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Looks at the process table at most once in `interval_s` [s]."""
        self._driver_pid = driver_pid
        self._clock = clock
        self._known: dict[psutil.Process, str] = {}
        self._missed_since: float | None = None
        self._interval_s = interval_s
        self._looked_at = -interval_s

    def lost(self, patience_s: float = PATIENCE_S) -> str | None:
        """Return which vital process has been gone for `patience_s` while the driver lives on, or None."""
        now = self._clock()
        if now - self._looked_at < self._interval_s:
            return None
        self._looked_at = now
        self._known |= {child: name for child, name in self._children() if name in VITAL_NAMES}
        gone = [process for process in self._known if not _lives(process)]
        if not gone:
            self._missed_since = None
            return None
        self._missed_since = self._missed_since or now
        names = ", ".join(f"{self._known[process]} (pid {process.pid})" for process in gone)
        return names if now - self._missed_since >= patience_s else None

    def _children(self) -> list[tuple[psutil.Process, str]]:
        try:
            return [(child, child.name()) for child in psutil.Process(self._driver_pid).children()]
        except psutil.NoSuchProcess:
            return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
