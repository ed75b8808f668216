"""How far a run is: the value that the status is made of."""

from pathlib import Path

import pytest

from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.progress import HISTORY, ProgressHolder, eta_seconds
from synthetic_run import Clock, SyntheticRun

LAP = {"rollout": 4.0, "train": 2.0}


def test_progress_tells_the_last_step_and_what_came_before(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.evaluate(0)
    run.take(1)
    run.take(2)
    progress = run.report.progress()
    assert (progress.step, progress.steps, progress.version) == (2, 36, 2)
    assert len(progress.rewards) == 2
    assert progress.rewards[-1] == progress.reward_mean
    assert [(each.step, each.sampled) for each in progress.evaluations] == [(0, 0.11)]


def test_progress_remembers_a_bounded_number_of_rewards(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, steps=HISTORY + 5)
    for step in range(1, HISTORY + 6):
        run.take(step)
    assert len(run.report.progress().rewards) == HISTORY


def test_the_phase_and_its_beginning_are_those_of_now(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    with run.phases.measure("train"):
        began = run.clock.unix()
        run.clock.now += 5.0
        first = run.report.progress()
        run.clock.now += 5.0
        second = run.report.progress()
    assert (first.phase, first.phase_since) == ("train", began)
    assert second.phase_since == first.phase_since


def test_the_beginning_of_a_phase_does_not_move_although_two_clocks_never_agree() -> None:
    clock, jitter = Clock(), iter(range(100))
    phases = Phases(clock)
    holder = ProgressHolder(phases, lambda: 1000.0 + clock.now + 1e-6 * next(jitter))
    with phases.measure("train"):
        clock.now += 5.0
        assert holder.read().phase_since == holder.read().phase_since


def test_a_restarted_driver_shows_the_history_up_to_its_checkpoint(tmp_path: Path) -> None:
    before = SyntheticRun(tmp_path)
    before.evaluate(0)
    for step in range(1, 6):
        before.take(step)
    after = SyntheticRun(tmp_path, attempt=2, first=3)
    progress = after.report.progress()
    assert progress.rewards == before.report.progress().rewards[:3]
    assert (progress.step, progress.version, progress.eta_seconds is None) == (3, None, False)
    assert len(progress.evaluations) == 1


def test_the_estimate_is_the_median_step_times_the_steps_left() -> None:
    slow_start = [{"rollout": 60.0}, LAP, LAP, {"rollout": 30.0}, LAP]
    assert eta_seconds(slow_start, steps_left=10, since_step=0.0) == pytest.approx(60.0)


def test_the_estimate_spreads_checkpoints_and_evaluations_over_the_steps() -> None:
    laps = [{**LAP, "evaluate": 100.0}, LAP, {**LAP, "evaluate": 8.0}, LAP, LAP]
    assert eta_seconds(laps, steps_left=10, since_step=0.0) == pytest.approx(10 * (6.0 + 8.0 / 4))


def test_the_estimate_shrinks_while_a_step_goes_on_but_not_below_the_other_steps() -> None:
    assert eta_seconds([LAP], steps_left=10, since_step=2.0) == pytest.approx(58.0)
    assert eta_seconds([LAP], steps_left=10, since_step=500.0) == pytest.approx(54.0)


@pytest.mark.parametrize(("laps", "left", "expected"), [([], 5, None), ([LAP], 0, 0.0)])
def test_before_the_first_step_there_is_no_estimate_and_after_the_last_nothing_is_left(
    laps: list[dict[str, float]], left: int, expected: float | None
) -> None:
    assert eta_seconds(laps, left, 0.0) == expected
