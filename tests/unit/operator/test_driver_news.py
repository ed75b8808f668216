"""What is new about a driver: mere progress may wait, everything else is looked at at once."""

from dataclasses import replace

import pytest

from operator_world import NOW, engines, running
from rljob_api.control import EngineState, RunState, SavedCheckpoint
from rljob_operator.drivers import News, news_of
from rljob_operator.world import Driver, DriverState

DRIVER = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.RUNNING, status=running(step=3))


def told(**changes: object) -> Driver:
    assert DRIVER.status is not None
    return replace(DRIVER, status=DRIVER.status.model_copy(update={"revision": 9, **changes}))


def test_a_sign_of_life_is_no_news():
    assert news_of(DRIVER, replace(DRIVER, beat_at=NOW + 1)) is News.NOTHING


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": running(step=4).progress},
        {"phase": "train", "phase_since": NOW + 1, "longest_phase_seconds": 3.0, "heartbeat": NOW + 1},
    ],
    ids=["step", "phase"],
)
def test_another_step_or_phase_is_progress(changes: dict[str, object]):
    assert news_of(DRIVER, told(**changes)) is News.PROGRESS


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": SavedCheckpoint(step=3, path="checkpoints/3", verified=True)},
        {"engines": engines(EngineState.HEALTHY, EngineState.DEAD)},
        {"state": RunState.DRAINING},
        {"exit_reason": "told to end"},
    ],
    ids=["checkpoint", "engine", "state", "exit"],
)
def test_everything_else_is_a_change(changes: dict[str, object]):
    assert news_of(DRIVER, told(**changes)) is News.CHANGE


def test_while_an_engine_is_dead_progress_is_a_change_too():
    before = told(engines=engines(EngineState.DEAD))
    assert before.status is not None
    after = replace(before, status=before.status.model_copy(update={"heartbeat": NOW + 5}))
    assert news_of(before, after) is News.CHANGE


def test_what_ray_says_is_a_change():
    assert news_of(DRIVER, replace(DRIVER, state=DriverState.FAILED)) is News.CHANGE
    assert news_of(replace(DRIVER, status=None), DRIVER) is News.CHANGE
