"""A job whose first driver does not start in time fails, and says what it waited for."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.queueing.ticket import Holding
from rljob_operator.queueing.tickets import ticket_of
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import Driver, DriverState
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job

LIMIT_S = 100


@pytest.fixture
def around() -> Surroundings:
    around = Surroundings(raw_job(scheduling={"startDeadlineSeconds": LIMIT_S}))
    around.step()
    return around


def test_a_job_without_pods_fails_at_the_deadline_and_frees_them(around):
    around.pods_ready(1)
    waits = PodStage(Stage.SCHEDULING, 0.0, "0/4 nodes")
    around.observed = replace(
        around.observed,
        pods=tuple(replace(pod, stage=None if pod.is_ready else waits) for pod in around.observed.pods),
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
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())
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
    around.observed = replace(around.observed, driver=None)
    around.step()
    around.now += waited_s
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"
    assert isinstance(around.observed.driver, Driver)
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


@pytest.fixture
def held() -> Surroundings:
    """Return a job that holds room in the queue, and one pod of whose first RayCluster does not start."""
    held = Surroundings()
    held.queue_decision = QueueDecision(Standing.RESERVED, "holds room", engines=2)
    held.step()
    held.pods_ready(2)
    return held


def wait_stage(around: Surroundings, stage: Stage) -> None:
    pods = (pod if pod.is_ready else replace(pod, stage=PodStage(stage, 0.0, "why")) for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=tuple(pods))


def test_an_attempt_that_does_not_start_frees_its_pods_and_gives_back_its_room(held):
    wait_stage(held, Stage.IMAGE)
    held.now += DEFAULTS.longest_start_s - 1
    held.step()
    assert not any("deletionTimestamp" in cluster["metadata"] for cluster in held.observed.rayclusters())
    held.now += 1
    held.step()
    (first,) = held.status["attempts"]
    assert first["reason"].startswith("no driver has started within 3600 s; waited for: 2 of 3 pods are ready")
    assert (first["cause"], first["exitCode"]) == ("Infrastructure", Exit.STALLED)
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in held.observed.rayclusters())
    assert held.condition("QuotaReserved")["status"] == "False"
    assert held.condition("Training")["reason"] == "BackOff"


def test_the_next_attempt_begins_with_new_room_once_the_pods_are_gone(held):
    wait_stage(held, Stage.IMAGE)
    held.now += DEFAULTS.longest_start_s
    held.step()
    held.step()
    assert held.status["attempt"] == 1
    held.deletions_done()
    held.step()
    assert held.status["attempt"] == 2
    assert [cluster["metadata"]["name"] for cluster in held.observed.rayclusters()] == ["sums-7f3a1-2"]


def test_one_that_did_not_start_comes_after_those_that_wait(held):
    wait_stage(held, Stage.IMAGE)
    held.now += DEFAULTS.longest_start_s
    held.step()
    ticket = ticket_of(admitted(held.raw), NOW, (), False, None)
    assert (ticket.holding, ticket.created) == (Holding.NOTHING, held.now)


def test_a_job_whose_pods_never_start_fails_in_the_end():
    around = Surroundings(raw_job(recovery={"infrastructureRestarts": 1}))
    for _ in range(2):
        around.step()
        around.pods_ready(2)
        around.observed = replace(around.observed, pods=tuple(replace(pod, node="n") for pod in around.observed.pods))
        wait_stage(around, Stage.IMAGE)
        around.now += DEFAULTS.longest_start_s + 60
        around.step()
        around.deletions_done()
        around.step()
    assert around.status["phase"] == "Failed"
    assert "no driver has started within 3600 s" in around.condition("Failed")["message"]


def test_the_want_of_nodes_is_nobody_s_failure(held):
    wait_stage(held, Stage.SCHEDULING)
    held.now += DEFAULTS.longest_start_s
    held.step()
    assert held.status["attempts"][0]["cause"] == "Suspended"


def test_a_job_in_no_queue_that_holds_no_node_waits_for_a_scheduler_as_long_as_it_takes():
    around = Surroundings()
    around.step()
    around.pods_ready(0)
    wait_stage(around, Stage.SCHEDULING)
    around.now += 30 * 86400
    around.step()
    assert "ended" not in around.status["attempts"][0]


def test_a_later_attempt_has_the_same_bound():
    around = Surroundings().to_running()
    around.ends(Exit.FAILED)
    around.step()
    around.pods_ready(2)
    around.observed = replace(around.observed, pods=tuple(replace(pod, node="n") for pod in around.observed.pods))
    around.now += DEFAULTS.longest_start_s + 60
    around.step()
    assert "ended" in around.status["attempts"][1]


def test_a_raycluster_that_is_suspended_by_hand_is_named_and_replaced_in_time(held):
    held.observed.rayclusters()[0]["spec"]["suspend"] = True
    held.observed = replace(held.observed, pods=())
    held.step()
    assert held.condition("Training")["reason"] == "RayClusterSuspended"
    held.now += DEFAULTS.longest_start_s
    held.step()
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in held.observed.rayclusters())
    held.deletions_done()
    held.step()
    assert held.status["attempts"][1]["cluster"] == "sums-7f3a1-2"


def test_a_suspension_starts_the_time_again(around):
    around.now += LIMIT_S - 1
    around.edit(suspend=True)
    around.step()
    around.deletions_done()
    around.now += LIMIT_S
    around.edit(suspend=False)
    around.step()
    assert around.condition("Failed")["status"] == "Unknown"
