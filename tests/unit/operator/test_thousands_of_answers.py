"""Thousands of random answers of heads and drivers: the operator stays small, plans, and its loop goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.http_in_thread import served_in_thread
from support.operator.random_heads import RandomHeads

TESTS = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "support.operator.follows_hostile_heads"]
MOST_MIB = 300
LONGEST_STOP_S = 0.25


@pytest.mark.parametrize(
    ("seed", "answers"), [(7, 600), pytest.param(8, 10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_random_answers_cost_neither_memory_nor_the_loop_nor_a_plan(seed: int, answers: int, tmp_path: Path) -> None:
    heads = RandomHeads(seed, answers)
    with served_in_thread(heads.application()) as url, (tmp_path / "log").open("w") as log:
        operator = subprocess.Popen(
            [*PROGRAM, url], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        came = heads.enough.wait(800)
        said, _ = operator.communicate("")
    found = json.loads(said)
    print(found, heads.kinds)

    assert came
    assert found["errors"] == []
    assert found["plans"] > answers / 50
    assert "Running with a report" in found["states"]
    assert found["peak_mib"] < MOST_MIB
    assert found["stop_s"] < LONGEST_STOP_S
    assert "CONTROL-TOKEN" not in (tmp_path / "log").read_text()
