"""The steps of a run in bounded memory: each by itself as long as they are few, then means of equally many neighbours.

1, 2, 3, 4 ─► 1–2, 3–4 ─► 1–4        each time that there are too many, two neighbours become one
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rljob_trainer.reporting.records import StepRecord

MOST: Final = 2000
"""records that are kept"""
OF_THE_LAST: Final = frozenset({"kind", "time", "step", "version", "gpus", "gpu_summary"})
"""fields of a window that are those of its last step"""
LARGEST: Final = frozenset({"max_staleness"})
WHERE_KNOWN: Final = frozenset({"reward_parts"})
"""mappings in which what a step lacks was not measured; in others it is 0"""


@dataclass
class StepWindows:
    """Steps, in their order."""

    most: int | None = MOST
    """None: all are kept, each by itself"""
    size: int = 1
    """steps of a window"""
    first: StepRecord | None = None
    last: StepRecord | None = None
    _whole: list[StepRecord] = field(default_factory=list)
    """windows that are full"""
    _begun: StepRecord | None = None
    _steps_in_begun: int = 0

    def add(self, step: StepRecord) -> None:
        """Add a step. One that was there before takes its place, and that of all after it."""
        if self.last is not None and step.step <= self.last.step:
            self._cut(step.step)
        self.first, self.last = self.first or step, step
        self._append(step)
        if self.most is not None and len(self._whole) > self.most:
            self._halve()

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """The windows, each under the number of its last step."""
        return (*self._whole, *([self._begun] if self._begun is not None else []))

    @property
    def numbers(self) -> tuple[int, ...]:
        """How many steps each of them has: equally many but in the last one."""
        return (*(self.size for _ in self._whole), *([self._steps_in_begun] if self._begun is not None else []))

    def _append(self, step: StepRecord) -> None:
        number = self._steps_in_begun
        self._begun = step if self._begun is None else mean(self._begun, step, number / (number + 1))
        self._steps_in_begun = number + 1
        if self._steps_in_begun == self.size:
            self._whole.append(self._begun)
            self._begun, self._steps_in_begun = None, 0

    def _halve(self) -> None:
        pairs = zip(self._whole[::2], self._whole[1::2], strict=False)
        odd = self._whole[-1] if len(self._whole) % 2 else None
        self._whole = [mean(before, after, 0.5) for before, after in pairs]
        self._begun, self._steps_in_begun = (odd, self.size) if odd is not None else (None, 0)
        self.size *= 2

    def _cut(self, step: int) -> None:
        """Forget the windows that end at a step or after it."""
        self._whole = [each for each in self._whole if each.step < step]
        self._begun, self._steps_in_begun = None, 0
        if self.first is not None and step <= self.first.step:
            self.first = None


def mean(before: StepRecord, after: StepRecord, weight: float) -> StepRecord:
    """Return the mean of two neighbours, of which the first has this weight; None counts only where both are."""
    values: dict[str, Any] = {}
    for name in StepRecord.model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if name in OF_THE_LAST:
            values[name] = other
        elif isinstance(one, Mapping):
            values[name] = _of_mappings(one, other, weight, None if name in WHERE_KNOWN else 0.0)
        else:
            values[name] = _largest(one, other) if name in LARGEST else _of_numbers(one, other, weight)
    return StepRecord.model_construct(**values)


def _of_mappings(
    before: Mapping[str, float], after: Mapping[str, float], weight: float, missing: float | None
) -> dict[str, float | None]:
    names = dict.fromkeys((*before, *after))
    return {name: _of_numbers(before.get(name, missing), after.get(name, missing), weight) for name in names}


def _of_numbers(before: float | None, after: float | None, weight: float) -> float | None:
    if before is None or after is None:
        return after if before is None else before
    return before if before == after else weight * before + (1 - weight) * after


def _largest(before: float | None, after: float | None) -> float | None:
    return max((each for each in (before, after) if each is not None), default=None)
