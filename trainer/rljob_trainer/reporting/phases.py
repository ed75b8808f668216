"""The driver's wall-clock time by phase. The loop opens one phase after the other; the time between two is `other`.

Everything between construction and now belongs to exactly one phase, so the phases of a run add up to its wall clock.
The main thread measures. Any thread may read `current`. `began` is called with every phase, for the status board.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, get_args

Phase = Literal[
    "start", "load", "rollout", "reward", "advantage", "train", "publish", "report", "checkpoint", "evaluate", "stop"
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class CurrentPhase:
    """The phase that the main thread is in."""

    name: str
    """a phase, or `other`"""
    since: float
    """when it began, on the clock of `Phases` [s]"""


class Phases:
    """A stopwatch that is always in exactly one phase. `clock` is monotonic [s]; `began` is called with each phase."""

    def __init__(self, clock: Callable[[], float], began: Callable[[Phase], object] | None = None) -> None:
        self._clock = clock
        self._began = began
        self._counted_until = clock()
        self._lap: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        # Replaced as a whole, never changed: another thread sees the old value or the new one.
        self._current = CurrentPhase(OTHER, self._counted_until)

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Count the time of the body to `phase`, also when the body raises.

        Raises RuntimeError inside another phase: an inner phase would be counted twice.
        """
        if phase not in PHASES:
            raise ValueError(f"unknown phase {phase!r}; the phases are {', '.join(PHASES)}")
        if self._current.name != OTHER:
            raise RuntimeError(f"phase {phase} begins inside phase {self._current.name}")
        self._begin(phase)
        try:
            if self._began is not None:
                self._began(phase)
            yield
        finally:
            self._begin(OTHER)

    @property
    def current(self) -> CurrentPhase:
        return self._current

    def seconds_in_current(self) -> float:
        return self._clock() - self._current.since

    def lap(self) -> dict[str, float]:
        """Return the seconds of each phase since the last lap and begin the next one.

        An open phase is split: what has passed belongs to this lap, the rest to the next.
        """
        self._count(self._clock())
        lap, self._lap = self._lap, {}
        return lap

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase since construction, up to now."""
        self._count(self._clock())
        return dict(self._totals)

    def _begin(self, name: str) -> None:
        now = self._clock()
        self._count(now)
        self._current = CurrentPhase(name, now)

    def _count(self, now: float) -> None:
        name, seconds = self._current.name, now - self._counted_until
        self._counted_until = now
        if seconds > 0:
            self._lap[name] = self._lap.get(name, 0.0) + seconds
            self._totals[name] = self._totals.get(name, 0.0) + seconds
