"""What a pod and a job wait for: one test for each link of the chain."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.control import EngineState, EngineStatus, RunState
from rljob_operator.identity import Manifest
from rljob_operator.status.waiting import PATIENCE_S, REFUSED_S, UNHEARD, Blocker, Waiting, pod_to_ask
from rljob_operator.world.kueue import Workload
from rljob_operator.world.pod_stage import PodEvent, PodStage, Stage, pod_event_of, stage_of, with_events
from rljob_operator.world.world import DriverState, Pod
from support.operator.operator_world import NOW, Surroundings, raw_job, running

SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}


def raw_pod(*conditions: dict[str, str], **status: Any) -> Manifest:
    return {
        "metadata": {"name": "a-pod", "creationTimestamp": "2027-01-15T07:59:00Z"},
        "status": {"conditions": list(conditions), **status},
    }


def waits(reason: str, **more: str) -> list[dict[str, Any]]:
    return [{"name": "ray", "state": {"waiting": {"reason": reason, **more}}}]


def crashes(reason: str, code: int, message: str = "", waiting: str = "CrashLoopBackOff") -> list[dict[str, Any]]:
    (container,) = waits(waiting, message="back-off")
    ended = {"reason": reason, "exitCode": code, "message": message}
    return [container | {"lastState": {"terminated": ended}}]


RUNS = [{"name": "ray", "state": {"running": {"startedAt": "2027-01-15T08:00:30Z"}}, "ready": False}]


@pytest.mark.parametrize(
    ("raw", "stage", "text"),
    [
        (raw_pod({"type": "Ready", "status": "True"}, SCHEDULED), None, ""),
        (raw_pod(phase="Succeeded"), None, ""),
        (raw_pod(phase="Failed", message="evicted: disk", reason="Evicted"), Stage.FAILED, "evicted: disk"),
        (raw_pod(phase="Failed"), Stage.FAILED, "the pod has failed"),
        (raw_pod(), Stage.SCHEDULING, ""),
        (raw_pod({"type": "PodScheduled", "status": "False", "message": "no node"}), Stage.SCHEDULING, "no node"),
        (raw_pod({"type": "PodScheduled", "status": "False", "reason": "Gated"}), Stage.SCHEDULING, "Gated"),
        (raw_pod(SCHEDULED), Stage.CREATING, ""),
        (raw_pod(SCHEDULED, containerStatuses=waits("ContainerCreating")), Stage.CREATING, ""),
        (
            raw_pod(SCHEDULED, containerStatuses=waits("ErrImagePull", message="not found")),
            Stage.IMAGE,
            "ErrImagePull: not found",
        ),
        (raw_pod(SCHEDULED, containerStatuses=waits("CrashLoopBackOff")), Stage.CRASHING, "CrashLoopBackOff"),
        (
            raw_pod(SCHEDULED, containerStatuses=crashes("OOMKilled", 137)),
            Stage.CRASHING,
            "CrashLoopBackOff: container ray ended: OOMKilled, exit code 137",
        ),
        (
            raw_pod(SCHEDULED, containerStatuses=crashes("Error", 1, "Traceback:\n  there\nValueError: no\n\n")),
            Stage.CRASHING,
            "CrashLoopBackOff: container ray ended: Error, exit code 1: ValueError: no",
        ),
        (
            raw_pod(SCHEDULED, containerStatuses=crashes("Error", 1, "x" * 2000)),
            Stage.CRASHING,
            f"CrashLoopBackOff: container ray ended: Error, exit code 1: {'x' * 300}",
        ),
        (
            raw_pod(SCHEDULED, containerStatuses=crashes("Error", 1, waiting="ErrImagePull")),
            Stage.IMAGE,
            "ErrImagePull: back-off",
        ),
        (
            raw_pod(SCHEDULED, containerStatuses=waits("CreateContainerConfigError", message="no secret")),
            Stage.CONFIG,
            "CreateContainerConfigError: no secret",
        ),
        (
            raw_pod(SCHEDULED, initContainerStatuses=RUNS, containerStatuses=waits("PodInitializing")),
            Stage.INIT,
            "init container ray runs",
        ),
        (
            raw_pod(SCHEDULED, initContainerStatuses=[*RUNS, *waits("PodInitializing")]),
            Stage.INIT,
            "init container ray runs",
        ),
        (
            raw_pod(SCHEDULED, initContainerStatuses=[{"name": "ray", "state": {"terminated": {"exitCode": 0}}}]),
            Stage.CREATING,
            "",
        ),
        (raw_pod(SCHEDULED, containerStatuses=RUNS), Stage.PROBES, "container ray runs and is not ready"),
        (
            raw_pod(SCHEDULED, containerStatuses=[{"name": "ray", "state": {"terminated": {"exitCode": 1}}}]),
            Stage.CRASHING,
            "container ray ended: Unknown, exit code 1",
        ),
    ],
)
def test_the_stage_of_a_pod_is_what_scheduler_or_kubelet_report(raw: Manifest, stage: Stage | None, text: str):
    found = stage_of(raw)
    assert (found and found.stage, found.text if found else "") == (stage, text)


def test_a_stage_knows_since_when():
    assert stage_of(raw_pod()).since == NOW - 60
    assert stage_of(raw_pod(SCHEDULED)).since == NOW
    assert stage_of(raw_pod(SCHEDULED, containerStatuses=RUNS)).since == NOW + 30


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ([], Stage.CREATING),
        ([("Scheduled", 1)], Stage.CREATING),
        ([("FailedCreatePodSandBox", 2)], Stage.SANDBOX),
        ([("FailedMount", 2)], Stage.VOLUMES),
        ([("FailedAttachVolume", 1)], Stage.VOLUMES),
        ([("Pulling", 2)], Stage.IMAGE),
        ([("Pulling", 2), ("Pulled", 3)], Stage.CREATING),
        ([("FailedMount", 2), ("Pulling", 3)], Stage.IMAGE),
    ],
)
def test_events_say_what_the_creation_of_containers_waits_for(events: list[tuple[str, int]], stage: Stage):
    seen = [PodEvent(reason, "said so", at) for reason, at in events]
    assert with_events(PodStage(Stage.CREATING, NOW), seen).stage is stage


def test_events_do_not_overrule_a_status_that_says_more():
    said = PodStage(Stage.CRASHING, NOW, "CrashLoopBackOff")
    assert with_events(said, [PodEvent("FailedMount", "", 9)]) is said


def test_the_newest_repetition_of_an_event_counts():
    raw = {
        "metadata": {"creationTimestamp": "2027-01-15T07:00:00Z"},
        "series": {"lastObservedTime": "2027-01-15T08:00:00.000000Z"},
        "reason": "FailedMount",
        "note": "secret not found",
    }
    assert pod_event_of(raw) == PodEvent("FailedMount", "secret not found", NOW)
    core = {"metadata": {}, "reason": "FailedMount", "message": "no secret", "lastTimestamp": "2027-01-15T08:00:00Z"}
    assert pod_event_of(core) == PodEvent("FailedMount", "no secret", NOW)


def pod(name: str, stage: PodStage | None, is_head: bool = False) -> Pod:
    return Pod(f"sums-7f3a1-1-{name}", "sums-7f3a1-1", is_head, stage is None, False, stage)


def waiting_for(*pods: Pod, **world: Any) -> Waiting | None:
    around = Surroundings()
    around.step()
    around.observed = replace(around.observed, pods=pods, **world)
    return around.plan().waiting


OLD = NOW - PATIENCE_S


def test_the_pod_that_is_behind_all_others_is_named_and_those_like_it_are_counted():
    found = waiting_for(
        pod("a", PodStage(Stage.IMAGE, OLD, "ErrImagePull")),
        pod("c", PodStage(Stage.SCHEDULING, OLD, "0/3 nodes")),
        pod("b", PodStage(Stage.SCHEDULING, OLD, "0/3 nodes")),
    )
    assert found == Waiting(Stage.SCHEDULING, "sums-7f3a1-1-b (and 1 more): 0/3 nodes", OLD)
    assert found.sentence.endswith("0/3 nodes (since 2027-01-15 07:59:40 UTC)")


@pytest.mark.parametrize("age_s", [0, PATIENCE_S])
def test_what_every_pod_passes_is_worth_a_word_only_after_a_while(age_s: float):
    found = waiting_for(pod("a", PodStage(Stage.CREATING, NOW - age_s)), *[pod("h", None, True)] * 2)
    assert (found is not None and found.blocker == Stage.CREATING) == (age_s > 0)


def test_workers_that_wait_for_the_head_do_not_hide_it():
    found = waiting_for(
        pod("a", PodStage(Stage.INIT, OLD, "init container wait-gcs-ready runs")),
        pod("head", PodStage(Stage.PROBES, OLD, "container ray-head runs and is not ready"), is_head=True),
    )
    assert "ray-head runs and is not ready" in found.text


@pytest.mark.parametrize("first", [True, False])
def test_of_pods_with_the_same_blocker_the_head_is_named(first: bool):
    pods = [
        pod("a", PodStage(Stage.SCHEDULING, OLD, "0/3")),
        pod("z", PodStage(Stage.SCHEDULING, OLD, "0/3"), is_head=True),
    ]
    assert waiting_for(*(pods if first else pods[::-1])).text == "sums-7f3a1-1-z (and 1 more): 0/3"


def test_a_worker_that_is_not_ready_does_not_hide_one_whose_init_container_runs():
    found = waiting_for(
        pod("a", PodStage(Stage.PROBES, OLD, "container ray-worker runs and is not ready")),
        pod("b", PodStage(Stage.INIT, OLD, "init container copy runs")),
        pod("head", None, is_head=True),
    )
    assert found.text == "sums-7f3a1-1-b: init container copy runs"


def test_a_sandbox_that_cannot_be_made_is_named_from_the_pods_events():
    events = {"sums-7f3a1-1-a": (PodEvent("FailedCreatePodSandBox", "no network plugin", NOW),)}
    found = waiting_for(pod("a", PodStage(Stage.CREATING, NOW - 6)), pod_events=events)
    assert found.blocker == Stage.SANDBOX
    assert found.text == "sums-7f3a1-1-a: its sandbox cannot be made: no network plugin"


def test_a_pod_whose_events_nobody_reads_does_not_hide_a_head_that_pulls_its_image():
    events = {"sums-7f3a1-1-head": (PodEvent("Pulling", 'Pulling image "rljob/trainer"', OLD),)}
    head = pod("head", PodStage(Stage.CREATING, OLD), is_head=True)
    found = waiting_for(pod("a", PodStage(Stage.CREATING, OLD)), head, pod_events=events)
    assert found.text == 'sums-7f3a1-1-head: Pulling image "rljob/trainer"'


def test_a_quota_that_kuberay_runs_into_is_a_quota():
    around = Surroundings()
    around.step()
    cluster = around.observed.rayclusters()[0]
    message = 'pods "x-head-1" is forbidden: exceeded quota: team-a, requested: pods=1, used: pods=2, limited: pods=2'
    cluster["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}
    found = around.plan().waiting
    assert found.blocker == Blocker.QUOTA
    assert found.text == message.replace('pods "x-head-1" is forbidden', "a pod is forbidden")


def test_pods_that_kuberay_does_not_make_are_counted():
    around = Surroundings()
    around.step()
    around.now += PATIENCE_S - 1
    assert around.plan().waiting is None
    around.now += 1
    assert around.plan().waiting == Waiting(Blocker.RAY_CLUSTER, "KubeRay has not created 3 of 3 pods yet")


def test_a_raycluster_that_kuberay_ignores_is_named():
    around = Surroundings()
    around.step()
    around.now += REFUSED_S
    found = around.plan().waiting
    assert found is not None
    assert found.text == f"{UNHEARD}; `kubectl describe raycluster sums-7f3a1-1` says why"
    (cluster,) = around.observed.rayclusters()
    cluster["status"] = {"conditions": [{"type": "HeadPodReady", "status": "False", "reason": "x", "message": "y"}]}
    found = around.plan().waiting
    assert found is not None
    assert found.text == "KubeRay has not created 3 of 3 pods yet"


def test_a_raycluster_that_kueue_suspends_although_its_job_names_no_queue_is_named():
    around = Surroundings()
    around.step()
    for workloads in ((), (Workload("sums-7f3a1-1"),)):
        around.observed.rayclusters()[0]["spec"]["suspend"] = True
        around.observed = replace(around.observed, workloads=workloads)
        found = around.plan().waiting
        assert found is not None
        assert "manageJobsWithoutQueueName: set spec.scheduling.queue" in found.text


def test_a_child_that_the_api_server_refuses_comes_first():
    found = waiting_for(pod("a", PodStage(Stage.SCHEDULING, OLD, "0/3")), refused="apply RayCluster: 422 wrong")
    assert (found.blocker, found.text) == (Blocker.REFUSED, "apply RayCluster: 422 wrong")


def started(**status: Any) -> Surroundings:
    around = Surroundings()
    around.step()
    around.pods_ready()
    around.step()
    around.observed = replace(around.observed, driver=replace(around.observed.driver, **status))
    return around


def test_ray_that_does_not_answer_is_named():
    assert started(state=DriverState.UNKNOWN).plan().waiting.blocker == Blocker.DRIVER


def test_a_driver_without_engines_waits_for_its_placement_group():
    status = running(state=RunState.STARTING, engines=()).model_copy(update={"phase_since": NOW})
    found = started(state=DriverState.RUNNING, status=status).plan().waiting
    assert (found.blocker, found.since) == (Blocker.PLACEMENT, NOW)
    assert "a placement group of 4 slots" in found.text


@pytest.mark.parametrize(
    ("node", "blocker", "text"),
    [
        (None, Blocker.PLACEMENT, "2 of 2 engines are not up; engine-0 waits for room in Ray"),
        ("10.0.0.1", Blocker.ENGINES, "2 of 2 engines are not up; engine-0 loads the model"),
    ],
)
def test_engines_that_are_not_up_are_counted(node: str | None, blocker: str, text: str):
    engines = tuple(EngineStatus(name=f"engine-{i}", state=EngineState.STARTING, since=NOW, node=node) for i in (0, 1))
    around = started(state=DriverState.RUNNING, status=running(state=RunState.STARTING, engines=engines))
    assert around.plan().waiting == Waiting(blocker, text, NOW)
    around.step()
    assert around.condition("Ready")["message"] == f"attempt 1 starts: {text}"


def test_a_job_that_trains_waits_for_nothing():
    assert Surroundings(raw_job()).to_running().plan().waiting is None


def test_events_are_read_only_of_a_pod_whose_status_does_not_say_why():
    creating = pod("b", PodStage(Stage.CREATING, NOW - 6))
    others = (pod("a", PodStage(Stage.SCHEDULING, OLD, "0/3")), pod("c", None), pod("d", PodStage(Stage.CREATING, NOW)))
    assert pod_to_ask((*others, creating), NOW) == creating
    assert pod_to_ask(others, NOW) is None
    assert pod_to_ask((*others, replace(creating, is_deleting=True)), NOW) is None


def test_of_several_silent_pods_the_head_is_asked_first():
    silent = PodStage(Stage.CREATING, NOW - 6)
    head = pod("z", silent, is_head=True)
    assert pod_to_ask((pod("a", silent), head), NOW) == head
    assert pod_to_ask((pod("b", silent), pod("a", silent)), NOW).name == "sums-7f3a1-1-a"
