"""Two real nodes: their pods reach each other, and what `local_cluster.faults` does to a node is seen outside."""

import os
import time
from collections.abc import Iterator

import pytest

from local_cluster import faults
from local_cluster.errors import ClusterError
from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.node import is_ready
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import CLAIM, workspace
from support.cluster.busybox import busybox_archive, pod
from support.waiting import eventually

FIRST, SECOND = "node", "node-2"
SERVE = "mkdir /tmp/www && busybox head -c 500000 /dev/zero > /tmp/www/file && exec httpd -f -v -p 8080 -h /tmp/www"
SLEEP = "exec sleep 3600"


@pytest.fixture(scope="module")
def cluster(two_nodes: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> NodeCluster:
    two_nodes.import_archive(busybox_archive(tmp_path_factory.mktemp("image")))
    return two_nodes


@pytest.fixture
def kubectl(cluster: NodeCluster) -> Iterator[Kubectl]:
    yield cluster.kubectl
    faults.restore(cluster.nodes, cluster.kubectl, os.environ)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with temporary_namespace(kubectl) as name:
        yield name


@pytest.fixture
def address(kubectl: Kubectl, namespace: str) -> str:
    """The address of a pod that serves on the second node; a pod `client` is on the first."""
    kubectl.apply(on(SECOND, pod("server", namespace, SERVE)), on(FIRST, pod("client", namespace, SLEEP)))
    kubectl("wait", "--for=condition=Ready", "pod/server", "pod/client", "-n", namespace, "--timeout=60s")
    return str(kubectl.get("pod", "server", "-n", namespace)["status"]["podIP"])


def on(node: str, made: Manifest) -> Manifest:
    return {**made, "spec": {**made["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}


def fetched(kubectl: Kubectl, namespace: str, address: str) -> bool:
    """Return whether the client gets the server's file."""
    command = ("busybox", "timeout", "10", "wget", "-q", "-O", "/dev/null", f"http://{address}:8080/file")
    try:
        kubectl("exec", "client", "-n", namespace, "--", *command)
    except ClusterError:
        return False
    return True


def test_pods_of_two_nodes_reach_each_other_under_their_own_addresses(
    kubectl: Kubectl, namespace: str, address: str
) -> None:
    assert fetched(kubectl, namespace, address)
    client = kubectl.get("pod", "client", "-n", namespace)["status"]["podIP"]
    assert str(client) in kubectl("logs", "server", "-n", namespace)


def test_pods_of_two_nodes_see_one_volume(cluster: NodeCluster, kubectl: Kubectl, namespace: str) -> None:
    place = workspace(cluster, namespace)
    for node in (FIRST, SECOND):
        made = on(node, pod(node, namespace, f"echo from {node} > /shared/{node}; exec sleep 3600"))
        made["spec"]["volumes"].append({"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}})
        made["spec"]["containers"][0]["volumeMounts"].append({"name": "shared", "mountPath": "/shared"})
        kubectl.apply(made)
        kubectl("wait", "--for=condition=Ready", f"pod/{node}", "-n", namespace, "--timeout=60s")
    eventually(lambda: {path.name for path in place.volume.iterdir()}, lambda names: names == {FIRST, SECOND})
    assert kubectl("exec", FIRST, "-n", namespace, "--", "cat", f"/shared/{SECOND}") == f"from {SECOND}\n"


def test_a_partition_parts_the_nodes_and_leaves_them_the_api_server(
    cluster: NodeCluster, kubectl: Kubectl, namespace: str, address: str
) -> None:
    faults.partition(cluster.nodes)
    assert not fetched(kubectl, namespace, address)
    assert "httpd" in kubectl("exec", "server", "-n", namespace, "--", "cat", "/proc/1/cmdline")
    faults.heal(cluster.nodes)
    eventually(lambda: fetched(kubectl, namespace, address), bool, 30)


def test_a_slow_cable_makes_a_file_take_seconds(
    cluster: NodeCluster, kubectl: Kubectl, namespace: str, address: str
) -> None:
    faults.slow(cluster.nodes[1], "1mbit")
    started = time.monotonic()
    assert fetched(kubectl, namespace, address)
    assert time.monotonic() - started > 500_000 * 8 / 1_000_000 / 2


def test_a_drained_node_has_no_pods_and_gets_none(
    cluster: NodeCluster, kubectl: Kubectl, namespace: str, address: str
) -> None:
    faults.drain(cluster.nodes[1], kubectl)
    assert kubectl.names("pods", "-n", namespace) == ["client"]
    kubectl.apply(pod("new", namespace, SLEEP))
    kubectl("wait", "--for=condition=Ready", "pod/new", "-n", namespace, "--timeout=60s")
    assert kubectl.get("pod", "new", "-n", namespace)["spec"]["nodeName"] == FIRST


def test_a_node_whose_kubelet_is_stopped_is_not_ready_and_its_containers_run_on(
    cluster: NodeCluster, kubectl: Kubectl, namespace: str, address: str
) -> None:
    faults.stop_kubelet(cluster.nodes[1])
    eventually(lambda: is_ready(SECOND, kubectl), lambda ready: not ready)
    assert fetched(kubectl, namespace, address)
    faults.continue_kubelet(cluster.nodes[1])
    eventually(lambda: is_ready(SECOND, kubectl), bool)


def test_a_node_without_power_is_silent_and_comes_back(
    cluster: NodeCluster, kubectl: Kubectl, namespace: str, address: str
) -> None:
    killed = faults.power_off(cluster.nodes[1])
    assert {name.partition(" ")[0] for name in killed} >= {"kubelet", "containerd", "kube-proxy", "kube-router"}
    assert not fetched(kubectl, namespace, address)
    eventually(lambda: is_ready(SECOND, kubectl), lambda ready: not ready)
    faults.power_on(cluster.nodes[1], kubectl, os.environ)
    kubectl.apply(on(SECOND, pod("again", namespace, SERVE)))
    kubectl("wait", "--for=condition=Ready", "pod/again", "-n", namespace, "--timeout=60s")
    again = kubectl.get("pod", "again", "-n", namespace)["status"]["podIP"]
    assert fetched(kubectl, namespace, again)
