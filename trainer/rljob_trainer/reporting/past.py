"""What the detectors of `watch.py` know of the past of a run, in the same memory after any number of steps. Pure.

Windows are counted back from the newest step, and do not overlap: at each step they are others, and a window later the
same ones again, with one more. So for each of these sets the first, the lowest and the highest mean are kept.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from rljob_trainer.reporting.records import StepRecord

METRICS: Final[Mapping[str, Callable[[StepRecord], float | None]]] = {
    "reward": lambda step: step.reward_mean,
    # A run on the data's own responses has no reward and need not explore.
    "entropy": lambda step: None if step.reward_mean is None else step.entropy,
    # The sign of a policy's loss means nothing.
    "loss": lambda step: None if step.loss is None else abs(step.loss),
    "expert_load": lambda step: step.expert_load,
    "router_entropy": lambda step: step.router_entropy,
}
"""what is compared with the whole past"""


@dataclass(frozen=True, slots=True)
class Mean:
    """Of a window of steps."""

    step: int
    """the last of them"""
    value: float


@dataclass
class Windows:
    """The means of one metric in full windows of the steps that have it."""

    window: int
    number: int = 0
    """steps that had it"""
    recent: list[Mean] = field(default_factory=list)
    """the last of them, at most a window"""
    first: dict[int, Mean] = field(default_factory=dict)
    lowest: dict[int, Mean] = field(default_factory=dict)
    highest: dict[int, Mean] = field(default_factory=dict)
    """of each set of windows, by how many steps are before its first window"""
    now: Mean | None = None
    """the newest"""

    def add(self, step: int, value: float) -> None:
        """Add a step."""
        self.number += 1
        self.recent = [*self.recent, Mean(step, value)][-self.window :]
        if self.number < self.window:
            return
        self.now = now = Mean(step, fmean(each.value for each in self.recent))
        them = self._set
        self.first.setdefault(them, now)
        if now.value < self.lowest.setdefault(them, now).value:
            self.lowest[them] = now
        if now.value > self.highest.setdefault(them, now).value:
            self.highest[them] = now

    @property
    def past(self) -> tuple[Mean, Mean, Mean, Mean] | None:
        """The newest mean, and the first, the lowest and the highest of its set; None: there are not two yet."""
        if self.now is None or self.number < 2 * self.window:
            return None
        return self.now, self.first[self._set], self.lowest[self._set], self.highest[self._set]

    @property
    def _set(self) -> int:
        return self.number % self.window


@dataclass
class Past:
    """All steps so far."""

    window: int
    skipped: int = 0
    """optimizer steps in the whole run whose gradient was not finite"""
    windows: dict[str, Windows] = field(default_factory=dict)
    recent: list[StepRecord] = field(default_factory=list)
    """a window, and one more"""

    def __post_init__(self) -> None:
        self.windows = {name: self.windows.get(name) or Windows(self.window) for name in METRICS}

    def add(self, step: StepRecord) -> None:
        """Add a step."""
        self.recent = [*self.recent, step][-self.window - 1 :]
        self.skipped += step.skipped
        for name, measured in METRICS.items():
            if (value := measured(step)) is not None:
                self.windows[name].add(step.step, value)


def past_of(steps: Iterable[StepRecord], window: int) -> Past:
    """Return what these steps come to."""
    past = Past(window)
    for step in steps:
        past.add(step)
    return past
