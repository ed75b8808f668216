"""Steps in bounded memory: whole while they are few, then means of equally many neighbours."""

import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.reporting.reading.history import history_of, result
from rljob_trainer.reporting.reading.html import figures, tiles
from rljob_trainer.reporting.reading.step_windows import StepWindows, mean
from rljob_trainer.reporting.records import EvaluationRecord, RunRecord, StepRecord


def step(number: int, **values: object) -> StepRecord:
    return StepRecord(time=float(number), step=number, phase_seconds={"rollout": 1.0}, **values)


def windows_of(numbers: range, most: int | None) -> StepWindows:
    windows = StepWindows(most)
    for number in numbers:
        windows.add(step(number, reward_mean=float(number), rollout_tokens=number))
    return windows


@given(st.integers(0, 300), st.integers(2, 40))
def test_there_are_never_more_than_allowed_and_each_is_the_mean_of_its_steps(steps: int, most: int) -> None:
    windows = windows_of(range(1, steps + 1), most)
    records, numbers = windows.records, windows.numbers
    assert len(records) <= most + 1
    assert [record.step for record in records] == [*accumulate(numbers)]
    assert sum(numbers) == steps and set(numbers[:-1]) <= {windows.size}
    for record, number in zip(records, numbers, strict=True):
        assert record.reward_mean == pytest.approx(record.step - (number - 1) / 2)
    total = sum(number * record.rollout_tokens for record, number in zip(records, numbers, strict=True))
    assert total == pytest.approx(steps * (steps + 1) / 2)


def test_few_steps_are_as_they_were_written() -> None:
    given = [step(number, loss=number / 3, reward_parts={"a": 0.1}) for number in range(1, 11)]
    windows = StepWindows(10)
    for each in given:
        windows.add(each)
    assert (windows.records, windows.size, windows.first, windows.last) == (tuple(given), 1, given[0], given[-1])


def test_the_first_and_the_last_step_stay_whole() -> None:
    windows = windows_of(range(1, 101), 8)
    assert windows.size == 16
    assert (windows.first, windows.last) == tuple(step(n, reward_mean=float(n), rollout_tokens=n) for n in (1, 100))


def test_all_steps_are_kept_where_that_is_asked_for() -> None:
    assert len(windows_of(range(1, 5001), None).records) == 5000


@pytest.mark.parametrize("most", [None, 8])
def test_a_step_that_comes_again_takes_its_place_and_that_of_those_behind_it(most: int | None) -> None:
    windows = windows_of(range(1, 7), most)
    windows.add(step(5, reward_mean=50.0))
    assert [record.step for record in windows.records] == [1, 2, 3, 4, 5]
    assert windows.records[-1].reward_mean == 50.0
    windows.add(step(1, reward_mean=10.0))
    assert windows.records == (windows.first,) == (step(1, reward_mean=10.0),)


def test_what_a_step_did_not_measure_does_not_count_and_a_phase_that_it_lacks_took_no_time() -> None:
    before = step(1, kl=None, loss=1.0, max_staleness=3, reward_parts={"a": 1.0}, version=1)
    after = step(2, kl=0.5, loss=2.0, max_staleness=1, reward_parts={"a": 0.0, "b": 0.5}, version=2)
    use = {"10.0.0.7:0": GpuUse(utilisation=0.5)}
    later = after.model_copy(update={"phase_seconds": {"rollout": 3.0, "checkpoint": 8.0}, "gpus": use})
    found = mean(before, later, 0.75)
    assert (found.step, found.time, found.version, found.gpus) == (2, 2.0, 2, use)
    assert (found.kl, found.loss, found.max_staleness) == (0.5, 1.25, 3)
    assert found.reward_parts == {"a": 0.75, "b": 0.5}
    assert found.phase_seconds == {"rollout": 1.5, "checkpoint": 2.0}
    assert found.seconds == 3.5


RUN = RunRecord(time=0.0, job="j", model="m", task="t", steps=5000, attempt=1, step=0, manifest={})


def test_a_history_of_windows_says_what_one_of_all_steps_says() -> None:
    """But for the points of its figures, which are means."""
    steps = [
        step(number, reward_mean=number / 5000, rollout_tokens=number, train_tokens=2 * number, loss=1.0)
        for number in range(1, 5001)
    ]
    evaluation = EvaluationRecord(time=1.0, step=0, sampled=0.5, greedy=None, n=4)
    whole, small = (history_of((RUN, evaluation, *steps), "events", most) for most in (None, 2000))
    assert (len(whole.steps), len(small.steps), small.windows.size) == (5000, 1250, 4)
    assert (small.step, result(small)) == (5000, result(whole))
    assert tiles(small) == tiles(whole)
    titles = [[figure.title for figure in figures(history)] for history in (whole, small)]
    assert titles[0] == titles[1]
    rewards = next(figure for figure in figures(small) if figure.title == "Reward")
    assert [name for name, _, _ in rewards.legend] == ["mean of 4 steps", "mean of the last 248 steps"]


def test_bars_of_windows_lie_side_by_side() -> None:
    history = history_of((RUN, *(step(number) for number in range(1, 51))), "events", 8)
    times = next(figure for figure in figures(history) if figure.title == "Time of a step")
    said = [tuple(map(int, found)) for found in re.findall(r"<title>steps (\d+)–(\d+), mean", times.svg)]
    assert said == [(1, 8), (9, 16), (17, 24), (25, 32), (33, 40), (41, 48), (49, 50)]
