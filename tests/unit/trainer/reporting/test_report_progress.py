"""How far a run is: the value that the status is made of."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rljob_trainer.reporting.events import FILE_NAME, read_events
from rljob_trainer.reporting.progress import HISTORY, eta_seconds
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import render
from rljob_trainer.reporting.records import Record, RunRecord, Sink, StepRecord
from support.trainer.synthetic_run import SyntheticRun

LAP = {"rollout": 4.0, "train": 2.0}


def test_progress_shows_the_last_step_and_what_came_before(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.evaluate(0)
    run.take(1)
    run.take(2)
    progress = run.report.progress()
    assert (progress.step, progress.steps, progress.weight_version) == (2, 36, 2)
    assert len(progress.rewards) == 2
    assert progress.rewards[-1] == progress.reward_mean
    assert [(each.step, each.accuracy) for each in progress.accuracy_sampled] == [(0, 0.11)]


def test_progress_remembers_a_bounded_number_of_rewards(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, steps=HISTORY + 5)
    for step in range(1, HISTORY + 6):
        run.take(step)
    assert len(run.report.progress().rewards) == HISTORY


def test_a_restarted_driver_shows_the_history_up_to_its_checkpoint(tmp_path: Path) -> None:
    before = SyntheticRun(tmp_path)
    before.evaluate(0)
    for step in range(1, 6):
        before.take(step)
    after = SyntheticRun(tmp_path, attempt=2, first=3)
    progress = after.report.progress()
    assert progress.rewards == before.report.progress().rewards[:3]
    assert (progress.step, progress.weight_version, progress.eta_seconds is None) == (3, None, False)
    assert progress.last_step_seconds == {}, "a supervisor would take it for a driver that has done steps"
    assert len(progress.accuracy_sampled) == 1


def test_a_start_in_the_same_process_goes_back_and_counts_the_step_under_way_as_lost(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    heard: list[Record] = []
    run.report.also_to(cast(Sink, SimpleNamespace(record=heard.append, close=lambda: None)))
    run.evaluate(0)
    for step in range(1, 6):
        run.take(step)
    rewards = run.report.progress().rewards
    spent = sum(record.seconds for record in heard if isinstance(record, StepRecord) and record.step > 3)
    with run.phases.measure("rollout"):
        run.clock.now += 20.0
    run.report.run(attempt=1, resumed_from=3)

    assert (run.report.progress().step, run.report.progress().rewards) == (3, rewards[:3])
    begun = heard[-1]
    assert isinstance(begun, RunRecord) and (begun.step, begun.lost_steps, begun.phase_seconds) == (3, 2, {})
    assert begun.lost_seconds == pytest.approx(spent + 20.0, abs=0.1)
    run.take(4)
    recorded = [record for record in read_events(tmp_path / FILE_NAME) if isinstance(record, StepRecord)]
    assert [record.step for record in recorded] == [1, 2, 3, 4], "each step once"
    assert len([record for record in heard if isinstance(record, StepRecord)]) == 6, "a sink from outside goes on"
    goodput = run.report.progress().goodput
    assert goodput is not None
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_seconds, rel=0.01)
    assert goodput.seconds["redone"] == pytest.approx(begun.lost_seconds, rel=0.01)
    history = read_history(tmp_path)
    assert (history.driver_starts, len(history.runs), begun.new_ranks) == (1, 2, True)
    assert "1, new ranks" in render(history) and "2 driver starts" not in render(history)


def test_the_estimate_is_the_median_step_times_the_steps_left() -> None:
    slow_start = [{"rollout": 60.0}, LAP, LAP, {"rollout": 30.0}, LAP]
    assert eta_seconds(slow_start, steps_left=10) == pytest.approx(60.0)


def test_the_estimate_spreads_checkpoints_and_evaluations_over_the_steps() -> None:
    laps = [{**LAP, "evaluate": 100.0}, LAP, {**LAP, "evaluate": 8.0}, LAP, LAP]
    assert eta_seconds(laps, steps_left=10) == pytest.approx(10 * (6.0 + 8.0 / 4))


@pytest.mark.parametrize(("laps", "left", "expected"), [([], 5, None), ([LAP], 0, 0.0)])
def test_before_the_first_step_there_is_no_estimate_and_after_the_last_nothing_is_left(
    laps: list[dict[str, float]], left: int, expected: float | None
) -> None:
    assert eta_seconds(laps, left) == expected
