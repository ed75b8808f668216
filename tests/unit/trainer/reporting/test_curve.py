"""The curve of a run: few points of any number of steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import MOST_CURVE_POINTS, CurvePoint
from rljob_trainer.reporting.curve import Curve, Thinned
from rljob_trainer.reporting.progress import ProgressHolder
from rljob_trainer.reporting.records import EvaluationRecord, StepRecord


def step(number: int, reward: float | None = 0.5) -> StepRecord:
    return StepRecord(
        time=0.0,
        step=number,
        reward_mean=reward,
        response_length=None,
        truncated=None,
        loss=None,
        grad_norm=None,
        learning_rate=None,
        rollout_tokens=800,
        train_tokens=900,
        version=number,
        phase_seconds={"rollout": 3.0},
    )


def evaluation(number: int, sampled: float = 0.25) -> EvaluationRecord:
    return EvaluationRecord(time=0.0, step=number, sampled=sampled, greedy=None, n=10)


def steps_of(curve: Curve) -> list[int]:
    return [point.step for point in curve.points]


def run(steps: int, every: int = 0) -> Curve:
    curve = Curve().evaluated(evaluation(0)) if every else Curve()
    for number in range(1, steps + 1):
        curve = curve.stepped(step(number))
        if every and number % every == 0:
            curve = curve.evaluated(evaluation(number))
    return curve


@given(st.integers(2, 60), st.integers(1, 500))
def test_the_first_the_newest_and_every_stride_th_point_are_kept(most: int, added: int):
    thinned = Thinned(most)
    for number in range(added):
        thinned = thinned.add(CurvePoint(step=number))
    steps = [point.step for point in thinned.points]
    assert steps == sorted({*range(0, added, thinned.stride), added - 1})
    assert len(steps) <= most


@given(st.integers(1, 700), st.integers(0, 9))
def test_a_curve_never_has_more_points_than_an_rljob_takes(steps: int, every: int):
    assert len(run(steps, every).points) <= MOST_CURVE_POINTS


def test_a_short_run_has_all_its_points():
    assert steps_of(run(20)) == list(range(1, 21))


def test_evaluations_stay_when_their_steps_are_thinned_out():
    points = run(1000, every=100).points
    assert [(point.step, point.reward) for point in points if point.accuracy is not None] == [
        (0, None),
        *((number, 0.5) for number in range(100, 1001, 100)),
    ]


def test_a_point_is_rounded_and_carries_the_speed_of_the_engines():
    (point,) = Curve().stepped(step(1, 0.123456)).points
    assert point == CurvePoint(step=1, reward=0.1235, tokens_per_second=267)


@pytest.mark.parametrize("reward", [math.nan, math.inf, None])
def test_a_reward_that_is_no_number_is_a_gap(reward: float | None):
    assert Curve().stepped(step(1, reward)).points[0].reward is None


def test_an_evaluation_that_is_done_again_takes_the_place_of_the_first():
    curve = Curve().evaluated(evaluation(0, 0.1)).evaluated(evaluation(0, 0.2))
    assert [point.accuracy for point in curve.points] == [0.2]


def test_a_driver_that_reads_the_records_again_goes_on_with_the_same_curve():
    records = [record for number in range(1, 200) for record in (step(number), evaluation(number))]
    first, second = ProgressHolder(), ProgressHolder()
    for record in records:
        first.record(record)
    for record in records[:150]:
        second.record(record)
    for record in records[150:]:
        second.record(record)
    resumed = second.progress
    assert resumed.curve == first.progress.curve
    assert (resumed.curve[0].step, resumed.curve[-1].step) == (1, 199)
