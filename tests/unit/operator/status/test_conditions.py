"""What the conditions of a job say."""

from dataclasses import replace

import pytest

from rljob_api.control import RunState
from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def degraded(around: Surroundings) -> tuple[str, str]:
    condition = around.condition("Degraded")
    return condition["status"], condition["reason"]


def test_a_spare_worker_does_not_make_up_for_a_head_that_is_not_ready():
    """KubeRay has replaced a worker before the lost one was deleted."""
    around = Surroundings()
    around.step()
    around.pods_ready()
    workers = [pod for pod in around.observed.pods if not pod.is_head]
    heads = [replace(pod, is_ready=False) for pod in around.observed.pods if pod.is_head]
    around.observed = replace(around.observed, pods=(*workers, replace(workers[0], name="spare"), *heads))
    around.step()
    assert around.condition("ClusterReady")["status"] == "False"


def test_a_restarted_job_is_degraded_until_its_next_checkpoint(around):
    around.ends(Exit.FAILED)
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(attempt=2))
    around.step()
    assert degraded(around) == ("True", "Restarted")
    around.runs(running(attempt=2, checkpoint=3))
    around.step()
    assert degraded(around) == ("False", "AsExpected")


def test_a_job_that_has_failed_for_good_is_failed_and_not_degraded(around):
    around.ends(Exit.BAD_INPUT)
    around.step()
    assert around.condition("Failed")["status"] == "True"
    assert degraded(around) == ("False", "AsExpected")


def test_a_driver_that_ray_does_not_report_is_neither_training_nor_not(around):
    around.driver(state=DriverState.UNKNOWN)
    around.now += 60
    around.step()
    found = around.condition("Training")
    assert (found["status"], found["reason"]) == ("Unknown", "Unreachable")
    assert found["message"] == "attempt 1: Ray does not answer the operator"


def test_an_attempt_whose_engine_does_not_start_never_trains():
    around = Surroundings()
    around.step()
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(state=RunState.STARTING))
    around.step()
    around.runs(running(state=RunState.FAILED, exit_reason="EngineStartError: engine-0 ended with 1"))
    around.step()
    found = around.condition("Training")
    assert (found["status"], found["reason"]) == ("False", "NotTraining")
    assert found["message"] == "attempt 1 ends: EngineStartError: engine-0 ended with 1"
    assert around.status["phase"] == "Recovering"
    assert "Running" not in [event.reason for event in around.events]
