"""The life of an RLJob on a real API server with the real KubeRay: from kubectl apply to its end."""

import base64
from collections.abc import Callable

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from rljob_api.control import EngineState
from support.operator.fake_head import FakeHeads
from support.waiting import eventually


def groups(cluster: Manifest) -> list[tuple[str, int]]:
    return [(group["groupName"], group["replicas"]) for group in cluster["spec"]["workerGroupSpecs"]]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("Disaggregated", [("trainer", 1), ("rollout", 1)]), ("Colocated", [("workers", 1)])],
)
def test_an_rljob_becomes_a_raycluster_with_the_groups_of_its_topology(
    kubectl: Kubectl, new_job: Callable, start: Callable, placement: str, expected: list
) -> None:
    start()
    job = new_job(placement=placement)
    job.until("ClusterReady")
    (cluster,) = kubectl.get("raycluster", "-n", job.namespace)["items"]
    assert groups(cluster) == expected
    assert len(job.pods()) == 1 + sum(replicas for _, replicas in expected)
    assert all(pod["status"]["phase"] == "Running" for pod in job.pods())
    containers = [pod["spec"]["containers"][0] for pod in job.pods()]
    assert {each["livenessProbe"]["httpGet"]["path"] for each in containers} == {"/api/local_raylet_healthz"}
    assert all("rljob_trainer.control.pod_eviction" in str(each["lifecycle"]["preStop"]) for each in containers)


def test_a_job_trains_and_succeeds(kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads) -> None:
    start()
    job = new_job()
    status = job.until("Training")
    assert status["phase"] == "Training"
    assert status["progress"]["step"] == 3
    assert status["engines"]["ready"] == 2
    assert status["lastCheckpoint"]["step"] == 2
    assert status["observedGeneration"] == 1
    (secret,) = kubectl.get("secret", "-n", job.namespace, "-l", "rljob.dev/job=sums")["items"]
    assert heads.head(job.namespace).tokens == {base64.b64decode(secret["data"]["token"]).decode()}
    heads.head(job.namespace).end(0)
    job.until("Succeeded")
    eventually(job.pods, lambda pods: not pods)
    eventually(job.children, lambda children: not children)
    assert kubectl("wait", "--for=condition=Ready", "rljob/sums", "-n", job.namespace, "--timeout=10s")
    assert job.events() >= {"PodsReady", "Running", "Completed"}
    assert "finalizers" not in job.raw()["metadata"]
    assert "annotations" not in job.raw()["metadata"]


def test_a_failed_driver_is_restarted_on_the_warm_cluster(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job()
    job.until("Training")
    pods = {pod["metadata"]["uid"] for pod in job.pods()}
    heads.head(job.namespace).end(5)
    eventually(lambda: len(heads.submissions), lambda count: count == 2)
    status = job.until("Training")
    assert [attempt.get("exitCode") for attempt in status["attempts"]] == [5, None]
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods
    assert status["recovery"][0]["action"] == "RestartDriver"


def test_an_evicted_job_goes_on_from_its_checkpoint_on_a_new_cluster(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job()
    job.until("Training")
    heads.head(job.namespace).end(7)
    eventually(lambda: job.raw()["status"]["attempt"], lambda attempt: attempt == 2)
    job.until("Training")
    first, second = job.raw()["status"]["attempts"]
    assert (first["exitCode"], second["checkpointStep"]) == (7, first["checkpointStep"])
    (cluster,) = kubectl.names("raycluster", "-n", job.namespace)
    assert first["cluster"] != second["cluster"] == cluster


def test_a_dead_engine_is_ordered_to_restart(new_job: Callable, start: Callable, heads: FakeHeads) -> None:
    start()
    job = new_job()
    job.until("EnginesReady")
    head = heads.head(job.namespace)
    first, second = head.status.engines
    head.change(engines=(first.model_copy(update={"state": EngineState.DEAD, "last_error": "killed"}), second))
    eventually(lambda: head.status.decisions, lambda decisions: [d.generation for d in decisions] == [1])
    status = job.until("EnginesReady")
    assert status["recovery"][0]["target"] == "engine-0 generation 1"


def test_suspension_saves_then_frees_and_resuming_goes_on(new_job: Callable, start: Callable, heads: FakeHeads) -> None:
    start()
    job = new_job()
    job.until("Training")
    job.patch('{"suspend":true}')
    eventually(lambda: job.raw()["status"]["phase"], lambda phase: phase == "Suspended")
    assert heads.head(job.namespace).drains == 1
    eventually(job.pods, lambda pods: not pods)
    job.patch('{"suspend":false}')
    job.until("Training")
    assert [name.rpartition("-")[2] for name in heads.submissions] == ["1", "2"]
    assert [attempt["cluster"].rpartition("-")[2] for attempt in job.raw()["status"]["attempts"]] == ["1", "2"]


def test_a_finished_job_is_deleted_after_its_time_to_live(
    new_job: Callable, start: Callable, heads: FakeHeads, kubectl: Kubectl
) -> None:
    start()
    job = new_job(scheduling={"ttlSecondsAfterFinished": 2})
    job.until("Training")
    heads.head(job.namespace).end(0)
    eventually(lambda: kubectl.names("rljob", "-n", job.namespace), lambda names: not names)
    eventually(job.children, lambda children: not children)


def test_children_are_restored_when_somebody_changes_or_deletes_them(
    kubectl: Kubectl, new_job: Callable, start: Callable
) -> None:
    start()
    job = new_job()
    job.until("ClusterReady")
    kubectl("delete", "networkpolicy", "--all", "-n", job.namespace)
    eventually(lambda: kubectl.names("networkpolicy", "-n", job.namespace), lambda names: len(names) == 1)
    (service,) = (
        child.partition("/")[2] for child in job.children() if child.startswith("Service/") and "driver" in child
    )
    kubectl("patch", "service", service, "-n", job.namespace, "-p", '{"spec":{"selector":{"ray.io/cluster":"other"}}}')
    eventually(
        lambda: kubectl.get("service", service, "-n", job.namespace)["spec"]["selector"]["ray.io/cluster"],
        lambda cluster: cluster.startswith("sums-"),
    )


def test_a_run_survives_that_its_label_and_owner_are_removed(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job()
    job.until("Training")
    (cluster,) = kubectl.get("raycluster", "-n", job.namespace)["items"]
    name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
    where = ("raycluster", name, "-n", job.namespace)
    label = lambda: kubectl.get(*where)["metadata"].get("labels", {}).get("rljob.dev/job")  # noqa: E731
    owners = lambda: kubectl.get(*where)["metadata"].get("ownerReferences", [])  # noqa: E731
    kubectl("label", *where, "rljob.dev/job-")
    eventually(label, lambda found: found == "sums")
    kubectl("patch", *where, "--type=merge", "-p", '{"metadata":{"ownerReferences":null}}')
    eventually(owners, lambda found: [owner["name"] for owner in found] == ["sums"])
    assert kubectl.get(*where)["metadata"]["uid"] == uid
    assert job.raw()["status"]["attempt"] == 1
    assert len(heads.submissions) == 1


def test_a_job_that_cannot_run_says_why(new_job: Callable, start: Callable) -> None:
    start()
    job = new_job(checkpoint={"directory": "/not/shared"})
    job.until("Admitted", "False")
    admitted = job.raw()["status"]["conditions"][0]
    assert admitted["reason"] == "CheckpointsNotShared"
    assert job.children() == set()


def test_everything_goes_with_a_job_that_is_deleted_while_no_operator_runs(
    kubectl: Kubectl, new_job: Callable, start: Callable
) -> None:
    operator = start()
    job = new_job()
    job.until("Training")
    assert len(job.children()) >= 5
    assert operator.terminate() == 0
    kubectl("delete", "rljob", "sums", "-n", job.namespace, "--timeout=30s")
    eventually(job.children, lambda children: not children)
    eventually(job.pods, lambda pods: not pods)
