"""The control-plane profile: the real KubeRay makes pods, the real scheduler places them, simulated nodes run them."""

import uuid
from collections.abc import Iterator

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.kwok import simulated_node
from support.cluster.raycluster import raycluster
from support.waiting import eventually

POOL = "rljob.dev/test-pool"


@pytest.fixture
def pool(kubectl: Kubectl) -> Iterator[dict[str, str]]:
    """A node selector that finds two nodes of eight GPUs, which no other test uses."""
    selector = {POOL: uuid.uuid4().hex[:8]}
    nodes = [simulated_node(f"pool-{selector[POOL]}-{number}") for number in range(2)]
    for node in nodes:
        node["metadata"]["labels"] |= selector
    kubectl.apply(*nodes)
    yield selector
    kubectl("delete", "node", "--wait=false", "-l", f"{POOL}={selector[POOL]}")


def test_a_raycluster_gets_its_pods_running_on_simulated_nodes(
    kubectl: Kubectl, namespace: str, pool: dict[str, str]
) -> None:
    kubectl.apply(raycluster("gsm8k", namespace, workers=2, gpus=8, node_selector=pool))
    pods = eventually(lambda: _pods(kubectl, namespace), lambda pods: _phases(pods) == ["Running"] * 3)
    workers = [pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"]
    assert {pod["spec"]["nodeName"] for pod in workers} == {f"pool-{pool[POOL]}-{number}" for number in range(2)}
    state = eventually(lambda: _state(kubectl, namespace), lambda state: state.get("readyWorkerReplicas") == 2)
    assert state["desiredGPU"] == "16"


def test_deleting_a_raycluster_removes_its_pods(kubectl: Kubectl, namespace: str, pool: dict[str, str]) -> None:
    kubectl.apply(raycluster("gsm8k", namespace, workers=1, gpus=1, node_selector=pool))
    eventually(lambda: _pods(kubectl, namespace), lambda pods: _phases(pods) == ["Running"] * 2)
    kubectl("delete", "raycluster", "gsm8k", "-n", namespace, "--wait=false")
    eventually(lambda: _pods(kubectl, namespace), lambda pods: not pods)


def test_the_scheduler_counts_the_gpus_of_simulated_nodes(
    kubectl: Kubectl, namespace: str, pool: dict[str, str]
) -> None:
    kubectl.apply(raycluster("too-big", namespace, workers=3, gpus=8, node_selector=pool))
    wanted = ["Pending", "Running", "Running", "Running"]
    pods = eventually(
        lambda: _pods(kubectl, namespace), lambda pods: _phases(pods) == wanted and any(map(_refusal, pods))
    )
    assert "2 Insufficient nvidia.com/gpu" in "".join(map(_refusal, pods))


def _pods(kubectl: Kubectl, namespace: str) -> list[Manifest]:
    found: list[Manifest] = kubectl.get("pods", "-n", namespace)["items"]
    return found


def _phases(pods: list[Manifest]) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in pods)


def _refusal(pod: Manifest) -> str:
    """Return why the scheduler placed the pod nowhere; empty if it did, or did not look yet."""
    conditions = pod["status"].get("conditions", ())
    return "".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False")


def _state(kubectl: Kubectl, namespace: str) -> Manifest:
    state: Manifest = kubectl.get("raycluster", "gsm8k", "-n", namespace).get("status", {})
    return state
