"""Run directories as drivers leave them, with chosen sizes and ages."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from rljob_cli.volume.extent import Budget
from rljob_trainer.reporting.events import EventLog
from rljob_trainer.reporting.records import CheckpointRecord, EndRecord, RunRecord

NOW = 1_700_000_000.0
"""of the past: for the real clock all of these runs are old"""
DAY_S = 86_400


def budget() -> Budget:
    """Return a budget that is not spent."""
    return Budget(entries=100_000, seconds=60.0)


def run_directory(
    path: Path,
    *,
    num_bytes: int = 1000,
    age_s: float = 40 * DAY_S,
    beat_age_s: float | None = None,
    outcome: str | None = "finished",
    steps: Iterable[int] = (10, 20),
) -> Path:
    """Make a run of 20 steps with these checkpoints, each of `num_bytes`; its last change was `age_s` before NOW."""
    path.mkdir(parents=True)
    (path / "driver.json").write_text('{"origin": "uid-1", "attempt": 2}')
    manifest = {"metadata": {"name": path.name, "namespace": "ml"}}
    log = EventLog(path / "events.jsonl")
    log.record(RunRecord(time=1.0, job=path.name, model="m", task="t", steps=20, attempt=1, step=0, manifest=manifest))
    for step in steps:
        checkpoint(path, step, num_bytes)
        log.record(CheckpointRecord(time=2.0, step=step, path=f"iter_{step:07d}"))
    if outcome:
        log.record(EndRecord(time=3.0, step=max(steps, default=0), outcome=outcome))
    log.close()
    for name in ("logs", "rollouts"):
        (path / name).mkdir()
        (path / name / "file").write_bytes(b"x" * 100)
    aged(path, age_s, beat_age_s)
    return path


def checkpoint(run: Path, step: int, num_bytes: int) -> None:
    """Make a checkpoint whose one file has `num_bytes`."""
    place = run / "checkpoints" / f"iter_{step:07d}"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(b"x" * num_bytes)
    (place / "rljob.json").write_text(json.dumps({"step": step, "files": {"weights": "0"}}))


def aged(path: Path, age_s: float, beat_age_s: float | None = None) -> None:
    """Set the times of all that lies in a directory; the driver touched its file `beat_age_s` before NOW."""
    for each in (*path.rglob("*"), path):
        os.utime(each, (NOW - age_s, NOW - age_s), follow_symlinks=False)
    if beat_age_s is not None:
        os.utime(path / "driver.json", (NOW - beat_age_s, NOW - beat_age_s))


def tree(path: Path) -> set[str]:
    """Return all names in a directory."""
    return {str(each.relative_to(path)) for each in path.rglob("*")}
