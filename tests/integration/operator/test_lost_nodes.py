"""Nodes that fail under a job, with the real node controller, scheduler and KubeRay: it continues elsewhere."""

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.kwok import simulated_node
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.waiting import eventually

POOL = "rljob.dev/lost-nodes"


class Pool:
    """Nodes with a label of their own."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self.selector = {POOL: uuid.uuid4().hex[:8]}
        self.names: list[str] = []

    def add(self, letter: str, has_kubelet: bool = True) -> str:
        """Add a node, and return its name; without a kubelet nobody says that it lives, but `beat`."""
        node = simulated_node(f"{letter}-{self.selector[POOL]}")
        node["metadata"]["labels"] |= self.selector
        if not has_kubelet:
            del node["metadata"]["annotations"]
        name: str = node["metadata"]["name"]
        self.names.append(name)
        self._kubectl.apply(node)
        self._status(name, node["status"])
        return name

    def beat(self, name: str) -> None:
        """Say that a node is ready, as its kubelet does every few seconds."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        self._status(name, {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", **times}]})

    def _status(self, name: str, status: Manifest) -> None:
        change = json.dumps({"status": status})
        self._kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", change)

    def ready(self, name: str) -> str:
        """Return what the node controller says of a node."""
        conditions = self._kubectl.get("node", name)["status"].get("conditions", [])
        return next((each["status"] for each in conditions if each["type"] == "Ready"), "")


@pytest.fixture
def pool(kubectl: Kubectl, namespace: str) -> Iterator[Pool]:
    found = Pool(kubectl)
    yield found
    kubectl("delete", "rljobs", "--all", "-n", namespace)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "-n", namespace)
    kubectl("delete", "node", *found.names, "--wait=false")


def evict(kubectl: Kubectl, job: Job) -> None:
    """Evict the pod with the ranks, as `kubectl drain` does."""
    pod = next(pod["metadata"]["name"] for pod in job.pods() if "-trainer-" in pod["metadata"]["name"])
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": job.namespace}}
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))


def nodes(job: Job, attempt: int) -> dict[str, str]:
    """Return what the status says of the nodes of an attempt."""
    attempts = job.raw().get("status", {}).get("attempts", [])
    found: dict[str, str] = next((each.get("nodes", {}) for each in attempts if each["number"] == attempt), {})
    return found


def trains(job: Job, attempt: int) -> None:
    def is_training() -> bool:
        status = job.raw().get("status", {})
        return (status.get("attempt"), status.get("phase")) == (attempt, "Training")

    eventually(is_training, bool)


def test_pods_of_a_job_avoid_a_node_that_has_evicted_two_attempts(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads, pool: Pool
) -> None:
    start()
    bad = pool.add("a")
    own = {"key": POOL, "operator": "Exists"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [own]}]}}
    affinity = {"trainer": {"affinity": {"nodeAffinity": required}}}
    job = new_job(scheduling={"nodeSelector": pool.selector, "tolerations": [{"operator": "Exists"}]}, pods=affinity)
    for attempt in (1, 2):
        trains(job, attempt)
        evict(kubectl, job)
        eventually(lambda number=attempt: nodes(job, number), lambda found: found == {bad: "Evicted"})
        other = pool.add("b") if attempt == 2 else ""
        heads.head(job.namespace).end(7)
    trains(job, 3)
    assert nodes(job, 3) == {bad: "Avoided", other: "Used"}
    pods = {pod["metadata"]["name"]: pod["spec"] for pod in job.pods() if "deletionTimestamp" not in pod["metadata"]}
    assert {spec["nodeName"] for spec in pods.values()} == {other}
    trainer = next(spec for name, spec in pods.items() if "-trainer-" in name)
    (term,) = trainer["affinity"]["nodeAffinity"][next(iter(required))]["nodeSelectorTerms"]
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [bad]}
    assert term["matchExpressions"] == [own, elsewhere]
    assert "AvoidNodes" in job.events()
    status = job.raw()["status"]
    assert status["attempts"][1]["reason"].endswith(f"; node {bad} has evicted a pod")
    generation = kubectl.get("rayclusters", "-n", job.namespace)["items"][0]["metadata"]["generation"]
    job.patch('{"recovery":{"graceSeconds":11}}')
    eventually(lambda: job.raw()["status"]["observedGeneration"], lambda seen: seen == 2)
    assert kubectl.get("rayclusters", "-n", job.namespace)["items"][0]["metadata"]["generation"] == generation


READY = json.dumps(
    {
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")],
        }
    }
)
STAYS_S = 10


def test_pods_that_a_dead_node_never_ends_do_not_hold_up_the_next_attempt(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads, pool: Pool
) -> None:
    start(more=("--lost-pod-seconds", str(STAYS_S)))
    dead = pool.add("dead", has_kubelet=False)
    pool.beat(dead)
    job = new_job(scheduling={"nodeSelector": pool.selector, "terminationGracePeriodSeconds": 5})
    pods = eventually(job.pods, lambda pods: len(pods) == 3 and all("nodeName" in pod["spec"] for pod in pods))
    for pod in pods:
        kubectl(
            "patch",
            "pod",
            pod["metadata"]["name"],
            "-n",
            job.namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            READY,
        )
        pool.beat(dead)
        stays = {each["key"]: each["tolerationSeconds"] for each in pod["spec"]["tolerations"]}
        assert stays == {f"node.kubernetes.io/{name}": STAYS_S for name in ("not-ready", "unreachable")}
    trains(job, 1)
    heads.are_down = True  # the machine has no power
    eventually(lambda: pool.ready(dead), lambda status: status == "Unknown")
    gone = eventually(job.pods, lambda pods: all("deletionTimestamp" in pod["metadata"] for pod in pods), 60)
    pool.add("well")
    eventually(lambda: job.raw()["status"]["attempt"], lambda attempt: attempt == 2, 60)
    heads.head(job.namespace).jobs.clear()
    heads.are_down = False
    trains(job, 2)
    left = {pod["metadata"]["uid"] for pod in job.pods() if pod["spec"]["nodeName"] == dead}
    assert left == {pod["metadata"]["uid"] for pod in gone}, "the dead node still has them"
    assert nodes(job, 1) == {dead: "Unreachable"}
    assert job.raw()["status"]["attempts"][0]["reason"].endswith(f"; node {dead} is unreachable")
