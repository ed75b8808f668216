"""An eviction: the attempt that it ends, the next one, and what the conditions say."""

import pytest

from rljob_api.control import Progress, RunState
from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def numbers(around: Surroundings) -> list[tuple[int, str]]:
    return [(attempt["number"], attempt["cluster"]) for attempt in around.status["attempts"]]


def test_a_preempted_driver_goes_on_from_its_checkpoint_on_a_new_cluster(around):
    around.runs(running(step=6, checkpoint=6, state=RunState.FINISHED))
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    assert numbers(around) == [(1, "sums-7f3a1-1"), (2, "sums-7f3a1-2")]
    assert [attempt["checkpointStep"] for attempt in around.status["attempts"]] == [6, 6]
    assert [cluster["metadata"]["name"] for cluster in around.observed.rayclusters()] == ["sums-7f3a1-2"]


@pytest.mark.parametrize(
    ("step", "state", "exit_code"),
    [
        (6, RunState.FINISHED, Exit.PREEMPTED),
        (6, RunState.DRAINING, Exit.LOST_PEER),
        (10, RunState.FINISHED, Exit.LOST_PEER),
    ],
)
def test_a_driver_that_had_saved_before_its_head_was_gone_was_preempted(around, step, state, exit_code):
    around.runs(running(step=step, checkpoint=step, state=state, exit_reason="drained: pod sums-head is being evicted"))
    around.step()
    around.driver(state=DriverState.ABSENT)
    around.step()
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["checkpointStep"]) == (exit_code, step)
    assert (first["reason"] == "drained: pod sums-head is being evicted") is (exit_code is Exit.PREEMPTED)


def test_an_eviction_is_shown_while_the_driver_saves(around):
    around.runs(running(state=RunState.DRAINING, eviction="pod sums-1-trainer-0 is being evicted"))
    around.step()
    training = around.condition("Training")
    assert (training["status"], training["reason"]) == ("True", "Evicted")
    assert training["message"] == "attempt 1 saves and ends: pod sums-1-trainer-0 is being evicted"


@pytest.mark.parametrize(
    ("step_s", "save_s", "reason"), [(80.0, 30.0, "AsExpected"), (80.0, 31.0, "GracePeriodTooShort")]
)
def test_a_grace_period_that_is_too_short_for_a_step_and_a_save_is_reported(around, step_s, save_s, reason):
    phases = {"train": step_s, "checkpoint": 1000.0}
    progress = Progress(step=3, steps=10, last_step_seconds=phases)
    around.runs(running(progress=progress, save_seconds=save_s))
    around.step()
    degraded = around.condition("Degraded")
    assert degraded["reason"] == reason
    assert ("take about 2 min" in degraded["message"]) is (reason == "GracePeriodTooShort")
