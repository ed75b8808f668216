"""A job whose first driver does not start in time fails, and says what it waited for."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.pod_stage import PodStage, Stage
from rljob_operator.world import Driver, DriverState
from support.operator.operator_world import Surroundings, raw_job

LIMIT_S = 100


@pytest.fixture
def around() -> Surroundings:
    around = Surroundings(raw_job(scheduling={"startDeadlineSeconds": LIMIT_S}))
    around.step()
    return around


def test_a_job_without_pods_fails_at_the_deadline_and_frees_them(around):
    around.pods_ready(1)
    waits = PodStage(Stage.SCHEDULING, 0.0, "0/4 nodes")
    around.world = replace(
        around.world,
        pods=tuple(replace(pod, stage=None if pod.is_ready else waits) for pod in around.world.pods),
    )
    around.now += LIMIT_S - 1
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"
    around.now += 1
    around.step()
    failed = around.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "StartDeadlineExceeded")
    assert failed["message"].startswith("no driver has started within 100 s; waited for: 1 of 3 pods are ready; ")
    assert failed["message"].endswith(": 0/4 nodes")
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.world.rayclusters())
    assert around.status["attempts"][0]["exitCode"] == Exit.STALLED


@pytest.mark.parametrize(
    ("state", "awaited"),
    [(DriverState.UNKNOWN, "an answer of Ray to the operator"), (DriverState.PENDING, "which it shows as Pending")],
)
def test_a_head_that_does_not_start_the_driver_is_named(around, state, awaited):
    around.pods_ready()
    around.step()
    around.driver(state=state)
    around.now += LIMIT_S
    around.step()
    assert awaited in around.condition("Failed")["message"]


@pytest.mark.parametrize("waited_s", [0, 29])
def test_a_new_operator_looks_for_a_driver_first(around, waited_s):
    around.pods_ready()
    around.now += LIMIT_S
    around.world = replace(around.world, driver=None)
    around.step()
    around.now += waited_s
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"
    assert isinstance(around.world.driver, Driver)
    around.driver(state=DriverState.RUNNING)
    around.step()
    around.now += 30
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"


def test_a_later_attempt_may_wait_longer(around):
    around.to_running()
    around.ends(Exit.FAILED)
    around.step()
    around.pods_ready(0)
    around.now += 10 * LIMIT_S
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"


def test_a_suspension_starts_the_time_again(around):
    around.now += LIMIT_S - 1
    around.edit(suspend=True)
    around.step()
    around.deletions_done()
    around.now += LIMIT_S
    around.edit(suspend=False)
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"
