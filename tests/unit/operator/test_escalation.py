"""How an attempt that should end is made to end: drain, stop, delete the RayCluster, each after a deadline."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_api.sections import Recovery
from rljob_operator.escalation import STOP_S, drain_deadline_s
from rljob_operator.world import DriverState
from support.operator.operator_world import Surroundings, raw_job, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def wait(around: Surroundings, seconds: float) -> None:
    """Time passes; a driver that runs shows signs of life."""
    around.now += seconds
    around.driver(beat_at=around.now, is_stopping=False)
    around.step()


def verdict(around: Surroundings) -> int | None:
    found: int | None = around.status["attempts"][0].get("verdict")
    return found


def is_cluster_deleted(around: Surroundings) -> bool:
    return any("deletionTimestamp" in cluster["metadata"] for cluster in around.world.rayclusters())


@pytest.mark.parametrize("state", [DriverState.RUNNING, DriverState.UNKNOWN], ids=["ignores it", "unreachable"])
def test_a_suspended_driver_that_does_not_end_is_stopped_and_then_its_cluster_is_deleted(around, state):
    around.edit(suspend=True)
    around.step()
    around.driver(state=state)
    wait(around, 299)
    assert verdict(around) is None
    wait(around, 1)
    assert verdict(around) == Exit.PREEMPTED
    wait(around, STOP_S - 1)
    assert not is_cluster_deleted(around)
    wait(around, 1)
    assert is_cluster_deleted(around)
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["cause"]) == (Exit.PREEMPTED, "Suspended")
    assert around.status["phase"] == "Suspended"
    assert [step["action"] for step in around.status["recovery"]] == ["DeleteCluster"]
    assert ("Warning", "DeleteCluster") in [(event.kind, event.reason) for event in around.events]


def test_the_time_that_a_suspended_driver_had_is_named(around):
    around.runs(
        running(save_seconds=100.0).model_copy(
            update={"progress": running(step=3).progress.model_copy(update={"last_step_seconds": {"train": 500.0}})}
        )
    )
    around.edit(suspend=True)
    around.step()
    wait(around, 1800)
    assert around.status["attempts"][0]["reason"] == "suspended, and not ended within 1800 s"


@pytest.mark.parametrize("state", [DriverState.RUNNING, DriverState.UNKNOWN], ids=["ignores it", "unreachable"])
def test_the_active_deadline_ends_a_job_whose_driver_does_not_end(state):
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.driver(state=state)
    wait(around, 51)
    wait(around, STOP_S)
    assert around.condition("Failed")["reason"] == "DeadlineExceeded"
    assert is_cluster_deleted(around)


def test_the_successor_of_a_driver_that_did_not_stop_gets_another_cluster(around):
    around.now += 61
    around.step()
    assert verdict(around) == Exit.STALLED
    wait(around, STOP_S)
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-2"
    assert is_cluster_deleted(around)
    assert around.status["attempts"][0]["reason"].endswith("has not stopped for 180 s: its RayCluster is deleted")


def test_a_driver_that_stops_in_time_keeps_its_cluster(around):
    around.now += 61
    around.step()
    wait(around, STOP_S - 1)
    around.driver(state=DriverState.STOPPED)
    around.step()
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-1"
    assert not is_cluster_deleted(around)


def test_a_suspension_that_is_taken_back_stops_nothing(around):
    around.edit(suspend=True)
    around.step()
    around.edit(suspend=False)
    around.step()
    assert "endingSince" not in around.status["attempts"][0]
    wait(around, 1000)
    assert verdict(around) is None


def test_a_head_that_answers_again_has_the_whole_time_to_save(around):
    around.edit(suspend=True)
    around.step()
    around.driver(state=DriverState.UNKNOWN)
    wait(around, 200)
    around.driver(state=DriverState.RUNNING, since=around.now)
    wait(around, 299)
    assert verdict(around) is None


def test_a_new_operator_looks_before_it_deletes(around):
    around.now += 61
    around.step()
    around.now += STOP_S
    around.world = replace(around.world, driver=None)
    around.step()
    wait(around, 29)
    assert not is_cluster_deleted(around)
    wait(around, 1)
    assert is_cluster_deleted(around)


@pytest.mark.parametrize(
    ("phases", "save_s", "deadline_s"),
    [({}, None, 600), ({"train": 10.0}, None, 300), ({"train": 500.0}, 100.0, 1800), ({"checkpoint": 900.0}, 200, 600)],
)
def test_a_drain_has_the_measured_time_of_a_step_and_a_save(phases, save_s, deadline_s):
    known = running()
    progress = known.progress.model_copy(update={"last_step_seconds": phases})
    status = known.model_copy(update={"progress": progress, "save_seconds": save_s})
    assert drain_deadline_s(status, Recovery()) == deadline_s


def test_a_drain_without_any_answer_has_the_time_of_a_start():
    assert drain_deadline_s(None, Recovery(start_timeout_seconds=700)) == 700
