"""A run of any length as a curve of few points: the first, the newest, and every 2^k-th in between. Pure.

The kept points depend only on the added ones, so a restarted driver that reads earlier records continues the same
curve.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, Self

from rljob_api.control import MOST_CURVE_POINTS, CurvePoint
from rljob_trainer.reporting.records import EvaluationRecord, PerplexityRecord, StepRecord

MOST_EVALUATIONS: Final = 24
"""a separate limit: evaluations are rare, and thinning would remove them before steps"""
DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Thinned:
    """At most `most` of the points that were added."""

    most: int
    stride: int = 1
    """one of this number of points is kept"""
    added: int = 0
    kept: tuple[CurvePoint, ...] = ()
    """fewer than `most`, to leave room for the newest"""
    newest: CurvePoint | None = None

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        return self.kept if self.newest is None or self.kept[-1] == self.newest else (*self.kept, self.newest)

    def add(self, point: CurvePoint) -> Self:
        """Return this with one more point, which replaces one of the same step."""
        if self.newest is not None and self.newest.step == point.step:
            last = (point,) if self.kept[-1].step == point.step else self.kept[-1:]
            return replace(self, kept=(*self.kept[:-1], *last), newest=point)
        kept = (*self.kept, point) if self.added % self.stride == 0 else self.kept
        more = replace(self, added=self.added + 1, kept=kept, newest=point)
        return more if len(kept) < self.most else replace(more, stride=2 * self.stride, kept=kept[::2])


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps and evaluations of a run, together at most MOST_CURVE_POINTS."""

    steps: Thinned = Thinned(MOST_CURVE_POINTS - MOST_EVALUATIONS)
    evaluations: Thinned = Thinned(MOST_EVALUATIONS)

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The points by step; that of an evaluation also has the numbers of its step."""
        by_step = {point.step: point for point in (*self.steps.points, *self.evaluations.points)}
        return tuple(by_step[step] for step in sorted(by_step))

    def stepped(self, record: StepRecord) -> "Curve":
        """Return the curve after a step."""
        return replace(self, steps=self.steps.add(_stepped(record)))

    def evaluated(self, record: EvaluationRecord | PerplexityRecord) -> "Curve":
        """Return the curve after an evaluation of the newest step, or before the first."""
        newest = self.steps.newest
        step = newest if newest is not None and newest.step == record.step else CurvePoint(step=record.step)
        point = step.model_copy(update=_evaluated(record))
        return replace(self, evaluations=self.evaluations.add(point))


def stepwise(
    steps: Iterable[StepRecord], evaluations: Iterable[EvaluationRecord | PerplexityRecord]
) -> tuple[CurvePoint, ...]:
    """Return a point for each step and evaluation, not thinned."""
    by_step = {record.step: _stepped(record) for record in steps}
    for record in evaluations:
        point = by_step.get(record.step, CurvePoint(step=record.step))
        by_step[record.step] = point.model_copy(update=_evaluated(record))
    return tuple(by_step[step] for step in sorted(by_step))


def _stepped(record: StepRecord) -> CurvePoint:
    return CurvePoint(
        step=record.step,
        reward=_rounded(record.reward_mean, DIGITS),
        tokens_per_second=_rounded(record.rollout_tokens_per_second, 0),
        perplexity=_rounded(record.perplexity_of_data, DIGITS),
    )


def _evaluated(record: EvaluationRecord | PerplexityRecord) -> dict[str, float | None]:
    match record:
        case EvaluationRecord():
            return {"accuracy": _rounded(record.sampled, DIGITS)}
        case PerplexityRecord():
            return {"held_out_perplexity": _rounded(record.perplexity, DIGITS)}


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None and isfinite(value) else None
