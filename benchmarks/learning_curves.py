"""Learning curves of the examples in `docs/examples/algorithms`, for `docs/algorithms.md`.

    python benchmarks/learning_curves.py                      every example on two seeds, one after the other
    python benchmarks/learning_curves.py grpo ppo --at-once 8 on a larger machine; each run gets --cores of its own

A run has learned when what it is trained for got better by more than two standard errors from its first step to the
mean of its last two. A step's error is taken over its questions, as if samples of one question were one: it is rather
too large.
"""

import argparse
import itertools
import math
import queue
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.records import EvaluationRecord, ReadyRecord, StepRecord

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples" / "algorithms"
FIRST = "sft"
"""makes the teacher of `distillation`"""
LAST = 2
"""steps that count at the end"""
ENOUGH = 2.0
"""standard errors"""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run came to."""

    name: str
    seed: int
    measure: str
    first: float
    last: float
    errors: float
    """how many standard errors lie between the two; NaN: the error is not known"""
    held_out: str
    start_s: float
    total_s: float

    @property
    def row(self) -> str:
        return (
            f"| {self.name} | {self.seed} | {self.measure} | {self.first:.3f} → {self.last:.3f} | {self.errors:.1f} |"
            f" {self.held_out} | {self.start_s:.0f} | {self.total_s:.0f} |"
        )


def main() -> None:
    """Run what is asked for, and print a table."""
    arguments = parsed()
    names = arguments.names or sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    seats: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seat in range(arguments.at_once):
        seats.put(seat)
    seeds = range(arguments.seeds)
    rounds = [[name for name in names if name == FIRST], [name for name in names if name != FIRST]]
    curves: list[Curve] = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for together in rounds:
            jobs = [(name, seed) for name in together for seed in seeds]
            curves += pool.map(lambda job: run(job[0], job[1], arguments, seats), jobs)
    print("| example | seed | what | first → last | standard errors | held-out, sampled | start [s] | all [s] |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(curve.row for curve in curves))
    flat = [f"{curve.name}, seed {curve.seed}" for curve in curves if not curve.errors > ENOUGH]
    if flat:
        sys.exit(f"did not learn beyond noise: {'; '.join(flat)}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="examples; all if there is none")
    parser.add_argument("--directory", type=Path, default=Path("runs/learning-curves"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--cores", type=int, default=2, help="of each run")
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--model", help="a checkpoint instead of the examples' one")
    return parser.parse_args()


def run(name: str, seed: int, arguments: argparse.Namespace, seats: "queue.SimpleQueue[int]") -> Curve:
    """Run one example on cores of its own."""
    directory = (arguments.directory / f"{name}-{seed}").resolve()
    job = manifest(name, seed, directory, arguments.model)
    file = directory.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(job))
    seat = seats.get()
    try:
        began = time.time()
        first = arguments.first_core + seat * arguments.cores
        pinned = ["taskset", "-c", f"{first}-{first + arguments.cores - 1}"]
        with directory.with_suffix(".log").open("w") as log:
            words = [*pinned, sys.executable, "-m", "rljob_cli.main", "run", str(file)]
            subprocess.run(words, check=True, stdout=log, stderr=log)
        return curve(name, seed, job["spec"], directory, time.time() - began)
    finally:
        seats.put(seat)


def manifest(name: str, seed: int, directory: Path, model: str | None) -> dict[str, Any]:
    """Return the example with a seed and a directory of its own."""
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    spec = job["spec"]
    spec["seed"] = seed
    spec.setdefault("checkpoint", {})["directory"] = str(directory)
    if model is not None:
        spec["model"]["checkpoint"] = model
    if "teacher" in spec["algorithm"]:
        spec["algorithm"]["teacher"]["checkpoint"] = str(directory.parent / f"{FIRST}-0" / "hf")
    return job


def curve(name: str, seed: int, spec: Mapping[str, Any], directory: Path, total_s: float) -> Curve:
    """Return what a finished run came to."""
    records = list(read_events(directory / FILE_NAME))
    steps = [record for record in records if isinstance(record, StepRecord)]
    ready = next(record for record in records if isinstance(record, ReadyRecord))
    held_out = [record.sampled for record in records if isinstance(record, EvaluationRecord)]
    measure, sign, values, errors = measured(steps, spec)
    last = fmean(values[-LAST:])
    error = math.hypot(errors[0], math.hypot(*errors[-LAST:]) / LAST)
    return Curve(
        name=name,
        seed=seed,
        measure=measure,
        first=values[0],
        last=last,
        errors=sign * (last - values[0]) / error if error else math.nan,
        held_out=f"{held_out[0]:.2f} → {held_out[-1]:.2f}" if held_out else "",
        start_s=ready.phase_seconds["start"],
        total_s=total_s,
    )


def measured(steps: Sequence[StepRecord], spec: Mapping[str, Any]) -> tuple[str, int, list[float], list[float]]:
    """Return what this run gets better at, the direction of better, its value in each step, and the value's error."""
    match spec["algorithm"]["name"]:
        case "sft":
            return "loss", -1, *scattered([step.loss or 0.0 for step in steps])
        case "distillation":
            return "KL to the teacher", -1, *scattered([step.kl or 0.0 for step in steps])
    questions = spec["rollout"]["promptsPerStep"]
    errors = [(step.reward_std or 0.0) / math.sqrt(questions) for step in steps]
    return "reward", 1, [step.reward_mean or 0.0 for step in steps], errors


def scattered(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return values, and as their error how far a step lies from its neighbours."""
    jumps = [abs(after - before) / math.sqrt(2) for before, after in itertools.pairwise(values)]
    error = fmean(jumps) if jumps else math.nan
    return list(values), [error] * len(values)


if __name__ == "__main__":
    main()
