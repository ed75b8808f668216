"""What a decision in the queue makes of a job: its plan, its status, and its pods."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.control import RunState
from rljob_api.exits import Exit
from rljob_operator.world.queue_decision import QueueDecision, Standing
from support.operator.operator_world import NOW, Surroundings, raw_job, running

RESERVED = QueueDecision(Standing.RESERVED, "it holds room for 3 pods with 4 slots", engines=2)
QUEUED = QueueDecision(Standing.QUEUED, "needs 4 × nvidia.com/gpu; matching nodes have 0 × nvidia.com/gpu free", 2, NOW)
PREEMPTED = QueueDecision(
    Standing.PREEMPTED, "ml/urgent has a higher priority and needs its room", preempted_for="ml/urgent"
)
UNDECIDED = QueueDecision(Standing.UNDECIDED)
NEVER = QueueDecision(Standing.NEVER, "needs 4 × nvidia.com/gpu; ResourceQuota gpus allows 2 × nvidia.com/gpu in all")


def around_with(decision: QueueDecision | None, **sections: Any) -> Surroundings:
    around = Surroundings(raw_job(**sections))
    around.queue_decision = decision
    return around


def test_nothing_is_done_about_a_job_that_the_queue_has_not_looked_at():
    assert around_with(UNDECIDED).plan().is_empty


def test_a_job_that_waits_has_no_pods_and_says_for_what():
    around = around_with(QUEUED)
    todo = around.step()
    assert todo.apply == ()
    assert around.status["phase"] == "Queued"
    assert around.status["queue"]["position"] == 2
    assert around.status["attempts"] == []
    text = f"position 2 in the queue: {QUEUED.text}"
    assert around.condition("QuotaReserved") | {"lastTransitionTime": ""} == {
        "type": "QuotaReserved",
        "status": "False",
        "observedGeneration": 1,
        "lastTransitionTime": "",
        "reason": "Queued",
        "message": text,
    }
    assert around.condition("Ready")["message"] == text
    assert around.condition("Reconciling")["status"] == "True"
    assert todo.waiting is not None
    assert (todo.waiting.blocker, todo.waiting.text) == ("Queue", text)


def test_a_job_that_can_never_fit_says_so():
    around = around_with(NEVER)
    around.step()
    assert around.status["phase"] == "Queued"
    assert around.condition("Ready")["reason"] == "NeverFits"
    assert around.condition("QuotaReserved")["reason"] == "NeverFits"


def test_a_job_that_has_room_begins_and_its_status_holds_the_reservation_first():
    around = around_with(RESERVED)
    todo = around.step()
    assert todo.status is not None
    assert around.condition("QuotaReserved")["status"] == "True"
    assert around.status["queue"]["engines"] == 2
    assert "position" not in around.status["queue"]
    assert any(child["kind"] == "RayCluster" for child in todo.apply)


def test_a_job_that_is_in_no_queue_of_ours_has_no_condition_of_it():
    around = around_with(None)
    around.step()
    assert all(each["type"] != "QuotaReserved" for each in around.status["conditions"])
    assert "queue" not in around.status


def test_a_job_that_waited_begins_when_room_is_reserved():
    around = around_with(QUEUED)
    around.step()
    around.queue_decision = RESERVED
    around.now += 60
    around.step()
    assert around.status["phase"] == "Provisioning"
    assert around.status["attempts"][0]["number"] == 1
    assert around.status["queue"]["since"] == "2027-01-15T08:01:00Z"


def test_a_move_in_the_queue_is_written_later():
    around = around_with(QUEUED)
    around.step()
    around.queue_decision = replace(QUEUED, position=1, text="needs less")
    todo = around.plan()
    assert todo.status is None
    assert todo.requeue_after_s == 15
    around.now += 15
    around.step()
    assert around.status["queue"]["position"] == 1
    assert around.condition("Ready")["message"] == "position 1 in the queue: needs less"
    assert around.status["queue"]["since"] == "2027-01-15T08:00:00Z"


# Preemption.


def preempted() -> Surroundings:
    around = around_with(RESERVED).to_running()
    around.runs(running(step=5, checkpoint=4))
    around.step()
    around.queue_decision = PREEMPTED
    around.step()
    return around


def test_a_preempted_job_saves_and_ends():
    around = preempted()
    assert around.status["phase"] == "Suspending"
    assert around.observed.driver is not None
    assert around.observed.driver.status is not None
    assert around.observed.driver.status.state is RunState.DRAINING
    assert around.condition("QuotaReserved")["reason"] == "Preempted"
    assert around.status["queue"]["preemptedFor"] == "ml/urgent"
    assert "ml/urgent" in around.condition("Ready")["message"]


def test_a_preempted_job_is_queued_again_and_counts_as_no_failure():
    around = preempted()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.queue_decision = QUEUED
    around.step()
    assert around.observed.rayclusters() == ()
    assert around.status["phase"] == "Queued"
    assert around.status["attempts"][0]["cause"] == "Suspended"
    assert around.status["restarts"] == 0
    assert "preemptedFor" not in around.status["queue"]
    assert around.status["phase"] == "Queued"


def test_a_preempted_job_resumes_from_its_checkpoint_when_it_has_room_again():
    around = preempted()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.queue_decision = QUEUED
    around.step()
    around.queue_decision = RESERVED
    around.step()
    assert [each["number"] for each in around.status["attempts"]] == [1, 2]
    assert around.status["attempts"][1]["checkpointStep"] == 4
    assert around.status["phase"] in ("Recovering", "Provisioning")


def test_a_preempted_job_whose_driver_has_not_started_frees_its_pods_at_once():
    around = around_with(RESERVED)
    around.step()
    around.pods_ready(1)
    around.queue_decision = PREEMPTED
    around.step()
    assert around.status["attempts"][0]["reason"] == "preempted before the driver started"
    assert all("deletionTimestamp" in each["metadata"] for each in around.observed.rayclusters())


def test_a_preempted_driver_that_does_not_end_is_stopped():
    around = preempted()
    around.now += 10_000
    around.runs(running(step=5, checkpoint=4))
    around.step()
    assert around.status["attempts"][0]["verdict"] == Exit.PREEMPTED
    assert around.status["attempts"][0]["reason"].startswith("preempted, and not ended within")


# Its own end.


def test_a_suspended_job_gives_its_reservation_back():
    around = around_with(RESERVED, suspend=True)
    around.step()
    assert around.condition("QuotaReserved")["reason"] == "Suspended"
    assert around.status["phase"] == "Suspended"


def test_a_job_that_saves_because_somebody_suspended_it_holds_its_room_meanwhile():
    around = around_with(RESERVED).to_running()
    around.edit(suspend=True)
    around.step()
    assert around.condition("QuotaReserved")["status"] == "True"


def test_a_job_that_has_ended_gives_its_reservation_back():
    around = around_with(RESERVED).to_running()
    around.ends(0)
    around.step()
    assert around.status["phase"] == "Succeeded"
    assert around.condition("QuotaReserved")["reason"] == "Finished"
    assert "queue" not in around.status


@pytest.mark.parametrize("found", [QUEUED, UNDECIDED, PREEMPTED])
def test_a_job_that_has_ended_stays_ended_whatever_the_queue_decides(found):
    around = around_with(RESERVED).to_running()
    around.ends(0)
    around.step()
    around.deletions_done()
    around.step()
    around.queue_decision = found
    around.step()
    assert around.status["phase"] == "Succeeded"


def resumed(found: QueueDecision, **sections: Any) -> Surroundings:
    """Return a job that has failed, was resumed, and has this decision."""
    around = around_with(RESERVED, **sections).to_running()
    around.ends(Exit.BAD_INPUT)
    around.step()
    around.deletions_done()
    around.queue_decision = found
    around.edit(recovery={"resumes": 1})
    around.step()
    return around


def test_a_job_that_is_resumed_waits_for_room_without_pods():
    around = resumed(QUEUED)
    assert around.observed.rayclusters() == ()
    assert around.status["queue"]["position"] == 2
    assert around.condition("QuotaReserved")["reason"] == "Queued"
    around.queue_decision = RESERVED
    around.step()
    assert around.status["attempts"][-1]["number"] == 2
    assert around.condition("QuotaReserved")["status"] == "True"


def test_a_job_that_waits_to_be_resumed_outlives_its_time_to_live():
    around = resumed(QUEUED, scheduling={"ttlSecondsAfterFinished": 60})
    around.now += 61
    assert around.plan().delete == ()


# Engines.


def test_a_job_has_no_more_engines_than_it_holds_room_for():
    around = around_with(RESERVED).to_running()
    around.scale(4)
    around.step()
    (cluster,) = around.observed.rayclusters()
    assert [group["replicas"] for group in cluster["spec"]["workerGroupSpecs"]] == [1, 1]
    around.queue_decision = replace(RESERVED, engines=4)
    around.step()
    (cluster,) = around.observed.rayclusters()
    assert [group["replicas"] for group in cluster["spec"]["workerGroupSpecs"]] == [1, 2]
    assert around.status["queue"]["engines"] == 4
