"""What one plan holds: admission, children and their drift, the status, events, and the pace of writing."""

from dataclasses import replace

import pytest

from rljob_api.control import EngineState, RunState
from rljob_api.exits import Exit
from rljob_api.status import ConditionType
from rljob_operator.plan import NO_ORDERS, Follow, progress_s
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.world import SILENT_S, Defaults, DriverState, Pod
from support.operator.operator_world import NOW, Surroundings, raw_job, running


def kinds(manifests: tuple) -> list[str]:
    return [manifest["kind"] for manifest in manifests]


def test_a_new_job_gets_its_children_at_once():
    todo = Surroundings().plan()
    assert kinds(todo.apply) == ["ConfigMap", "Service", "NetworkPolicy", "RayCluster"]
    assert todo.secret is not None
    assert todo.status.phase == "Provisioning"
    assert all(child["metadata"]["ownerReferences"][0]["controller"] for child in (*todo.apply, todo.secret))


def test_every_condition_is_always_there_but_quota():
    around = Surroundings()
    around.step()
    written = {condition["type"] for condition in around.status["conditions"]}
    assert written == {str(kind) for kind in ConditionType} - {"QuotaReserved"}


def test_a_bad_manifest_is_a_condition_that_names_the_field():
    around = Surroundings(raw_job(training={"steps": -1}))
    around.step()
    assert around.condition("Admitted")["reason"] == "BadManifest"
    assert "spec.training.steps" in around.condition("Admitted")["message"]
    assert around.condition("Stalled")["status"] == "True"
    assert around.observed.children == ()


def test_a_job_without_any_image_is_not_admitted():
    around = Surroundings()
    around.defaults = Defaults(storage=around.defaults.storage)
    around.step()
    assert around.condition("Admitted")["reason"] == "NoImage"


def test_checkpoints_that_only_one_pod_would_see_are_not_admitted():
    around = Surroundings(raw_job(checkpoint={"directory": "/tmp/runs"}))
    around.step()
    assert around.condition("Admitted")["reason"] == "CheckpointsNotShared"


def test_a_manifest_that_is_mended_is_admitted():
    around = Surroundings(raw_job(training={"steps": -1}))
    around.step()
    around.edit(training={"steps": 5})
    around.step()
    assert around.condition("Admitted")["status"] == "True"
    assert around.condition("Stalled")["status"] == "False"
    assert around.observed.rayclusters()


def test_a_child_that_somebody_changed_is_applied_again():
    around = Surroundings()
    around.step()
    cluster = around.observed.rayclusters()[0]
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = 7
    assert kinds(around.plan().apply) == ["RayCluster"]


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.FAILED])
def test_a_driver_that_reports_its_end_gets_no_orders(state: RunState):
    around = Surroundings().to_running()
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY, state=state))
    around.edit(suspend=True)
    assert around.step().orders == NO_ORDERS


def test_what_is_being_deleted_is_not_deleted_again():
    around = Surroundings().to_running()
    around.edit(suspend=True)
    around.step()
    around.ends(Exit.PREEMPTED)
    assert [target.kind for target in around.step().delete] == ["RayCluster", "ConfigMap"], "its GPUs are free first"
    assert around.plan().delete == ()


def test_a_child_that_is_being_deleted_is_not_applied():
    around = Surroundings()
    around.step()
    (service,) = (child for child in around.observed.children if child["kind"] == "Service")
    service["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    service["spec"]["selector"] = {}
    assert around.plan().apply == ()


@pytest.mark.parametrize("field", ["labels", "ownerReferences"])
def test_a_label_or_owner_that_somebody_removed_is_applied_again(field):
    around = Surroundings().to_running()
    del around.observed.rayclusters()[0]["metadata"][field]
    assert kinds(around.plan().apply) == ["RayCluster"]


def test_a_child_that_somebody_added_to_is_left_alone():
    around = Surroundings()
    around.step()
    around.observed.rayclusters()[0]["spec"]["suspend"] = True
    assert around.plan().apply == ()


def test_what_changes_in_flight_reaches_the_driver_s_next_attempt():
    around = Surroundings().to_running()
    around.edit(recovery={"healthFailures": 9})
    assert kinds(around.plan().apply) == ["ConfigMap"]
    assert "immutable" not in around.plan().apply[0]


def test_a_changed_spec_leaves_the_present_cluster_as_it_was_built():
    around = Surroundings().to_running()
    around.edit(scheduling={"nodeSelector": {"pool": "other"}})
    assert around.plan().apply == ()
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-2"


def test_the_driver_is_submitted_when_all_pods_are_ready_and_not_before():
    around = Surroundings()
    around.step()
    around.pods_ready(2)
    around.step()
    around.ray_answers()
    around.step()
    assert around.submitted == []
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    assert around.submitted == ["sums-7f3a1-attempt-1"]


def test_a_head_alone_is_not_enough_for_a_driver():
    around = Surroundings()
    around.step()
    around.pods_ready()
    workers_down = tuple(replace(pod, is_ready=pod.is_head) for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=workers_down)
    around.step()
    around.ray_answers()
    around.step()
    assert around.submitted == []


def test_waiting_names_the_first_pod_in_trouble():
    around = Surroundings()
    around.step()
    stage = PodStage(Stage.SCHEDULING, NOW - 60, "0/2 nodes: no gpu")
    around.observed = replace(
        around.observed, pods=(Pod("sums-7f3a1-1-x", "sums-7f3a1-1", False, False, False, stage),)
    )
    around.step()
    assert around.condition("ClusterReady")["message"] == (
        "0 of 3 pods are ready; sums-7f3a1-1-x: 0/2 nodes: no gpu (since 2027-01-15 07:59:00 UTC)"
    )


def test_waiting_says_why_kuberay_cannot_make_a_pod():
    here = Surroundings()
    here.step()
    (cluster,) = here.observed.rayclusters()
    message = (
        'FailedCreateHeadPod\npods "sums-7f3a1-1-head-x2c4v" is forbidden: violates PodSecurity "restricted:latest"'
    )
    cluster["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}
    here.step()
    assert here.condition("ClusterReady")["message"] == (
        '0 of 3 pods are ready; FailedCreateHeadPod a pod is forbidden: violates PodSecurity "restricted:latest"'
    )


def test_waiting_says_which_child_the_api_server_does_not_take():
    here = Surroundings()
    here.observed = replace(here.observed, refused="RayCluster sums-7f3a1-1: 422 spec.volumes is wrong")
    here.step()
    assert "RayCluster sums-7f3a1-1: 422" in here.condition("ClusterReady")["message"]


def test_progress_is_written_at_most_every_15_seconds():
    around = Surroundings().to_running()
    around.now += 1
    around.runs(running(step=4))
    todo = around.plan()
    assert todo.status is None
    assert todo.requeue_after_s == 14
    around.now += 14
    assert around.plan().status.progress.step == 4


def test_progress_of_many_jobs_leaves_the_api_server_time_for_other_things():
    assert progress_s(1) == progress_s(150) == 15
    assert progress_s(1000) == 100


def test_news_does_not_wait_for_progress():
    around = Surroundings().to_running()
    around.now += 1
    around.runs(running(step=4, checkpoint=4))
    assert around.plan().status.last_checkpoint.step == 4


def test_transition_times_change_only_with_the_status():
    around = Surroundings()
    around.step()
    before = around.condition("ClusterReady")["lastTransitionTime"]
    around.now += 50
    around.pods_ready(1)
    around.step()
    assert around.condition("ClusterReady")["lastTransitionTime"] == before
    assert around.condition("ClusterReady")["message"] == "1 of 3 pods are ready"


def test_the_life_of_a_job_in_events():
    around = Surroundings().to_running()
    around.ends(Exit.OK)
    around.step()
    assert [event.reason for event in around.events] == ["PodsReady", "Running", "Completed"]


def test_failures_are_warnings():
    around = Surroundings().to_running()
    around.ends(Exit.LOST_PEER)
    around.step()
    warnings = [event.reason for event in around.events if event.kind == "Warning"]
    assert warnings == ["Restarted", "RestartDriver"]


def test_an_operator_that_begins_says_nothing_of_a_driver_before_it_has_looked():
    here = Surroundings().to_running()
    before = here.status
    here.observed = replace(here.observed, driver=None)
    here.step()
    here.step()
    here.driver(state=DriverState.RUNNING, status=None)
    here.step()
    assert here.status == before
    here.runs()
    here.step()
    assert here.status["phase"] == "Training"


def test_a_driver_that_a_new_operator_does_not_find_is_unreachable():
    here = Surroundings().to_running()
    here.observed = replace(here.observed, driver=None)
    requeue_after_s = here.step().requeue_after_s
    assert requeue_after_s is not None
    assert requeue_after_s <= SILENT_S
    here.now += requeue_after_s
    here.step()
    assert here.condition("Training")["reason"] == "Unreachable"


def test_a_job_that_is_being_deleted_is_left_to_its_owner_references():
    around = Surroundings()
    around.raw["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert around.plan().is_empty


@pytest.mark.parametrize(
    ("ready", "reconciling", "stalled", "exit_code"),
    [("True", "False", "False", None), ("True", "False", "False", 0), ("False", "False", "True", Exit.DIVERGED)],
)
def test_kstatus_reads_the_summary(ready, reconciling, stalled, exit_code):
    around = Surroundings().to_running()
    if exit_code is not None:
        around.ends(exit_code)
    around.step()
    found = [around.condition(kind)["status"] for kind in ("Ready", "Reconciling", "Stalled")]
    assert found == [ready, reconciling, stalled]


def test_what_is_deleted_is_named_by_its_uid():
    around = Surroundings().to_running()
    around.ends(Exit.OK)
    assert [(target.kind, target.namespace, target.name, target.uid) for target in around.plan().delete] == [
        (kind, "ml", "sums-7f3a1-1", f"uid-of-{kind}-sums-7f3a1-1") for kind in ("RayCluster", "ConfigMap")
    ]


def test_a_job_whose_time_to_live_is_over_is_named_by_its_own_uid():
    around = Surroundings(raw_job(scheduling={"ttlSecondsAfterFinished": 0})).to_running()
    around.ends(Exit.OK)
    target = around.plan().delete[-1]
    assert (target.kind, target.name, target.uid) == ("RLJob", "sums", around.job.uid)


def test_a_running_job_is_drained_once_and_only_when_it_is_suspended():
    around = Surroundings().to_running()
    assert not around.plan().orders.drain
    around.edit(suspend=True)
    assert [around.step().orders.drain, around.plan().orders.drain] == [True, False]


def test_the_operator_follows_the_driver_of_the_newest_attempt():
    around = Surroundings().to_running()
    assert around.plan().follow == Follow("sums-7f3a1-attempt-1", 1, "ml", "sums-7f3a1-driver")
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.plan().follow == Follow("sums-7f3a1-attempt-2", 2, "ml", "sums-7f3a1-driver")


def test_a_plan_wakes_up_for_the_deadline():
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.now += 45
    around.runs()
    assert around.plan().requeue_after_s == 5


def test_a_stop_is_ordered_until_ray_accepts_it():
    around = Surroundings().to_running()
    around.now += 61
    assert around.plan().orders.stop
    around.step()
    assert not around.plan().orders.stop


def deleted(around: Surroundings) -> list[tuple[str, str]]:
    return [(target.kind, target.name) for target in around.plan().delete]


@pytest.mark.parametrize("exit_code", [Exit.OK, Exit.BAD_INPUT])
def test_a_job_that_has_ended_keeps_no_child_once_its_pods_are_gone(exit_code):
    around = Surroundings().to_running()
    around.ends(exit_code)
    around.step()
    pods = around.observed.pods
    around.deletions_done()
    around.observed = replace(around.observed, pods=pods)
    assert deleted(around) == [], "the NetworkPolicy stays as long as the pods"
    around.observed = replace(around.observed, pods=())
    assert deleted(around) == [
        ("Secret", "sums-7f3a1"),
        ("Secret", "sums-7f3a1-key"),
        ("Service", "sums-7f3a1-driver"),
        ("NetworkPolicy", "sums-7f3a1"),
    ]
    assert {target.namespace for target in around.plan().delete} == {"ml"}
    around.step()
    assert deleted(around) == []
    around.deletions_done()
    assert around.observed.children == ()
    assert around.plan().is_empty


def test_a_refused_job_that_has_ended_keeps_no_child_either():
    around = Surroundings().to_running()
    around.ends(Exit.OK)
    around.step()
    around.deletions_done()
    around.observed = replace(around.observed, pods=())
    around.edit(training={"steps": 0})
    assert [kind for kind, _ in deleted(around)] == ["Secret", "Secret", "Service", "NetworkPolicy"]


def test_a_suspended_job_keeps_its_secret_and_its_service():
    around = Surroundings().to_running()
    around.edit(suspend=True)
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.observed = replace(around.observed, pods=())
    assert deleted(around) == []
