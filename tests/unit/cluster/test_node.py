"""What is decided for a real node before anything starts."""

from pathlib import Path

import pytest

from local_cluster import faults, footprint
from local_cluster.certificates import Certificate
from local_cluster.errors import ClusterError
from local_cluster.namespace import namespace_of
from local_cluster.network import MOST_NODES, free_network, write_network
from local_cluster.node import DISK_SIGNALS, kubelet_configuration, nodes_of, proxy_arguments
from local_cluster.processes import find, start, stop_all
from local_cluster.project import volume
from local_cluster.runtime import pod_network

FIRST, SECOND = free_network([], 2).nodes
SERVER = Certificate(Path("/c/kubelet-node-2-server.crt"), Path("/c/kubelet-node-2-server.key"))


def test_a_full_disk_makes_the_kubelet_delete_no_image_and_evict_no_pod() -> None:
    found = kubelet_configuration(FIRST.address, SERVER, "/cgroup", Path("/c/ca.crt"))
    assert {found["evictionHard"][signal] for signal in DISK_SIGNALS} == {"0%"}
    assert found["imageGCHighThresholdPercent"] == 100


def test_each_kubelet_has_its_own_certificate_cgroup_and_dns() -> None:
    found = kubelet_configuration(SECOND.address, SERVER, "/second", Path("/c/ca.crt"))
    assert (found["tlsCertFile"], found["cgroupRoot"]) == (str(SERVER.certificate), "/second")
    assert found["clusterDNS"] == [SECOND.address] == [found["healthzBindAddress"]]


def test_each_proxy_knows_its_node_and_the_pods_of_all() -> None:
    found = proxy_arguments(Path("/c/kube-proxy.kubeconfig"), "10.208.0.0/16", SECOND)
    assert {"--hostname-override=node-2", "--cluster-cidr=10.208.0.0/16"} <= set(found)
    assert f"--healthz-bind-address={SECOND.address}:10256" in found


def test_pods_keep_their_addresses_on_the_way_to_another_node() -> None:
    bridge, _ = pod_network(SECOND.pods)["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": SECOND.pods}]]
    assert bridge["ipMasq"] is False


def test_names_on_the_machine_differ_and_fit_an_interface(tmp_path: Path) -> None:
    names = [footprint.name(tmp_path), *(footprint.name(tmp_path, number) for number in range(1, MOST_NODES + 1))]
    assert len(set(names)) == 1 + MOST_NODES
    assert max(map(len, names)) <= 15


def test_a_cluster_finds_the_processes_of_its_nodes_and_a_node_only_its_own(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = tmp_path / f"node-{number}"
        directory.mkdir()
        start("sleep", ["sleep", "600"], directory, lambda: True)
    assert len(find(tmp_path)) == 2
    assert len(stop_all(tmp_path / "node-1")) == 1
    assert [process.name() for process in find(tmp_path)] == ["sleep"]
    assert len(stop_all(tmp_path)) == 1


def test_a_node_that_is_off_has_no_namespaces_and_is_not_powered_off_again(tmp_path: Path) -> None:
    write_network(tmp_path, free_network([], 2))
    _, second = nodes_of(tmp_path)
    with pytest.raises(ClusterError, match="node-2 is off"):
        namespace_of(second.directory)
    with pytest.raises(ClusterError, match="node-2 is off"):
        faults.power_off(second)


def test_a_volume_is_offered_to_pods_on_every_node() -> None:
    offered, claim = volume("team", Path("/clusters/default/volumes/team"))
    assert "nodeAffinity" not in offered["spec"]
    assert offered["spec"]["hostPath"]["path"] == "/clusters/default/volumes/team"
    assert claim["spec"]["volumeName"] == offered["metadata"]["name"]
