"""The switch between the machine and the nodes of a cluster: a bridge, with a cable to each node.

The machine has the API server's address on it, and forwards nothing: nodes reach each other through the bridge, and
each has routes to the pods of the others.
"""

import subprocess
from pathlib import Path

from local_cluster import footprint
from local_cluster.errors import ClusterError
from local_cluster.namespace import Namespace
from local_cluster.network import LINK_PREFIX, Network, NodeAddresses

INTERFACE = "eth0"
"""of a node"""
BURST = ("burst", "32kbit", "latency", "400ms")
"""of a slow cable: what passes at once, and how long a packet waits before it is dropped"""


def make_switch(directory: Path, network: Network) -> None:
    """Make the bridge of this cluster, with the machine's routes to pods and Services. Raises ClusterError."""
    bridge = footprint.name(directory)
    run("ip", "link", "add", bridge, "address", _hardware_address(directory, 0), "type", "bridge")
    run("ip", "address", "add", f"{network.server}/{LINK_PREFIX}", "dev", bridge)
    run("ip", "link", "set", bridge, "up")
    for node in network.nodes:
        run("ip", "route", "add", node.pods, "via", node.address)
    route_services(network, network.nodes[0])


def route_services(network: Network, node: NodeAddresses) -> None:
    """Let the machine reach Services through this node."""
    run("ip", "route", "replace", network.services, "via", node.address)


def plug_in(directory: Path, network: Network, node: NodeAddresses, namespace: Namespace) -> None:
    """Lay a cable from the switch to the namespace of a node. Raises ClusterError."""
    port = footprint.name(directory, node.number)
    # The same address after each start: the others keep it for a while.
    end = ("peer", "name", INTERFACE, "netns", str(namespace.pid), "address", _hardware_address(directory, node.number))
    run("ip", "link", "add", port, "type", "veth", *end)
    run("ip", "link", "set", port, "master", footprint.name(directory), "up")
    run(*namespace.inside("ip", "address", "add", f"{node.address}/{LINK_PREFIX}", "dev", INTERFACE))
    run(*namespace.inside("ip", "link", "set", INTERFACE, "up"))
    run(*namespace.inside("ip", "route", "add", "default", "via", network.server))
    for pods, address in network.routes_of(node).items():
        run(*namespace.inside("ip", "route", "add", pods, "via", address))


def connect(port: str, is_connected: bool) -> None:
    """Connect a cable, or pull it out: then each packet to and from the node is lost, and no connection is closed."""
    run("ip", "link", "set", port, "up" if is_connected else "down")


def isolate(port: str, is_isolated: bool) -> None:
    """Let no packet pass between this port and others that are isolated, or let them. All reach the machine."""
    run("ip", "link", "set", port, "type", "bridge_slave", "isolated", "on" if is_isolated else "off")


def limit(port: str, namespace: Namespace, rate: str) -> None:
    """Let a cable carry this much in each direction, for example `1mbit`. Raises ClusterError."""
    for before, interface in _ends(port, namespace):
        run(*before, "tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, *BURST)


def unlimit(port: str, namespace: Namespace) -> None:
    """Let a cable carry as much as the machine can."""
    for before, interface in _ends(port, namespace):
        # Fails where there is no limit.
        subprocess.run([*before, "tc", "qdisc", "delete", "dev", interface, "root"], capture_output=True, check=False)


def routes() -> list[str]:
    """Return the destinations that the machine has routes to, less the default."""
    lines = run("ip", "-4", "route", "show").splitlines()
    return [destination for destination in (line.split()[0] for line in lines) if destination[0].isdigit()]


def run(*command: str) -> str:
    """Run a command and return its output. Raises ClusterError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _ends(port: str, namespace: Namespace) -> list[tuple[list[str], str]]:
    """Return the interfaces of a cable, each with what runs a command beside it."""
    return [([], port), (namespace.inside(), INTERFACE)]


def _hardware_address(directory: Path, number: int) -> str:
    digits = footprint.name(directory)[-8:]
    return ":".join(["0a", f"{number:02x}", *(digits[at : at + 2] for at in range(0, 8, 2))])
