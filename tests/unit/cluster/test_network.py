"""Addresses of clusters do not collide, with each other or with what the machine has."""

import ipaddress
from itertools import combinations
from pathlib import Path

import pytest

from local_cluster.errors import ClusterError
from local_cluster.network import MOST_NODES, SIMULATED, SLOTS, free_network, read_network, write_network


def test_the_service_kubernetes_has_the_first_address_of_the_services() -> None:
    assert SIMULATED.kubernetes_service == "10.96.0.1"


def test_a_second_cluster_gets_other_addresses() -> None:
    first = free_network([])
    second = free_network([first.pods, first.services])
    assert {first.server, first.nodes[0].address, first.pods} & {
        second.server,
        second.nodes[0].address,
        second.pods,
    } == set()


def test_addresses_that_the_machine_routes_elsewhere_are_avoided() -> None:
    vpn = "10.224.0.0/14"
    network = free_network([vpn, "192.168.1.7"])
    assert not ipaddress.ip_network(network.services).overlaps(ipaddress.ip_network(vpn))


def test_a_machine_that_routes_everything_elsewhere_is_reported() -> None:
    with pytest.raises(ClusterError, match=r"no room for another cluster.*make cluster-down"):
        free_network(["10.0.0.0/8"])


def test_every_slot_is_used() -> None:
    routes: list[str] = []
    for _ in SLOTS:
        routes.append(free_network(routes).pods)
    assert len(set(routes)) == len(SLOTS)


def test_the_nodes_of_a_cluster_share_its_addresses_without_overlaps() -> None:
    network = free_network([], MOST_NODES)
    pods = [ipaddress.ip_network(node.pods) for node in network.nodes]
    assert all(each.subnet_of(ipaddress.ip_network(network.pods)) for each in pods)
    assert not any(one.overlaps(other) for one, other in combinations(pods, 2))
    assert len({network.server, *(node.address for node in network.nodes)}) == 1 + MOST_NODES


def test_a_node_routes_the_pods_of_each_other_node_to_that_node() -> None:
    network = free_network([], 3)
    first, second, third = network.nodes
    assert network.routes_of(second) == {first.pods: first.address, third.pods: third.address}


def test_the_first_node_has_the_same_name_in_each_cluster() -> None:
    assert [node.name for node in free_network([]).nodes] == ["node"]
    assert [node.name for node in free_network([], 3).nodes] == ["node", "node-2", "node-3"]


@pytest.mark.parametrize("nodes", [0, MOST_NODES + 1])
def test_no_nodes_and_too_many_are_refused(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"{nodes} real nodes: a cluster has 1 to {MOST_NODES}"):
        free_network([], nodes)


def test_addresses_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_network(tmp_path) is None
    network = free_network([], 2)
    write_network(tmp_path, network)
    assert read_network(tmp_path) == network
