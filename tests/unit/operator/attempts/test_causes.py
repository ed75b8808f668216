"""What the end of an attempt counts as: a failure of the run, of the infrastructure, or a suspension."""

from dataclasses import replace

import pytest

from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import NOW, Surroundings, raw_job, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def cause(around: Surroundings) -> str:
    """Carry the end out, and return what it counts as."""
    around.step()
    found: str = around.status["attempts"][0]["cause"]
    return found


def change_a_pod(around: Surroundings, **changes: object) -> None:
    first, *others = around.observed.pods
    around.observed = replace(around.observed, pods=(replace(first, **changes), *others))


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.STALLED, Exit.IN_USE, -9])
def test_a_driver_that_fails_while_all_pods_are_well_has_failed_by_itself(around, code):
    around.ends(code)
    assert cause(around) == "Application"


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.LOST_PEER, Exit.STALLED, -9])
@pytest.mark.parametrize(
    "changes", [{"is_ready": False}, {"is_deleting": True}, {"created": NOW + 1}], ids=["not ready", "gone", "replaced"]
)
def test_a_failure_with_a_lost_pod_is_the_infrastructure_s(around, code, changes):
    change_a_pod(around, **changes)
    around.ends(code)
    assert cause(around) == "Infrastructure"


def test_a_pod_that_is_as_old_as_the_driver_is_no_successor(around):
    change_a_pod(around, created=NOW)
    around.ends(Exit.FAILED)
    assert cause(around) == "Application"


def test_running_out_of_memory_is_the_run_s_own_failure(around):
    change_a_pod(around, is_ready=False, out_of_memory_at=NOW + 1)
    around.ends(Exit.LOST_PEER)
    assert cause(around) == "Application"


def test_what_ran_out_of_memory_before_the_attempt_says_nothing_about_it(around):
    change_a_pod(around, is_ready=False, out_of_memory_at=NOW - 1)
    around.ends(Exit.LOST_PEER)
    assert cause(around) == "Infrastructure"


def test_a_drain_whose_suspension_is_taken_back_is_still_a_suspension():
    around = Surroundings(raw_job(recovery={"infrastructureRestarts": 0})).to_running()
    around.edit(suspend=True)
    around.step()
    around.edit(suspend=False)
    around.step()
    around.ends(Exit.PREEMPTED)
    assert cause(around) == "Suspended"
    assert around.status["restarts"] == 0
    assert around.condition("Failed")["status"] == "Unknown"


def test_a_driver_that_reports_it_ran_out_of_memory_is_believed(around):
    change_a_pod(around, is_ready=False)
    around.ends(Exit.OUT_OF_MEMORY)
    assert cause(around) == "Application"


def test_a_head_that_has_restarted_is_the_infrastructure_s_failure(around):
    around.driver(state=DriverState.ABSENT)
    assert cause(around) == "Infrastructure"


def test_a_lost_process_is_the_infrastructure_s_if_the_run_got_further(around):
    around.ends(Exit.LOST_PEER)
    assert cause(around) == "Infrastructure"


@pytest.mark.parametrize(("step", "found"), [(3, "Application"), (4, "Infrastructure")])
def test_a_process_that_is_lost_at_the_same_step_again_is_the_run_s_failure(around, step, found):
    around.ends(Exit.FAILED)
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(step=step, attempt=2))
    around.step()
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempts"][1]["cause"] == found
    assert around.status["attempts"][1]["step"] == step


def test_a_run_that_loses_all_engines_at_the_same_step_again_has_failed_by_itself():
    around = Surroundings(raw_job(recovery={"engineRestarts": 0})).to_running()
    for attempt in (1, 2):
        around.runs(running(EngineState.DEAD, EngineState.DEAD, attempt=attempt))
        around.step()
        around.driver(state=DriverState.STOPPED)
        around.step()
        around.ray_answers()
        around.step()
    assert [attempt["cause"] for attempt in around.status["attempts"][:2]] == ["Infrastructure", "Application"]


def test_a_step_that_only_the_status_has_seen_counts(around):
    """An operator that has restarted never got an answer of the driver."""
    around.driver(status=None, state=DriverState.ABSENT)
    around.step()
    assert around.status["attempts"][0]["step"] == 3
