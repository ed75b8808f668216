"""Keeps the status store up to date with the report's progress and the engines, several times a second.

Phase and heartbeat are not copied here. The main thread sets them itself, so a live updater cannot mask a dead loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_api import control
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.reporting.progress import RunProgress
from rljob_trainer.reporting.records import EvaluationRecord

INTERVAL_S = 0.2


@dataclass
class StatusUpdater:
    """Copies the progress, findings and engines to the status store when they have changed."""

    status_store: StatusStore
    progress: Callable[[], RunProgress]
    findings: Callable[[], Sequence[control.Finding]]
    engines: Callable[[], Sequence[control.EngineStatus]]
    count_engines: Callable[[dict[str, int]], None]
    """is called with the number of engines in each state"""
    losses: Losses = field(default_factory=Losses)

    async def run(self) -> None:
        """Update until cancelled."""
        while True:
            self.update()
            await asyncio.sleep(INTERVAL_S)

    def update(self) -> None:
        """Update the status store now."""
        engines = tuple(self.engines())
        changes = changes_to(self.status_store.status, self.progress(), self.findings(), engines, self.losses)
        if changes:
            self.status_store.update(**changes)
        if "engines" in changes:
            self.count_engines(by_state(engines))


def changes_to(
    status: control.Status,
    progress: RunProgress,
    findings: Sequence[control.Finding],
    engines: tuple[control.EngineStatus, ...],
    losses: Losses,
) -> dict[str, object]:
    """Return the fields of the status that are out of date."""
    now = {
        "progress": progress_of(progress),
        "engines": engines,
        "checkpoint": checkpoint_of(progress),
        "findings": tuple(findings),
        "waits_for": losses.waiting_for,
        "waited_seconds": float(int(losses.waited_s)),
    }
    return {name: value for name, value in now.items() if value != getattr(status, name)}


def progress_of(progress: RunProgress) -> control.Progress:
    """Return the progress in the protocol's words."""
    return control.Progress(
        step=progress.step,
        steps=progress.steps,
        reward_mean=progress.reward_mean,
        rewards=progress.rewards,
        accuracy_sampled=points(progress.evaluations, lambda record: record.sampled),
        accuracy_greedy=points(progress.evaluations, lambda record: record.greedy),
        perplexities=progress.perplexities,
        held_out_perplexity=tuple(
            control.PerplexityPoint(step=record.step, perplexity=record.perplexity)
            for record in progress.held_out_perplexity
        ),
        evaluation_sets=newest_sets(progress.evaluations),
        curve=progress.curve.points,
        tokens_per_second=control.TokenRates(
            rollout=progress.rollout_tokens_per_second, train=progress.train_tokens_per_second
        ),
        weight_version=progress.version,
        eta_seconds=progress.eta_seconds,
        last_step_seconds=dict(progress.phase_seconds),
        losses=dict(progress.losses),
    )


def checkpoint_of(progress: RunProgress) -> control.SavedCheckpoint | None:
    """Return the newest checkpoint in the protocol's words. Every checkpoint that is reported was verified."""
    saved = progress.checkpoint
    return None if saved is None else control.SavedCheckpoint(step=saved.step, path=saved.path, verified=True)


def points(
    evaluations: Sequence[EvaluationRecord], value: Callable[[EvaluationRecord], float | None]
) -> tuple[control.AccuracyPoint, ...]:
    """Return the evaluations that measured this value."""
    return tuple(
        control.AccuracyPoint(step=record.step, accuracy=accuracy)
        for record in evaluations
        if (accuracy := value(record)) is not None
    )


def newest_sets(evaluations: Sequence[EvaluationRecord]) -> dict[str, control.SetAccuracy]:
    """Return the newest accuracy on each set."""
    if not evaluations:
        return {}
    newest = evaluations[-1]
    return {
        name: control.SetAccuracy(step=newest.step, sampled=each.sampled, greedy=each.greedy)
        for name, each in newest.sets.items()
    }


def by_state(engines: Sequence[control.EngineStatus]) -> dict[str, int]:
    """Return how many engines are in each state; every state is named."""
    return {state: sum(engine.state is state for engine in engines) for state in control.EngineState}
