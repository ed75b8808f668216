"""Which nodes an attempt ran on, and which of them failed it."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.control import RunState
from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState, Pod
from support.operator.operator_world import NOW, Surroundings, running

HEAD, TRAINER, ROLLOUT = "sums-7f3a1-1-head", "sums-7f3a1-1-trainer-0", "sums-7f3a1-1-rollout-0"
NODES = {HEAD: "cpu-1", TRAINER: "gpu-1", ROLLOUT: "gpu-2"}


@pytest.fixture
def around() -> Surroundings:
    found = Surroundings().to_running()
    change(found, {name: {"node": node} for name, node in NODES.items()})
    found.step()
    return found


def change(around: Surroundings, changes: dict[str, dict[str, Any]]) -> None:
    """Change pods by their names; KubeRay makes no other ones."""
    pods = tuple(replace(pod, **changes.get(pod.name, {})) for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=pods)


def loses(around: Surroundings, name: str) -> Pod:
    """A pod is gone; return it as it was."""
    gone = next(pod for pod in around.observed.pods if pod.name == name)
    left = tuple(pod for pod in around.observed.pods if pod.name != name)
    known = (*around.observed.gone_pods, replace(gone, is_deleting=True, deleted_at=around.now))
    around.observed = replace(around.observed, pods=left, gone_pods=known)
    return gone


def ended(around: Surroundings, code: int = Exit.LOST_PEER) -> dict[str, Any]:
    """The driver ends; return what the status says of its attempt."""
    around.now += 10
    around.ends(code)
    around.step()
    attempt: dict[str, Any] = around.status["attempts"][0]
    return attempt


def deleted(reason: str = "", **changes: Any) -> dict[str, Any]:
    return {"is_deleting": True, "deleted_at": NOW + 1, "disruption": reason, **changes}


def test_an_attempt_that_runs_knows_its_nodes(around):
    assert around.status["attempts"][0]["nodes"] == dict.fromkeys(sorted(NODES.values()), "Used")


def test_nodes_of_pods_that_are_not_ready_yet_are_not_written_one_by_one():
    around = Surroundings()
    around.step()
    around.pods_ready(0)
    change(around, {HEAD: {"node": "cpu-1"}})
    around.step()
    assert "nodes" not in around.status["attempts"][0]


def test_a_node_that_has_not_ended_a_pod_of_an_earlier_attempt_is_none_of_this_one():
    around = Surroundings()
    around.step()
    around.pods_ready()
    old = replace(around.observed.pods[0], name="sums-7f3a1-1-trainer-old", node="gpu-9", **deleted(deleted_at=NOW - 1))
    pods = [replace(pod, node="gpu-1") for pod in around.observed.pods]
    around.observed = replace(around.observed, pods=(*pods, old))
    around.step()
    around.ray_answers()
    around.step()
    around.runs()
    around.step()
    assert around.status["attempts"][0]["nodes"] == {"gpu-1": "Used"}


@pytest.mark.parametrize(
    ("changes", "fate", "words"),
    [
        ({"is_ready": False, "is_on_silent_node": True}, "Unreachable", "is unreachable"),
        (deleted("DeletionByTaintManager", is_on_silent_node=True), "Unreachable", "is unreachable"),
        (deleted("DeletionByTaintManager"), "Evicted", "has evicted a pod"),
        (deleted("EvictionByEvictionAPI"), "Evicted", "has evicted a pod"),
        (deleted("TerminationByKubelet"), "Evicted", "has evicted a pod"),
        (deleted("DeletionByPodGC"), "Deleted", "is deleted or out of service"),
        (deleted(), "PodLost", "has lost a pod"),
    ],
)
def test_the_node_that_ended_an_attempt_is_named(around, changes, fate, words):
    change(around, {TRAINER: changes})
    attempt = ended(around)
    assert attempt["nodes"] == {"cpu-1": "Used", "gpu-1": fate, "gpu-2": "Used"}
    assert attempt["reason"].endswith(f"; node gpu-1 {words}")
    assert around.condition("Degraded")["message"].endswith(f"; node gpu-1 {words}")


def test_a_pod_that_a_lost_node_has_not_ended_names_the_node(around):
    lost = {name: deleted(gone_by=NOW + 1, is_ready=False) for name in NODES}
    change(around, lost)
    around.driver(state=DriverState.UNKNOWN, turned_at=around.now)
    around.now += 122
    around.step()
    assert around.status["attempts"][0]["nodes"] == dict.fromkeys(sorted(NODES.values()), "Unreachable")
    assert around.status["attempts"][0]["reason"].endswith(
        "cpu-1 is unreachable, node gpu-1 is unreachable, node gpu-2 is unreachable"
    )


def test_the_node_of_a_pod_that_is_gone_already_is_named(around):
    loses(around, TRAINER)
    assert ended(around)["nodes"]["gpu-1"] == "PodLost"


def test_an_eviction_is_known_before_the_pod_is_gone_and_stays(around):
    change(around, {TRAINER: deleted("EvictionByEvictionAPI")})
    around.step()
    assert around.status["attempts"][0]["nodes"]["gpu-1"] == "Evicted"
    loses(around, TRAINER)
    around.observed = replace(around.observed, gone_pods=())
    assert ended(around, Exit.PREEMPTED)["nodes"]["gpu-1"] == "Evicted"


@pytest.mark.parametrize(
    "changes",
    [
        deleted("PreemptionByScheduler"),
        deleted(deleted_at=NOW - 1),
        {"is_ready": False},
    ],
    ids=["a pod of a higher priority", "in an earlier attempt", "its container"],
)
def test_what_is_not_the_node_s_doing_names_no_node(around, changes):
    change(around, {TRAINER: changes})
    attempt = ended(around)
    assert (attempt["cause"], attempt["nodes"]["gpu-1"]) == ("Infrastructure", "Used")
    assert attempt["reason"] == "a required process is gone and could not be restarted"


def test_a_pod_with_engines_that_is_scaled_down_names_no_node(around):
    loses(around, ROLLOUT)
    assert ended(around)["nodes"]["gpu-2"] == "Used"


def test_a_suspension_names_no_node(around):
    around.edit(suspend=True)
    around.step()
    loses(around, TRAINER)
    attempt = ended(around, Exit.PREEMPTED)
    assert (attempt["cause"], attempt["nodes"]["gpu-1"]) == ("Suspended", "Used")


def test_a_raycluster_that_is_deleted_names_no_node(around):
    for name in NODES:
        loses(around, name)
    children = tuple(child for child in around.observed.children if child["kind"] != "RayCluster")
    around.observed = replace(around.observed, children=children)
    around.step()
    assert set(around.status["attempts"][0]["nodes"].values()) == {"Used"}


def test_a_status_holds_64_nodes_of_an_attempt_and_those_that_failed_it_first():
    around = Surroundings().to_running()
    extra = tuple(replace(around.observed.pods[0], name=f"pod-{i}", node=f"gpu-{i:03}") for i in range(100))
    around.observed = replace(around.observed, pods=(*around.observed.pods, *extra))
    around.step()
    change(around, {"pod-99": deleted("DeletionByPodGC")})
    nodes = ended(around)["nodes"]
    assert (len(nodes), nodes["gpu-099"]) == (64, "Deleted")


def test_old_attempts_keep_the_nodes_that_failed_them_alone():
    around = Surroundings().to_running()
    for number in range(1, 13):
        names = [pod.name for pod in around.observed.pods]
        change(around, {name: {"node": f"gpu-{i}", "is_deleting": False} for i, name in enumerate(names)})
        change(around, {names[0]: deleted("EvictionByEvictionAPI", deleted_at=around.now)})
        around.step()
        around.driver(status=around.observed.driver.status.model_copy(update={"attempt": number}))
        around.ends(Exit.PREEMPTED)
        around.step()
        around.now += 61
        around.observed = replace(around.observed, pods=())
        around.deletions_done()
        around.step()
        around.pods_ready()
        around.step()
        around.ray_answers()
        around.step()
        around.runs()
        around.step()
    assert [len(each.get("nodes", {})) for each in around.status["attempts"]] == [1, 1, *[3] * 10, 1]


def power_off(around: Surroundings, name: str) -> None:
    """Kubernetes deletes the pod, because its node has been silent for long; it stays."""
    taint = "DeletionByTaintManager"
    silent = deleted(taint, is_ready=False, is_on_silent_node=True, gone_by=around.now + 120)
    change(around, {name: silent | {"deleted_at": around.now}})


def test_a_raycluster_with_a_pod_on_a_dead_node_is_not_used_again(around):
    around.runs(running(step=5, checkpoint=5))
    around.step()
    power_off(around, ROLLOUT)
    around.ends(Exit.LOST_PEER)
    around.step()
    assert [each["cluster"] for each in around.status["attempts"]] == ["sums-7f3a1-1", "sums-7f3a1-2"]


def test_an_attempt_that_waits_for_a_pod_on_a_dead_node_gets_another_raycluster_at_once(around):
    """KubeRay makes no pod in place of one that is being deleted. The driver has ended before the node was silent."""
    around.runs(running(step=5, checkpoint=5))
    around.step()
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-1"
    change(around, {TRAINER: {"is_ready": False, "is_on_silent_node": True}})
    around.now += 61
    around.step()
    assert around.status["attempt"] == 2, "a silent kubelet may come back"
    power_off(around, TRAINER)
    around.step()
    change(around, {name: deleted() for name in (HEAD, ROLLOUT)})  # with their RayCluster
    left = tuple(pod for pod in around.observed.pods if pod.name == TRAINER)
    around.observed = replace(around.observed, pods=left)
    around.deletions_done()
    around.step()
    second, third = around.status["attempts"][-2:]
    assert second["reason"].startswith(f"KubeRay makes no pod in place of {TRAINER}: ")
    assert (second["cause"], third["cluster"]) == ("Suspended", "sums-7f3a1-3")
    assert around.status["restarts"] == 1, "the wait is no failure of its own"


@pytest.mark.parametrize("state", [RunState.STARTING, None])
def test_a_driver_that_waits_for_ranks_on_a_dead_node_is_ended(around, state):
    """It was submitted before the node was silent, and would wait for as long as engines may take to start."""
    around.driver(state=DriverState.RUNNING, status=running(state=state) if state else None, beat_at=around.now)
    around.step()
    power_off(around, TRAINER)
    around.step()
    assert around.status["attempts"][0]["verdict"] == Exit.LOST_PEER


def test_a_driver_that_trains_without_the_engines_of_a_dead_node_continues(around):
    power_off(around, ROLLOUT)
    around.runs(running(step=9))
    around.step()
    assert "verdict" not in around.status["attempts"][0]


def test_a_driver_on_a_dead_node_is_given_up_when_its_pod_is_deleted(around):
    """No kubelet gives it its grace period, and the fence of the run directory keeps it from writing."""
    change(around, {HEAD: {"is_ready": False, "is_on_silent_node": True}})
    around.driver(state=DriverState.UNKNOWN, turned_at=around.now)
    around.now += 170
    around.step()
    assert around.status["attempt"] == 1, "a kubelet may come back before Kubernetes deletes its pods"
    power_off(around, HEAD)
    around.now += 1
    around.step()
    assert around.status["attempt"] == 2
    assert around.status["attempts"][0]["nodes"]["cpu-1"] == "Unreachable"


def test_a_driver_that_answers_from_a_silent_node_continues(around):
    power_off(around, HEAD)
    around.runs(running(step=9))
    around.now += 1
    around.step()
    assert around.status["attempt"] == 1
