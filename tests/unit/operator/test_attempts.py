"""From a driver's end to what follows: warm restart, new cluster, success, failure; suspension and deadlines."""

import pytest

from operator_world import NOW, Surroundings, engines, raw_job, running
from rljob_api.control import EngineState, Finding, Progress, RunState, Status
from rljob_api.exits import Exit
from rljob_api.status import Status as RLJobStatus
from rljob_operator.events import events_between
from rljob_operator.world import DriverState

DEAD, HEALTHY = EngineState.DEAD, EngineState.HEALTHY
COLLAPSE = Finding(name="RewardCollapse", evidence="mean reward is 0.2", advice="Look at the samples.")


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def numbers(around: Surroundings) -> list[tuple[int, str]]:
    return [(attempt["number"], attempt["cluster"]) for attempt in around.status["attempts"]]


def fail(around: Surroundings, exit_code: int = Exit.LOST_PEER) -> None:
    """The driver fails, and the next one is started as soon as it may be."""
    around.ends(exit_code)
    around.step()
    around.now += 100
    around.deletions_done()
    around.step()
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()


def test_a_failed_driver_is_restarted_on_the_warm_cluster(around):
    fail(around)
    assert numbers(around) == [(1, "sums-7f3a1-1"), (2, "sums-7f3a1-1")]
    assert around.submitted == ["sums-7f3a1-attempt-1", "sums-7f3a1-attempt-2"]


def test_the_second_failure_without_a_checkpoint_gets_a_new_cluster(around):
    fail(around)
    around.runs()
    around.step()
    fail(around)
    assert numbers(around)[-1] == (3, "sums-7f3a1-3")
    assert [cluster["metadata"]["name"] for cluster in around.world.rayclusters()] == ["sums-7f3a1-3"]
    assert [step["action"] for step in around.status["recovery"]] == ["RestartDriver", "ReplaceCluster"]


def test_a_new_checkpoint_keeps_the_warm_cluster(around):
    fail(around)
    around.runs(running(checkpoint=3, attempt=2))
    around.step()
    fail(around)
    assert numbers(around)[-1] == (3, "sums-7f3a1-1")


def test_a_driver_that_never_listened_is_explained_by_its_last_words(around):
    said = "Job entrypoint command failed with exit code 3, last logs:\nTraceback\nManifestError: spec.seed: x\n"
    around.driver(state=DriverState.FAILED, exit_code=int(Exit.BAD_MANIFEST), message=said, status=None)
    around.step()
    assert around.status["attempts"][0]["reason"] == (
        "the manifest breaks a rule; running it again will not help; its last words: ManifestError: spec.seed: x"
    )
    assert around.condition("Failed")["message"] == (
        "the manifest breaks a rule; running it again will not help: ManifestError: spec.seed: x"
    )


def test_a_failed_job_says_what_its_last_driver_said():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()
    around.runs(running(state=RunState.FAILED, exit_reason="LearnerLostError: rank 1 is gone"))
    around.ends(Exit.LOST_PEER)
    around.step()
    message = around.condition("Failed")["message"]
    assert message.startswith("a process that the run needs is gone")
    assert message.endswith("attempts without a new checkpoint: 1: LearnerLostError: rank 1 is gone")


def test_the_budget_ends_the_job():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()
    fail(around)
    assert around.condition("Failed")["reason"] == "BudgetExhausted"
    assert around.status["phase"] == "Failed"
    assert around.world.rayclusters() == ()


@pytest.mark.parametrize(
    ("code", "reason"), [(Exit.BAD_INPUT, "BadInput"), (Exit.DIVERGED, "Diverged"), (Exit.BAD_MANIFEST, "BadManifest")]
)
def test_what_would_fail_again_is_not_tried_again(around, code, reason):
    around.ends(code)
    around.step()
    assert around.condition("Failed")["reason"] == reason
    assert len(around.status["attempts"]) == 1


def test_a_finished_driver_is_success(around):
    around.ends(Exit.OK)
    around.step()
    assert around.condition("Succeeded")["status"] == "True"
    assert around.condition("Ready")["status"] == "True"
    assert [target.kind for target in around.plan().delete] == []
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.world.rayclusters())


def test_a_driver_that_was_preempted_by_its_node_goes_on_without_counting(around):
    around = Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()
    around.ends(Exit.PREEMPTED)
    around.step()
    assert numbers(around)[-1][0] == 2
    assert around.condition("Failed")["status"] == "Unknown"


def test_a_restart_on_a_warm_cluster_backs_off(around):
    for _ in range(2):
        fail(around)
        around.runs()
        around.step()
    around.ends(Exit.LOST_PEER)
    around.step()
    around.ray_answers()
    assert around.step().requeue_after_s == 2
    assert len(around.submitted) == 3
    around.now += 2
    around.step()
    assert around.submitted[-1] == "sums-7f3a1-attempt-4"
    assert around.condition("Training")["reason"] == "Starting"


def test_a_driver_that_ray_has_forgotten_was_lost_with_the_head(around):
    around.driver(state=DriverState.ABSENT)
    around.step()
    assert around.status["attempts"][0]["exitCode"] == Exit.LOST_PEER
    assert numbers(around)[-1][0] == 2


def test_a_lost_raycluster_gets_a_successor(around):
    around._mark_deleted("RayCluster", "sums-7f3a1-1")
    around.step()
    assert numbers(around)[-1] == (2, "sums-7f3a1-2")
    assert [c["metadata"]["name"] for c in around.world.rayclusters()] == ["sums-7f3a1-1"]


def test_a_successor_waits_until_the_last_pod_is_gone(around):
    around._mark_deleted("RayCluster", "sums-7f3a1-1")
    around.step()
    around.world = type(around.world)(**{**_fields(around.world), "children": ()})
    assert around.plan().apply == ()
    assert "sums-7f3a1-1-rollout-0" in around.step().status.conditions[1].message
    around.deletions_done()
    assert [child["kind"] for child in around.plan().apply][-1] == "RayCluster"


def _fields(world: object) -> dict:
    return {name: getattr(world, name) for name in world.__slots__}


def test_a_driver_without_a_sign_of_life_is_ended(around):
    around.now += 61
    todo = around.step()
    assert todo.orders.stop
    assert "no sign of life" in around.status["attempts"][-1]["reason"]
    around.driver(state=DriverState.STOPPED)
    around.step()
    assert around.status["attempts"][0]["exitCode"] == Exit.STALLED


def test_a_driver_that_ray_does_not_show_is_not_called_silent(around):
    around.driver(state=DriverState.UNKNOWN)
    around.now += 5000
    around.step()
    assert "verdict" not in around.status["attempts"][-1]
    assert around.condition("Training")["status"] == "Unknown"
    assert around.condition("Degraded")["reason"] == "Unreachable"


def test_a_driver_without_engines_is_ended():
    around = Surroundings(raw_job(recovery={"engineRestarts": 0})).to_running()
    around.runs(running(DEAD, DEAD))
    assert around.step().orders.stop
    assert around.status["attempts"][-1]["verdict"] == Exit.LOST_PEER


def test_a_dead_engine_is_restarted_once(around):
    around.runs(running(DEAD, HEALTHY))
    assert [order.generation for order in around.step().orders.engines] == [1]
    assert around.plan().orders.engines == ()
    assert around.status["recovery"][-1]["target"] == "engine-0 generation 1"
    assert around.condition("EnginesReady")["message"] == "1 of 2 engines are healthy; engine-0: it died"


def test_what_is_wrong_with_the_learning_is_a_condition_and_an_event(around):
    assert around.condition("Sound")["reason"] == "NothingFound"
    around.runs(running(findings=(COLLAPSE,)))
    before = around.status
    around.step()
    sound = around.condition("Sound")
    assert (sound["status"], sound["reason"]) == ("False", "RewardCollapse")
    assert sound["message"] == "RewardCollapse: mean reward is 0.2. Look at the samples."
    told = events_between(RLJobStatus.model_validate(before), RLJobStatus.model_validate(around.status))
    assert [(event.kind, event.reason) for event in told] == [("Warning", "RewardCollapse")]
    around.runs(running(findings=(COLLAPSE, COLLAPSE.model_copy(update={"name": "Mismatch"}))))
    around.step()
    assert around.condition("Sound")["reason"] == "RewardCollapse,Mismatch"
    around.runs()
    around.step()
    assert around.condition("Sound")["status"] == "True"


def test_what_was_found_last_stays_when_nobody_trains_any_more(around):
    around.runs(running(findings=(COLLAPSE,)))
    around.step()
    found = around.condition("Sound")
    around.ends(Exit.OK)
    around.step()
    assert around.status["phase"] == "Succeeded"
    assert around.condition("Sound") == found


def test_suspension_saves_first_and_frees_the_pods(around):
    around.edit(scheduling={"suspend": True})
    todo = around.step()
    assert todo.orders.drain
    assert todo.delete == ()
    assert around.status["phase"] == "Suspending"
    around.ends(Exit.PREEMPTED)
    todo = around.step()
    assert {target.kind for target in todo.delete} == {"ConfigMap", "RayCluster"}
    assert around.status["phase"] == "Suspended"


def test_resuming_begins_another_attempt_on_a_new_cluster(around):
    around.edit(scheduling={"suspend": True})
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.edit(scheduling={"suspend": False})
    around.step()
    assert numbers(around)[-1] == (2, "sums-7f3a1-2")
    assert around.condition("Degraded")["status"] == "False"


def test_a_job_that_is_born_suspended_gets_nothing():
    around = Surroundings(raw_job(scheduling={"suspend": True}))
    around.step()
    assert around.world.children == ()
    assert around.status["phase"] == "Suspended"


def test_a_driver_that_cannot_save_yet_is_stopped_by_a_suspension():
    around = Surroundings().to_running()
    around.driver(status=None)
    around.edit(scheduling={"suspend": True})
    around.now += 31
    assert around.step().orders.stop


def test_the_active_deadline_fails_the_job():
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.now += 51
    assert around.step().orders.stop
    around.driver(state=DriverState.STOPPED)
    around.step()
    assert around.condition("Failed")["reason"] == "DeadlineExceeded"


def test_a_finished_job_is_deleted_when_its_time_is_over():
    around = Surroundings(raw_job(scheduling={"ttlSecondsAfterFinished": 60})).to_running()
    around.ends(Exit.OK)
    assert around.step().requeue_after_s == 60
    around.now += 60
    assert [target.kind for target in around.plan().delete] == ["RLJob"]


def test_attempts_survive_an_operator_that_forgets_everything_else(around):
    fail(around)
    before = around.status
    around.world = type(around.world)(
        **{**_fields(around.world), "driver": None, "progress_due_at": 0.0, "fresh_token": "another"}
    )
    around.step()
    around.ray_answers()
    around.step()
    assert around.status["attempts"] == before["attempts"]
    assert len(around.submitted) == 2


def test_a_driver_that_is_starting_is_given_the_time_of_an_engine(around):
    around.runs(Status(state=RunState.STARTING, progress=Progress(), engines=engines()))
    around.now += 300
    assert not around.step().orders.stop
    around.now = NOW + 700
    assert around.step().orders.stop
