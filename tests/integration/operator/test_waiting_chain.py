"""Each link of the waiting chain that a control plane has, blocked on purpose: the job says which, and since when.

Nodes that nobody runs leave pods as a kubelet leaves them that has not begun; the events are written by hand.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from support.cli.command import rljob
from support.operator.operator_job import Job
from support.operator.operator_process import kubeconfig_of
from support.waiting import eventually

POOL = "rljob.dev/silent-pool"


def message(job: Job, kind: str = "Ready") -> str:
    conditions = job.raw().get("status", {}).get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == kind), "")


@pytest.fixture
def silent_pool(kubectl: Kubectl, namespace: str) -> Iterator[dict[str, str]]:
    """A node selector that finds one node, of which no kubelet reports anything."""
    selector = {POOL: uuid.uuid4().hex[:8]}
    name = f"silent-{selector[POOL]}"
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"status": {"allocatable": room, "capacity": room}}
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": selector}})
    kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    yield selector
    kubectl("delete", "rljobs", "--all", "-n", namespace)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "-n", namespace)
    kubectl("delete", "node", name, "--wait=false")


def event(namespace: str, pod: str, reason: str, note: str) -> Manifest:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.{reason.lower()}", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "kubelet",
        "reportingInstance": "silent",
        "action": "Binding",
        "type": "Warning",
        "reason": reason,
        "note": note,
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod},
    }


@pytest.mark.parametrize(
    ("reason", "note", "says"),
    [
        ("FailedCreatePodSandBox", "no network plugin", "its sandbox cannot be made: no network plugin (since "),
        ("FailedMount", 'secret "keys" not found', 'a volume cannot be mounted: secret "keys" not found (since '),
        ("Pulling", 'Pulling image "rljob/trainer"', 'Pulling image "rljob/trainer" (since '),
    ],
)
def test_what_only_a_pods_events_say_is_in_ready_and_why(
    kubectl: Kubectl,
    namespace: str,
    new_job: Callable,
    start: Callable,
    silent_pool: dict[str, str],
    tmp_path: Path,
    reason: str,
    note: str,
    says: str,
) -> None:
    start()
    tolerations = [{"operator": "Exists"}]
    job = new_job(scheduling={"nodeSelector": silent_pool, "tolerations": tolerations})
    pods = eventually(job.pods, lambda pods: len(pods) == 3 and all("nodeName" in pod["spec"] for pod in pods))
    head = next(pod["metadata"]["name"] for pod in pods if "-head" in pod["metadata"]["name"])
    kubectl.apply(event(namespace, head, reason, note))
    eventually(lambda: message(job), lambda text: says in text, 90)
    assert f"0 of 3 pods are ready; {head}" in message(job)
    kubectl("create", "serviceaccount", "viewer", "-n", namespace)
    whose = f"--serviceaccount={namespace}:viewer"
    kubectl("create", "rolebinding", "viewer", "--clusterrole=admin", whose, "-n", namespace)
    viewer = kubeconfig_of(kubectl, namespace, "viewer", tmp_path)
    shown = eventually(lambda: rljob("why", "sums", "-n", namespace, kubeconfig=viewer), lambda ended: ended.code == 0)
    assert says in shown.out.splitlines()[0]
    assert f"{head}: {reason}: {note}" in shown.out


LONG_AGO = "2026-01-01T00:00:00Z"
RUNNING = {"running": {"startedAt": LONG_AGO}}


def waits(reason: str, message: str) -> Manifest:
    return {"waiting": {"reason": reason, "message": message}}


def container(name: str, state: Manifest, **more: object) -> Manifest:
    return {"name": name, "state": state, "ready": False, "restartCount": 0, "image": "i", "imageID": "", **more}


def pod_status(containers: list[Manifest], init: list[Manifest] | None = None) -> str:
    """Return a change of a pod's status, as a kubelet writes it."""
    return json.dumps({"status": {"containerStatuses": containers, "initContainerStatuses": init or []}})


def test_what_a_kubelet_reports_of_the_head_is_in_ready_link_by_link(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable, silent_pool: dict[str, str]
) -> None:
    start()
    job = new_job(scheduling={"nodeSelector": silent_pool, "tolerations": [{"operator": "Exists"}]})
    pods = eventually(job.pods, lambda pods: len(pods) == 3 and all("nodeName" in pod["spec"] for pod in pods))
    head = next(pod["metadata"]["name"] for pod in pods if "-head" in pod["metadata"]["name"])

    def says(status: str, sentence: str) -> None:
        kubectl("patch", "pod", head, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
        eventually(lambda: message(job), lambda text: f"0 of 3 pods are ready; {head}: {sentence}" in text)

    ray = "ray-head"
    says(
        pod_status([container(ray, waits("ImagePullBackOff", "Back-off pulling image rljob/trainer"))]),
        "ImagePullBackOff: Back-off pulling image rljob/trainer (since ",
    )
    says(
        pod_status([container(ray, waits("CreateContainerConfigError", 'secret "keys" not found'))]),
        'CreateContainerConfigError: secret "keys" not found (since ',
    )
    says(
        pod_status([container(ray, waits("PodInitializing", ""))], [container("unpack", RUNNING)]),
        "init container unpack runs (since 2026-01-01 00:00:00 UTC)",
    )
    says(
        pod_status([container(ray, waits("CrashLoopBackOff", "back-off 10s restarting failed container"))]),
        "CrashLoopBackOff: back-off 10s restarting failed container (since ",
    )
    says(
        pod_status([container(ray, RUNNING)]),
        f"container {ray} runs and is not ready (since 2026-01-01 00:00:00 UTC)",
    )


def test_a_raycluster_that_the_api_server_refuses_is_named(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    kubectl("create", "quota", "none", "--hard=count/rayclusters.ray.io=0", "-n", namespace)
    start()
    job = new_job()
    eventually(lambda: message(job), lambda text: "exceeded quota: none" in text, 90)
    assert "0 of 3 pods are ready; PATCH apis/ray.io/v1/" in message(job)
    assert job.pods() == []


def test_a_quota_is_named_and_since_when(kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable) -> None:
    kubectl("create", "quota", "few", "--hard=pods=2", "-n", namespace)
    start(more=("--queue=Off",))  # otherwise the job waits in the queue before that
    job = new_job()
    eventually(lambda: message(job), lambda text: "exceeded quota: few" in text)
    assert "(since " in message(job)
