"""What is new about a driver: mere progress may wait, everything else is looked at at once."""

from dataclasses import replace

import pytest

from rljob_api.control import EngineState, RunState, SavedCheckpoint
from rljob_operator.world.driver_news import (
    GRACE,
    News,
    RayAnswer,
    after_answer,
    after_no_answer,
    after_refusal,
    after_report,
    news_of,
)
from rljob_operator.world.world import SILENT_S, Driver, DriverState
from support.operator.operator_world import NOW, engines, running

DRIVER = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.RUNNING, status=running(step=3))


def reported(**changes: object) -> Driver:
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
    assert news_of(DRIVER, reported(**changes)) is News.PROGRESS


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": SavedCheckpoint(step=3, path="checkpoints/3", verified=True)},
        {"engines": engines(EngineState.HEALTHY, EngineState.DEAD)},
        {"state": RunState.DRAINING},
        {"exit_reason": "asked to end"},
    ],
    ids=["checkpoint", "engine", "state", "exit"],
)
def test_everything_else_is_a_change(changes: dict[str, object]):
    assert news_of(DRIVER, reported(**changes)) is News.CHANGE


def test_while_an_engine_is_dead_progress_is_a_change_too():
    before = reported(engines=engines(EngineState.DEAD))
    assert before.status is not None
    after = replace(before, status=before.status.model_copy(update={"heartbeat": NOW + 5}))
    assert news_of(before, after) is News.CHANGE


def test_an_answer_of_ray_is_a_change():
    assert news_of(DRIVER, replace(DRIVER, state=DriverState.FAILED)) is News.CHANGE
    assert news_of(replace(DRIVER, status=None), DRIVER) is News.CHANGE


@pytest.mark.parametrize("attempt", [1, 3], ids=["older", "newer"])
def test_the_status_of_another_attempt_is_not_believed(attempt: int):
    assert after_report(DRIVER, running(attempt=attempt), attempt=2, now=NOW) is None


def test_a_report_with_a_new_heartbeat_is_a_sign_of_life():
    seen = after_report(DRIVER, running(step=3, attempt=1, heartbeat=NOW + 5), attempt=1, now=NOW + 6)
    assert seen is not None
    assert (seen.status, seen.beat_at) == (running(step=3, attempt=1, heartbeat=NOW + 5), NOW + 6)


def test_a_report_with_the_old_heartbeat_is_no_sign_of_life():
    driver = replace(DRIVER, beat_at=NOW)
    seen = after_report(driver, running(step=4, attempt=1), attempt=1, now=NOW + 6)
    assert seen is not None
    assert (seen.status, seen.beat_at) == (running(step=4, attempt=1), NOW)


def test_the_first_report_is_a_sign_of_life():
    seen = after_report(replace(DRIVER, status=None), running(attempt=1), attempt=1, now=NOW + 6)
    assert seen is not None
    assert seen.beat_at == NOW + 6


@pytest.mark.parametrize(
    ("before", "turned"), [(DriverState.UNKNOWN, NOW + 9), (DriverState.PENDING, NOW), (DriverState.RUNNING, NOW)]
)
def test_an_answer_says_what_became_of_the_driver_and_never_moves_the_begin_of_the_watch(before, turned):
    seen = after_answer(replace(DRIVER, state=before), RayAnswer(DriverState.FAILED, 5, "its end"), NOW + 9)
    assert (seen.since, seen.turned) == (NOW, turned)
    assert (seen.state, seen.exit_code, seen.message) == (DriverState.FAILED, 5, "its end")


def test_one_silence_gives_a_driver_time_to_report_and_the_next_ones_give_no_more():
    silent, answer = replace(DRIVER, state=DriverState.UNKNOWN), RayAnswer(DriverState.RUNNING)
    seen = after_answer(silent, answer, NOW)
    for _ in range(GRACE):
        seen = after_answer(replace(seen, state=DriverState.RUNNING), answer, NOW)
    assert after_answer(replace(seen, state=DriverState.UNKNOWN), answer, NOW).grace == 0


def test_a_sign_of_life_gives_the_next_silence_its_time():
    seen = after_report(replace(DRIVER, grace=0), running(step=3, heartbeat=NOW + 5), attempt=1, now=NOW + 6)
    assert seen is not None
    assert seen.grace is None


@pytest.mark.parametrize("silent_s", [0, SILENT_S])
def test_one_failed_request_does_not_make_a_driver_unreachable(silent_s: float):
    assert after_no_answer(DRIVER, NOW, NOW + silent_s) == DRIVER


def test_a_driver_is_unreachable_after_20_seconds_without_an_answer():
    assert after_no_answer(DRIVER, NOW, NOW + 20.5) == replace(DRIVER, state=DriverState.UNKNOWN, turned_at=NOW)


def test_the_progress_of_a_driver_without_healthy_engines_is_a_change():
    before = reported(engines=engines(EngineState.HEALTHY, EngineState.SUSPECT))
    assert before.status is not None
    after = replace(before, status=before.status.model_copy(update={"progress": running(step=9).progress}))
    assert news_of(before, after) is News.CHANGE


def test_a_refusal_counts_from_the_first_one():
    first = after_refusal(DRIVER, NOW)
    assert first.refuses_since == NOW
    assert after_refusal(first, NOW + 30) == replace(first, refused_at=NOW + 30)
    assert news_of(first, after_refusal(first, NOW + 30)) is News.NOTHING


@pytest.mark.parametrize(("later_s", "refuses"), [(5, True), (SILENT_S + 1, False)])
def test_ray_s_answer_ends_a_refusal_that_is_over(later_s: float, refuses: bool):
    seen = after_answer(after_refusal(DRIVER, NOW), RayAnswer(DriverState.RUNNING), NOW + later_s)
    assert (seen.refuses_since is not None) is refuses


def test_a_report_ends_a_refusal():
    refusing = after_refusal(DRIVER, NOW)
    assert refusing.status is not None
    assert after_report(refusing, refusing.status, refusing.status.attempt, NOW + 30).refuses_since is None
