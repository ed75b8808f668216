"""`make bench-gpu` on a CPU, with two-layer models: every program of it runs one of its rows to the end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
BENCHMARKS = REPOSITORY / "benchmarks"
PATHS = [REPOSITORY / name for name in ("crds", "trainer", "operator", "benchmarks")]


def figures(out: Path, program: str, *arguments: str, file: str) -> Any:
    """Return what a program of `make bench-gpu` has measured on a CPU."""
    words = [sys.executable, str(BENCHMARKS / program), "--device", "cpu", "--tiny", "--out", str(out), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    subprocess.run(words, env=environment, check=True, timeout=280, stdout=subprocess.PIPE)
    return json.loads((out / file).read_text())


def test_the_makefile_starts_these_programs() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("bench-gpu: ##")[2].partition("\n\n")[0]
    assert [word for word in recipe.split() if word.startswith("benchmarks/")] == [
        "benchmarks/learner_gpu.py",
        "benchmarks/gpu_runs.py",
        "benchmarks/learner_parallel.py",
        "benchmarks/agent_sessions.py",
        "benchmarks/engine_start.py",
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


@pytest.mark.timeout(900)
@pytest.mark.long
def test_sessions_of_agents_are_measured_directly_and_through_the_gateway(tmp_path: Path) -> None:
    found = figures(tmp_path, "agent_sessions.py", "--engines", "2", "--rounds", "1", file="agent-sessions.json")
    direct, ours, without = (each[0] for each in found.values())
    assert [each["failures"] for each in (direct, ours, without)] == [0, 0, 0]
    assert [each["branches"] for each in (direct, ours, without)] == [0, 0, 0]
    assert ours["hits"] == pytest.approx(direct["hits"], abs=0.02), "the same requests"
    assert ours["hits"] > without["hits"] + 0.05, "another engine does not have the prefix"
    assert min(each["tokens_per_s"] for each in (direct, ours, without)) > 0


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_start_of_an_engine_is_measured(tmp_path: Path) -> None:
    found = figures(tmp_path, "engine_start.py", "--rows", "first", file="engine-start.json")
    assert found["first"]["start s"] > 0
    assert min(found["first"]["tok/s"]) > 0
