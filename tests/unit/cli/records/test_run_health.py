"""`rljob why RUN_DIR` and `why` of a job that trains: one sentence that names what is wrong, and the numbers."""

import json
from collections.abc import Callable
from math import exp, sin
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.cluster.commands import why
from rljob_cli.records.run_health import RunHealth, run_health
from rljob_cli.records.run_health_view import as_value
from rljob_cli.run.rundir import in_use, locked, rundir
from rljob_trainer.reporting.events import EventLog
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.records import EndRecord, EngineRecord, Record, RunRecord, StepRecord
from support.trainer.synthetic_run import finished_run, job

app = typer.Typer()
app.command()(why)
runner = CliRunner()
USUAL = {"rollout": 3.0, "train": 2.0, "publish": 0.5}
START = RunRecord(
    time=0.0,
    job="sums",
    model="m",
    task="t",
    steps=200,
    attempt=1,
    step=0,
    manifest=job(200).model_dump(mode="json", by_alias=True, exclude_none=True),
)


def step(number: int, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "reward_mean": 0.7 - 0.6 * exp(-number / 20) + 0.02 * sin(7.0 * number),
        "entropy": 0.9,
        "grad_norm": 1.0,
        "truncated": 0.1,
        "groups_without_signal": 0.3,
        "logprob_mismatch": 1e-6,
        "engine_samples": {"engine-0": 64, "engine-1": 64},
        "rollout_tokens": 3000,
        "train_tokens": 4000,
        "phase_seconds": USUAL,
    }
    return StepRecord(**values | changes, time=float(number), step=number)


def answer(
    tmp_path: Path,
    change: Callable[[int], dict[str, Any]] = lambda number: {},
    *more: Record,
    is_active: bool | None = True,
    length: int = 60,
) -> RunHealth:
    log = EventLog(tmp_path / "events.jsonl")
    for record in (START, *(step(number, **change(number)) for number in range(1, length + 1)), *more):
        log.record(record)
    log.close()
    return run_health(read_history(tmp_path), is_active)


def since(first: int, **values: Any) -> Callable[[int], dict[str, Any]]:
    return lambda number: values if number >= first else {}


INCIDENT = EngineRecord(
    time=70.0, step=60, engine="engine-1", generation=0, cause="ProcessExited", error="exit code -9 (SIGKILL)\nstack"
)


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (since(1), "Well", "it goes as usual after step 60 of 200: 5.5s a step"),
        (
            since(51, phase_seconds={**USUAL, "rollout": 9.0}),
            "Slow",
            "it is slow: the last 10 steps took 12s each, steps 1 to 10 5.5s; most of it is rollout, 9.0s instead of"
            " 3.0s",
        ),
        (
            since(51, phase_seconds={**USUAL, "rollout": 4.0, "publish": 7.0}),
            "Slow",
            "it is slow: the last 10 steps took 13s each, steps 1 to 10 5.5s; most of it is publish, 7.0s instead of",
        ),
        (
            lambda number: {"phase_seconds": {"rollout": 9.0, "train": 1.0} | ({"train": 10.0} if number > 50 else {})},
            "Slow",
            "it is slow: the last 10 steps took 19s each, steps 1 to 10 10s; most of it is train, 10s instead of 1.0s",
        ),
        (since(51, phase_seconds={**USUAL, "evaluate": 90.0}), "Well", "it goes as usual"),
        (since(1, reward_mean=0.2), "NotLearning", "the mean reward of the last 10 steps is 0.2, of the first 10 it"),
        (since(51, truncated=0.9), "NotSound", "after step 60 of 200, Truncation: share of truncated responses of 10"),
        (since(51, engine_samples={"engine-0": 120, "engine-1": 8}), "NotSound", "EngineImbalance: of 10 steps to 60"),
    ],
)
def test_the_sentence_names_what_is_wrong(tmp_path: Path, change, verdict, words):
    found = answer(tmp_path, change)
    assert (found.verdict, words in found.sentence) == (verdict, True), found.sentence


@pytest.mark.parametrize(
    ("more", "is_active", "verdict", "words"),
    [
        (
            (EndRecord(time=70.0, step=60, outcome="failed", message="no engine"),),
            False,
            "Failed",
            "step 60 of 200: no",
        ),
        ((EndRecord(time=70.0, step=60, outcome="finished"),), False, "Finished", "all 60 steps"),
        ((EndRecord(time=70.0, step=60, outcome="stopped"),), False, "Stopped", "run it again"),
        ((), False, "Died", "rljob doctor"),
        ((), None, "Well", "as usual"),
        ((INCIDENT,), True, "EnginesAway", "engine-1 did not come back: ProcessExited: exit code -9 (SIGKILL)"),
        ((INCIDENT.model_copy(update={"return_seconds": 20.0}),), True, "Well", "as usual"),
    ],
)
def test_how_a_run_ended_comes_first(tmp_path: Path, more, is_active, verdict, words):
    found = answer(tmp_path, since(99), *more, is_active=is_active)
    assert (found.verdict, words in found.sentence) == (verdict, True), found.sentence


def test_a_reward_that_rises_little_is_no_rise_if_its_noise_is_larger(tmp_path: Path):
    found = answer(tmp_path, lambda number: {"reward_mean": 0.2 + 0.001 * number + 0.2 * (number % 2)})
    assert found.verdict == "NotLearning"


def test_a_young_run_is_not_said_not_to_learn_and_one_without_steps_is_new(tmp_path: Path):
    (tmp_path / "young").mkdir()
    (tmp_path / "new").mkdir()
    assert answer(tmp_path / "young", since(1, reward_mean=0.2), length=49).verdict == "Well"
    assert answer(tmp_path / "new", length=0).verdict == "New"


def test_numbers_stand_beside_the_usual_ones(tmp_path: Path):
    found = answer(tmp_path, since(51, phase_seconds={**USUAL, "rollout": 9.0}, truncated=0.3))
    numbers = {each.name.strip(): (each.now, each.before) for each in found.numbers}
    assert numbers["rollout"] == (9.0, 3.0)
    assert numbers["truncated, share"] == (pytest.approx(0.3), pytest.approx(0.1))
    assert numbers["wait for samples, share"] == (pytest.approx(9 / 11.5), pytest.approx(3 / 5.5))
    assert numbers["busiest engine / mean"] == (1.0, 1.0)
    assert "staleness [steps]" not in numbers


def test_a_directory_is_a_run_and_anything_else_a_job(tmp_path: Path):
    directory = finished_run(tmp_path)
    result = runner.invoke(app, [str(directory)])
    assert result.exit_code == Exit.OK
    assert result.output.startswith("smollm2-sums: ")
    assert "rollout" in result.output
    value = json.loads(runner.invoke(app, [str(directory), "-o", "json"]).output)
    assert value.keys() == {"job", "step", "verdict", "sentence", "numbers", "evidence"}
    assert (value["job"], value["step"]) == ("smollm2-sums", read_history(directory).step)
    assert value["sentence"] in result.output
    assert as_value(read_history(directory), RunHealth("größer", "Well", (), ())).splitlines() == [
        "{",
        '  "job": "smollm2-sums",',
        f'  "step": {value["step"]},',
        '  "sentence": "größer",',
        '  "verdict": "Well",',
        '  "numbers": [],',
        '  "evidence": []',
        "}",
    ]


def test_a_directory_is_in_use_while_a_supervisor_holds_it(tmp_path: Path):
    given = job()
    checkpoint = given.spec.checkpoint.model_copy(update={"directory": str(tmp_path)})
    directory = rundir(given.model_copy(update={"spec": given.spec.model_copy(update={"checkpoint": checkpoint})}))
    with locked(directory):
        assert in_use(tmp_path) is True
    assert in_use(tmp_path) is False
    assert in_use(tmp_path / "other") is None
