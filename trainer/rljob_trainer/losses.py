"""What the world around a run has cost it, by cause, and what the run waits for. Any part may note it, from any thread.

A judge, an environment, an engine, a file system: what fails there costs a sample, a group or some time, and is
counted. What stays away for longer than `recovery.outageSeconds` ends the attempt, not the run: `AwayError`.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class AwayError(RuntimeError):
    """What a run needs from outside was away for too long; another attempt may find it. The text names it."""


class Cause(StrEnum):
    """What was lost, and to whom."""

    GENERATE = "Generate"
    """samples that a generate function, its environment or its tools did not make"""
    REFUSED = "Refused"
    """samples of prompts that engines refused"""
    JUDGE = "Judge"
    """samples that could not be judged, and have no `failureScore`"""
    GROUP = "Group"
    """samples whose group had too few others left to compare them with"""
    STORAGE = "Storage"
    """operations on files that failed and were repeated"""
    CLEANING = "Cleaning"
    """old checkpoints and drafts that could not be deleted yet"""


class Losses:
    """The account of one driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waits: dict[object, str] = {}

    def note(self, cause: Cause, number: int = 1) -> None:
        """Count what was lost."""
        with self._lock:
            self._counts[cause.value] += number

    def take(self) -> Mapping[str, int]:
        """Return what was lost since the last call, by cause."""
        with self._lock:
            counts, self._counts = +self._counts, Counter()
        return dict(counts)

    def waits(self, who: object, what: str | None) -> None:
        """Note that `who` waits for something outside the run, in words; None: no longer."""
        with self._lock:
            if what is None:
                self._waits.pop(who, None)
            else:
                self._waits[who] = what

    @property
    def waiting_for(self) -> str | None:
        """What the run waits for, if anything; of several, the first that is still awaited."""
        with self._lock:
            return next(iter(self._waits.values()), None)
