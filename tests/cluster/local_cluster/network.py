"""The addresses of one cluster."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

LOOPBACK = "127.0.0.1"
SLOTS = range(16)
"""as many clusters with real nodes fit next to each other"""
FIRST_NODE = "node"
"""its name; the others are `node-2`, `node-3` and so on"""
MOST_NODES = 9
"""of one cluster: the number is one digit of an interface's name"""
LINK_PREFIX = 28
POD_PREFIX = 20
"""of the pods of one node"""
FILE = "network.json"


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """The addresses of one real node."""

    number: int
    """from 1"""
    address: str
    pods: str
    """CIDR of its pods"""

    @property
    def name(self) -> str:
        """The name of the node."""
        return FIRST_NODE if self.number == 1 else f"{FIRST_NODE}-{self.number}"


@dataclass(frozen=True, slots=True)
class Network:
    """Who has which address."""

    server: str
    """of the API server, and of the machine"""
    services: str
    """CIDR"""
    pods: str
    """CIDR of all pods"""
    nodes: tuple[NodeAddresses, ...] = ()
    """real nodes; none if all nodes are simulated"""

    @property
    def kubernetes_service(self) -> str:
        """The address of the Service `kubernetes`: the first of the services."""
        return str(ipaddress.IPv4Network(self.services)[1])

    def routes_of(self, node: NodeAddresses) -> dict[str, str]:
        """Return where a node sends packets for the pods of the other nodes: addresses by CIDR."""
        return {other.pods: other.address for other in self.nodes if other != node}


SIMULATED = Network(server=LOOPBACK, services="10.96.0.0/16", pods="10.244.0.0/16")
"""of every cluster whose nodes are simulated: nothing ever goes to or from the addresses of services and pods"""


def free_network(routes: Sequence[str], nodes: int = 1) -> Network:
    """Return addresses for a cluster with real nodes that overlap none of these destinations (CIDRs or addresses).

    Raises ClusterError if there is no room.
    """
    if nodes not in range(1, MOST_NODES + 1):
        raise ClusterError(f"{nodes} real nodes: a cluster has 1 to {MOST_NODES}")
    taken = [ipaddress.IPv4Network(route, strict=False) for route in routes]
    for slot in SLOTS:
        link = ipaddress.IPv4Network(f"10.240.{slot}.0/{LINK_PREFIX}")
        pods = ipaddress.IPv4Network(f"10.{208 + slot}.0.0/16")
        services = ipaddress.IPv4Network(f"10.{224 + slot}.0.0/16")
        if not any(other.overlaps(own) for other in taken for own in (link, pods, services)):
            shares = pods.subnets(new_prefix=POD_PREFIX)
            numbered = zip(range(1, nodes + 1), shares, strict=False)
            real = tuple(NodeAddresses(number, str(link[1 + number]), str(share)) for number, share in numbered)
            return Network(str(link[1]), str(services), str(pods), real)
    raise ClusterError(
        "10.208.0.0-10.240.15.255 has no room for another cluster with a node; "
        "remove one with `make cluster-down`, or see `ip route` for who else uses those addresses"
    )


def write_network(directory: Path, network: Network) -> None:
    """Keep the addresses in the cluster's directory: a node that starts again needs them."""
    (directory / FILE).write_text(json.dumps(asdict(network), indent=2))


def read_network(directory: Path) -> Network | None:
    """Return the addresses of the cluster in this directory; None if it has no real node."""
    file = directory / FILE
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    return Network(**{**found, "nodes": tuple(NodeAddresses(**node) for node in found["nodes"])})
