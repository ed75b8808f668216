"""Addresses of clusters do not collide, with each other or with what the machine has."""

import ipaddress

import pytest

from local_cluster.errors import ClusterError
from local_cluster.network import SIMULATED, SLOTS, free_network


def test_the_service_kubernetes_has_the_first_address_of_the_services() -> None:
    assert SIMULATED.kubernetes_service == "10.96.0.1"


def test_a_second_cluster_gets_other_addresses() -> None:
    first = free_network([])
    second = free_network([first.pods, first.services])
    assert {first.server, first.node, first.pods} & {second.server, second.node, second.pods} == set()


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
