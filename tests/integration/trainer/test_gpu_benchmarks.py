"""`make bench-gpu` on a CPU, with two-layer models: every program of it runs one of its rows to the end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
BENCHMARKS = REPOSITORY / "benchmarks"
PATHS = [REPOSITORY / name for name in ("crds", "trainer", "operator", "benchmarks")]


def printed(out: Path, program: str, *arguments: str) -> str:
    """Return what a benchmark prints on a CPU."""
    words = [sys.executable, str(BENCHMARKS / program), "--device", "cpu", "--tiny", "--out", str(out), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    return subprocess.run(words, env=environment, check=True, timeout=280, stdout=subprocess.PIPE, text=True).stdout


def figures(out: Path, program: str, *arguments: str, file: str) -> Any:
    """Return what a program of `make bench-gpu` has measured."""
    printed(out, program, *arguments)
    return json.loads((out / file).read_text())


def test_the_makefile_starts_these_programs() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("bench-gpu: ##")[2].partition("\n\n")[0]
    assert [word for word in recipe.split() if word.startswith("benchmarks/")] == [
        "benchmarks/learner_gpu.py",
        "benchmarks/gpu_runs.py",
        "benchmarks/learner_parallel.py",
    ]


@pytest.mark.timeout(900)
def test_a_step_of_the_learner_is_measured(tmp_path: Path) -> None:
    found = figures(tmp_path, "learner_gpu.py", "--rows", "ours", "--loads", "mixed", file="learner.json")
    assert found["mixed/ours"]["ms"] > 0
    assert "| mixed | ours |" in (tmp_path / "learner.md").read_text()


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_step_and_a_checkpoint_of_a_layout_are_measured(tmp_path: Path) -> None:
    found = figures(tmp_path, "learner_parallel.py", "--rows", "one", file="parallel-one.json")
    assert found["ms"] > 0 and found["checkpoint s"] > 0
    assert found["loss"][0] == pytest.approx(found["loss"][2], abs=1e-3), "the same samples, and tiny steps"


@pytest.mark.timeout(900)
@pytest.mark.long
def test_publications_of_a_run_are_measured(tmp_path: Path) -> None:
    found = figures(tmp_path, "gpu_runs.py", "--rows", "publish-0.6B-Disk", file="publish-0.6B-Disk.json")
    assert found["steps"] == 14
    assert len(found["publish"]) == 11 and min(found["publish"]) > 0
    assert found["step"] > found["phases"]["publish"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_colocated_steps_in_turns_are_measured_with_a_learner_that_leaves(tmp_path: Path) -> None:
    found = figures(tmp_path, "gpu_turns.py", "--row", "host-0.6B", file="turns-host-0.6B.json")
    assert found["learner leaves"] and found["same greedy answer after a round trip"]
    assert len(found["steps"]) == 4 and all(step["grad norm"] > 0 for step in found["steps"])
    assert {"leave", "come back", "release_memory", "resume_memory"} <= found["seconds"].keys()
    assert [each["at"] for each in found["memory [MiB]"]].count("after a checkpoint") == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_first_steps_of_a_learner_are_timed_in_new_and_later_pods(tmp_path: Path) -> None:
    output = printed(tmp_path, "gpu_start.py", "--what", "learner")
    lines = [line for line in output.splitlines() if line.startswith("learner, ")]
    assert [line.partition(":")[0] for line in lines] == [
        "learner, a new pod",
        "learner, a later pod of the job",
        "learner, the same pod again",
    ]
    assert all(len(re.findall(r"[0-9.]+ s\b", line)) == 4 for line in lines), "the load, and three steps"
