"""The addresses of one cluster."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from local_cluster.errors import ClusterError

LOOPBACK = "127.0.0.1"
SLOTS = range(16)
"""as many clusters with a real node fit next to each other"""


@dataclass(frozen=True, slots=True)
class Network:
    """Who has which address."""

    server: str
    """of the API server"""
    services: str
    """CIDR"""
    pods: str
    """CIDR"""
    node: str | None = None
    """of the node; None if all nodes are simulated"""

    @property
    def kubernetes_service(self) -> str:
        """The address of the Service `kubernetes`: the first of the services."""
        return str(ipaddress.IPv4Network(self.services)[1])


SIMULATED = Network(server=LOOPBACK, services="10.96.0.0/16", pods="10.244.0.0/16")
"""of every cluster whose nodes are simulated: nothing ever goes to or from the addresses of services and pods"""


def free_network(routes: Sequence[str]) -> Network:
    """Return addresses for a cluster with a node that overlap none of these destinations (CIDRs or addresses).

    Raises ClusterError if there is no room.
    """
    taken = [ipaddress.IPv4Network(route, strict=False) for route in routes]
    for slot in SLOTS:
        link = ipaddress.IPv4Network(f"10.240.{slot}.0/30")
        network = Network(str(link[1]), f"10.{224 + slot}.0.0/16", f"10.{208 + slot}.0.0/16", str(link[2]))
        if not any(_overlap(network, link, other) for other in taken):
            return network
    raise ClusterError(
        "10.208.0.0-10.240.15.255 has no room for another cluster with a node; "
        "remove one with `make cluster-down`, or see `ip route` for who else uses those addresses"
    )


def _overlap(network: Network, link: ipaddress.IPv4Network, other: ipaddress.IPv4Network) -> bool:
    return any(other.overlaps(ipaddress.IPv4Network(own)) for own in (network.services, network.pods, link))
