"""The progress of a run, in the protocol's words. Any thread may read it; it becomes a part of the status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

from rljob_api.control import AccuracyPoint, PerplexityPoint, Progress, SavedCheckpoint, SetAccuracy, TokenRates
from rljob_trainer.reporting.curve import Curve
from rljob_trainer.reporting.goodput import TimeSpent
from rljob_trainer.reporting.records import (
    CheckpointRecord,
    EvaluationRecord,
    PerplexityRecord,
    Record,
    RunRecord,
    StepRecord,
)

HISTORY: Final = 60
"""number of rewards and evaluations that are kept"""
RECENT: Final = 10
"""number of steps that the remaining time is estimated from"""
_PERIODIC: Final = ("checkpoint", "evaluate")


@dataclass(frozen=True)
class ProgressState:
    """All that a holder knows."""

    progress: Progress
    checkpoint: SavedCheckpoint | None
    curve: Curve
    time: TimeSpent
    laps: tuple[Mapping[str, float], ...]


class ProgressHolder:
    """Keeps the newest progress, and the newest checkpoint."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.checkpoint: SavedCheckpoint | None = None
        self._curve = Curve()
        self._time = TimeSpent()
        self._laps: tuple[Mapping[str, float], ...] = ()

    @property
    def state(self) -> ProgressState:
        """What it knows, to be restored."""
        time = replace(self._time, phases=dict(self._time.phases), away=dict(self._time.away))
        return ProgressState(self.progress, self.checkpoint, self._curve, time, self._laps)

    def restore(self, state: ProgressState) -> None:
        """Know what another holder knew."""
        self.progress, self.checkpoint = state.progress, state.checkpoint
        self._curve, self._time, self._laps = state.curve, state.time, state.laps

    def record(self, record: Record) -> None:
        self._time = self._time.after(record)
        match record:
            case RunRecord():  # this driver has done no step yet, and published nothing
                self._change(steps=record.steps, step=record.step, weight_version=None, last_step_seconds={})
            case StepRecord():
                self._curve = self._curve.stepped(record)
                self._laps = (*self._laps, record.phase_seconds)[-2 * RECENT :]
                left = eta_seconds(self._laps, self.progress.steps - record.step)
                changes = {"curve": self._curve.points, "eta_seconds": left, "goodput": self._time.goodput}
                self._change(**_stepped(self.progress, record), **changes)
            case EvaluationRecord():
                self._curve = self._curve.evaluated(record)
                self._change(**_evaluated(self.progress, record), curve=self._curve.points)
            case PerplexityRecord():
                self._curve = self._curve.evaluated(record)
                point = PerplexityPoint(step=record.step, perplexity=record.perplexity)
                known = (*self.progress.held_out_perplexity, point)[-HISTORY:]
                self._change(held_out_perplexity=known, curve=self._curve.points)
            case CheckpointRecord():  # every checkpoint that is reported was verified
                self.checkpoint = SavedCheckpoint(step=record.step, path=record.path, verified=True)

    def close(self) -> None:
        """Do nothing."""

    def _change(self, **changes: object) -> None:
        # model_copy would take any field and any value.
        self.progress = Progress.model_validate({**dict(self.progress), **changes}, extra="forbid")


def eta_seconds(laps: Sequence[Mapping[str, float]], steps_left: int) -> float | None:
    """Return the remaining time [s] from the phases of this job's own last steps; None before the first.

    A step costs the median of recent steps, so a slow first step or a failure does not matter. Checkpoints and
    evaluations are rare: they count by their mean, without those before the first step.
    """
    if steps_left <= 0:
        return 0.0
    if not laps:
        return None
    work = median(sum(lap.values()) - _periodic(lap) for lap in laps[-RECENT:])
    periodic = fmean(_periodic(lap) for lap in laps[1:]) if len(laps) > 1 else 0.0
    return (work + periodic) * steps_left


def _periodic(lap: Mapping[str, float]) -> float:
    return sum(lap.get(phase, 0.0) for phase in _PERIODIC)


def _stepped(before: Progress, record: StepRecord) -> dict[str, object]:
    """Return what a step changes."""
    rewards = before.rewards if record.reward_mean is None else (*before.rewards, record.reward_mean)
    of_data = record.perplexity_of_data
    perplexities = before.perplexities if of_data is None else (*before.perplexities, of_data)
    return {
        "step": record.step,
        "reward_mean": record.reward_mean,
        "rewards": rewards[-HISTORY:],
        "perplexities": perplexities[-HISTORY:],
        "tokens_per_second": TokenRates(rollout=record.rollout_tokens_per_second, train=record.train_tokens_per_second),
        "weight_version": record.version,
        "last_step_seconds": dict(record.phase_seconds),
        "losses": _sum(before.losses, record.losses),
    }


def _evaluated(before: Progress, record: EvaluationRecord) -> dict[str, object]:
    """Return what an evaluation changes."""
    return {
        "accuracy_sampled": _with(before.accuracy_sampled, record.step, record.sampled),
        "accuracy_greedy": _with(before.accuracy_greedy, record.step, record.greedy),
        "evaluation_sets": {
            name: SetAccuracy(step=record.step, sampled=each.sampled, greedy=each.greedy)
            for name, each in record.sets.items()
        },
    }


def _with(points: tuple[AccuracyPoint, ...], step: int, accuracy: float | None) -> tuple[AccuracyPoint, ...]:
    """Return the points with one more, if it was measured."""
    return points if accuracy is None else (*points, AccuracyPoint(step=step, accuracy=accuracy))[-HISTORY:]


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {cause: some.get(cause, 0) + others.get(cause, 0) for cause in sorted({*some, *others})}
