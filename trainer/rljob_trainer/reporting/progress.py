"""The progress of a run as one frozen value. Any thread may read it; the control server puts it into the status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Final

from rljob_trainer.reporting.curve import Curve
from rljob_trainer.reporting.records import (
    CheckpointRecord,
    EndRecord,
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


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A reading; times are unix times [s]."""

    steps: int = 0
    """length of the run"""
    step: int = 0
    """steps finished"""
    reward_mean: float | None = None
    """of the last step"""
    rewards: tuple[float, ...] = ()
    """mean reward of the last steps, oldest first"""
    evaluations: tuple[EvaluationRecord, ...] = ()
    """oldest first"""
    perplexities: tuple[float, ...] = ()
    """of the data's responses that the last steps trained on, oldest first"""
    held_out_perplexity: tuple[PerplexityRecord, ...] = ()
    """oldest first"""
    curve: Curve = field(default_factory=Curve)
    """of the whole run, thinned"""
    rollout_tokens_per_second: float | None = None
    train_tokens_per_second: float | None = None
    version: int | None = None
    """version of the published weights; None: none by this driver"""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """of the last step [s]"""
    step_time: float | None = None
    """when the last step finished"""
    eta_seconds: float | None = None
    """estimate of the time from the end of this step until that of the last one [s]"""
    checkpoint: CheckpointRecord | None = None
    """the newest"""
    outcome: str | None = None
    """how the run ended"""
    losses: Mapping[str, int] = field(default_factory=dict)
    """what the whole run has lost to the world around it, by cause"""


class ProgressHolder:
    """Keeps the newest progress."""

    def __init__(self) -> None:
        self._progress = RunProgress()
        self._laps: tuple[Mapping[str, float], ...] = ()

    def read(self) -> RunProgress:
        """Return the progress as of now. Any thread may call it."""
        return self._progress

    def record(self, record: Record) -> None:
        progress = after(self._progress, record)
        if isinstance(record, StepRecord):
            self._laps = (*self._laps, record.phase_seconds)[-2 * RECENT :]
            progress = replace(progress, eta_seconds=eta_seconds(self._laps, progress.steps - progress.step))
        self._progress = progress

    def close(self) -> None:
        """Do nothing."""


def after(progress: RunProgress, record: Record) -> RunProgress:
    """Return the progress after `record`."""
    match record:
        case RunRecord():
            begun = replace(progress, steps=record.steps, step=record.step, version=None, step_time=None, outcome=None)
            return replace(begun, phase_seconds={})  # this driver has done no step yet
        case StepRecord():
            return _after_step(progress, record)
        case EvaluationRecord():
            evaluations = (*progress.evaluations, record)[-HISTORY:]
            return replace(progress, evaluations=evaluations, curve=progress.curve.evaluated(record))
        case PerplexityRecord():
            known = (*progress.held_out_perplexity, record)[-HISTORY:]
            return replace(progress, held_out_perplexity=known, curve=progress.curve.evaluated(record))
        case CheckpointRecord():
            return replace(progress, checkpoint=record)
        case EndRecord():
            return replace(progress, outcome=record.outcome)
        case _:
            return progress


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


def _after_step(progress: RunProgress, record: StepRecord) -> RunProgress:
    rewards = progress.rewards if record.reward_mean is None else (*progress.rewards, record.reward_mean)
    of_data = record.perplexity_of_data
    perplexities = progress.perplexities if of_data is None else (*progress.perplexities, of_data)
    return replace(
        progress,
        step=record.step,
        step_time=record.time,
        reward_mean=record.reward_mean,
        rewards=rewards[-HISTORY:],
        perplexities=perplexities[-HISTORY:],
        curve=progress.curve.stepped(record),
        rollout_tokens_per_second=record.rollout_tokens_per_second,
        train_tokens_per_second=record.train_tokens_per_second,
        version=record.version,
        phase_seconds=record.phase_seconds,
        losses=_sum(progress.losses, record.losses),
    )


def _sum(some: Mapping[str, int], others: Mapping[str, int]) -> Mapping[str, int]:
    if not others:
        return some
    return {cause: some.get(cause, 0) + others.get(cause, 0) for cause in sorted({*some, *others})}
