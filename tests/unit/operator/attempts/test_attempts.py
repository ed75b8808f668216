"""From a driver's end to what follows: warm restart, new cluster, success, failure; suspension and deadlines."""

from dataclasses import replace

import pytest

from rljob_api.control import EngineState, Finding, Progress, RunState, Status
from rljob_api.exits import Exit
from rljob_api.status import MOST_ATTEMPTS, MOST_STEPS_OF_RECOVERY
from rljob_api.status import Status as RLJobStatus
from rljob_operator.status.events import events_between
from rljob_operator.world.world import DriverState
from support.operator.operator_world import NOW, Surroundings, engines, raw_job, running

DEAD, HEALTHY = EngineState.DEAD, EngineState.HEALTHY
COLLAPSE = Finding(name="RewardCollapse", evidence="mean reward is 0.2", advice="Look at the samples.")


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def numbers(around: Surroundings) -> list[tuple[int, str]]:
    return [(attempt["number"], attempt["cluster"]) for attempt in around.status["attempts"]]


def fail(around: Surroundings, exit_code: int = Exit.FAILED) -> None:
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
    assert [cluster["metadata"]["name"] for cluster in around.observed.rayclusters()] == ["sums-7f3a1-3"]
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
        "invalid manifest; a retry will not help; its last words: ManifestError: spec.seed: x"
    )
    assert around.condition("Failed")["message"].startswith(
        "invalid manifest; a retry will not help: ManifestError: spec.seed: x; RljobBadManifest: "
    )


def test_a_failed_job_says_what_its_last_driver_said():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()
    around.runs(running(state=RunState.FAILED, exit_reason="LearnerLostError: rank 1 is gone"))
    around.ends(Exit.FAILED)
    around.step()
    message = around.condition("Failed")["message"]
    assert message.startswith("failed; see the log")
    assert "attempts without a new checkpoint: 1: LearnerLostError: rank 1 is gone; LearnerLost: " in message


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
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())


def test_a_driver_that_was_preempted_by_its_node_does_not_count_as_a_failure_of_the_run(around):
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
    around.ends(Exit.FAILED)
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
    assert [c["metadata"]["name"] for c in around.observed.rayclusters()] == ["sums-7f3a1-1"]


def test_a_successor_waits_until_the_last_pod_is_gone(around):
    around._mark_deleted("RayCluster", "sums-7f3a1-1")
    around.step()
    around.observed = replace(around.observed, children=())
    assert around.plan().apply == ()
    assert "sums-7f3a1-1-rollout-0" in around.step().status.conditions[1].message
    around.deletions_done()
    assert [child["kind"] for child in around.plan().apply][-1] == "RayCluster"


def test_a_driver_without_a_sign_of_life_is_ended(around):
    around.now += 61
    todo = around.step()
    assert todo.orders.stop
    assert "no progress" in around.status["attempts"][-1]["reason"]
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
    events = events_between(RLJobStatus.model_validate(before), RLJobStatus.model_validate(around.status))
    assert [(event.kind, event.reason) for event in events] == [("Warning", "RewardCollapse")]
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
    around.edit(suspend=True)
    todo = around.step()
    assert todo.orders.drain
    assert todo.delete == ()
    assert around.status["phase"] == "Suspending"
    around.ends(Exit.PREEMPTED)
    todo = around.step()
    assert {target.kind for target in todo.delete} == {"ConfigMap", "RayCluster"}
    assert around.status["phase"] == "Suspended"


def test_resuming_begins_another_attempt_on_a_new_cluster(around):
    around.edit(suspend=True)
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.edit(suspend=False)
    around.step()
    assert numbers(around)[-1] == (2, "sums-7f3a1-2")
    assert around.condition("Degraded")["status"] == "False"


def test_a_job_that_is_born_suspended_gets_nothing():
    around = Surroundings(raw_job(suspend=True))
    around.step()
    assert around.observed.children == ()
    assert around.status["phase"] == "Suspended"


def test_a_driver_that_cannot_save_yet_is_stopped_by_a_suspension():
    around = Surroundings().to_running()
    around.driver(status=None)
    around.edit(suspend=True)
    around.now += 31
    assert around.step().orders.stop


def test_a_suspended_driver_gets_30_seconds_to_answer_before_it_is_stopped():
    around = Surroundings().to_running()
    around.driver(status=None, since=around.now)
    around.edit(suspend=True)
    around.now += 30
    assert not around.step().orders.stop
    around.runs()
    assert around.step().orders.drain, "it answers, so it can save"


def test_an_operator_that_restarts_during_a_suspension_lets_the_driver_save(around):
    around.edit(suspend=True)
    around.now += 3600
    around.observed = replace(around.observed, driver=None)
    around.step()
    around.driver(state=DriverState.RUNNING, status=None)
    around.now += 29
    assert not around.step().orders.stop
    assert "verdict" not in around.status["attempts"][-1]


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
    around.observed = replace(around.observed, driver=None)
    around.pace = replace(around.pace, progress_due_at=0.0)
    around.token = replace(around.token, text="another")
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


def test_an_attempt_begins_with_the_checkpoint_of_the_one_before(around):
    around.runs(running(checkpoint=3))
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    assert [attempt["checkpointStep"] for attempt in around.status["attempts"]] == [3, 3]


def test_a_status_has_the_newest_attempts_and_recovery_actions_only(around):
    for number in range(1, MOST_ATTEMPTS + 3):
        around.runs(running(step=number, checkpoint=number, attempt=number))
        around.step()
        fail(around)
    assert [number for number, _ in numbers(around)] == list(range(4, MOST_ATTEMPTS + 4))
    assert len(around.status["recovery"]) == MOST_STEPS_OF_RECOVERY
    assert around.status["recovery"][-1]["target"] == f"attempt {MOST_ATTEMPTS + 3}"


def test_a_driver_is_silent_after_60_seconds_and_not_before(around):
    around.now += 60
    assert not around.step().orders.stop
    around.now += 0.5
    assert around.step().orders.stop


def test_silence_begins_again_with_each_sign_of_life(around):
    around.now += 59
    around.runs()
    around.step()
    around.now += 60
    assert not around.step().orders.stop
    around.now += 0.5
    assert around.step().orders.stop


def test_the_active_deadline_ends_a_job_whose_next_driver_has_not_started():
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.ends(Exit.LOST_PEER)
    around.step()
    around.now += 50
    around.step()
    assert around.condition("Failed")["reason"] == "DeadlineExceeded"
    assert around.status["attempts"][-1]["reason"] == "the active deadline has passed"


def test_a_job_that_is_done_in_time_has_succeeded_whenever_that_is_noticed():
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.now += 60
    around.ends(Exit.OK)
    around.step()
    assert around.status["phase"] == "Succeeded"


def test_a_verdict_explains_an_end_better_than_ray_does(around):
    around.now += 61
    around.step()
    around.driver(state=DriverState.FAILED, exit_code=-9)
    around.step()
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["reason"]) == (Exit.STALLED, "no progress for 61 s in phase start")


@pytest.mark.parametrize(
    ("seen", "code", "reason"),
    [
        ({"state": DriverState.STOPPED}, Exit.FAILED, "stopped through Ray"),
        ({"state": DriverState.FAILED, "message": "\n lost it\nand more"}, Exit.LOST_PEER, "lost it"),
        ({"state": DriverState.FAILED}, Exit.LOST_PEER, "Ray lost the driver"),
        ({"state": DriverState.SUCCEEDED}, Exit.OK, Exit.OK.meaning),
        ({"state": DriverState.FAILED, "exit_code": 5, "message": "only a line of Ray"}, 5, Exit.LOST_PEER.meaning),
    ],
)
def test_why_a_driver_ended_is_read_from_what_ray_shows(around, seen, code, reason):
    around.driver(**{"exit_code": None, "status": None, **seen})
    around.step()
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["reason"]) == (code, reason)


def test_a_long_reason_is_cut_to_500_characters(around):
    around.runs(running(exit_reason="x" * 900))
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempts"][0]["reason"] == "x" * 500


def test_engines_that_die_while_a_driver_ends_are_no_reason_to_stop_it():
    around = Surroundings(raw_job(recovery={"engineRestarts": 0})).to_running()
    around.runs(running(DEAD, DEAD, state=RunState.FINISHED))
    assert not around.step().orders.stop
    assert "verdict" not in around.status["attempts"][-1]


def test_a_suspended_job_whose_driver_failed_is_not_restarted_before_it_resumes(around):
    around.edit(suspend=True)
    around.ends(Exit.LOST_PEER)
    around.step()
    assert numbers(around) == [(1, "sums-7f3a1-1")]
    assert around.status["phase"] == "Suspended"
    around.edit(suspend=False)
    around.step()
    assert numbers(around)[-1][0] == 2


def test_a_suspension_before_the_driver_runs_frees_the_pods_at_once():
    around = Surroundings()
    around.step()
    around.edit(suspend=True)
    todo = around.step()
    assert {target.kind for target in todo.delete} == {"ConfigMap", "RayCluster"}
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["reason"]) == (Exit.PREEMPTED, "suspended before the driver started")


def test_a_finished_job_says_what_its_driver_reported_as_its_result(around):
    around.runs(running(result="accuracy 0.81 after 10 steps"))
    around.ends(Exit.OK)
    around.step()
    assert around.condition("Succeeded")["message"] == "accuracy 0.81 after 10 steps"
