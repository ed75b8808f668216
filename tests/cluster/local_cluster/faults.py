"""What can happen to a real node: drained, silent, without power, cut off, slow. `local_cluster node` calls these.

A clock that is ahead is not there: Linux has one wall clock for all namespaces. Packets that are late or lost are not
there: they need `netem`, which the kernels of our machines lack. `slow` limits how much a cable carries.
"""

import shutil
from collections.abc import Mapping

import psutil

from local_cluster import footprint, switch
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.namespace import HOLDER_FILE, is_on
from local_cluster.node import Node, boot, join, nodes_of
from local_cluster.processes import find, stop_all, wait_ready

DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=10m")


def cordon(node: Node, kubectl: Kubectl) -> None:
    """Let no new pod onto the node."""
    kubectl("cordon", node.name)


def uncordon(node: Node, kubectl: Kubectl) -> None:
    """Let pods onto the node again."""
    kubectl("uncordon", node.name)


def drain(node: Node, kubectl: Kubectl) -> None:
    """Evict all pods of the node, within their grace periods, and let no new one onto it."""
    kubectl("drain", node.name, *DRAIN)


def stop_kubelet(node: Node) -> None:
    """Stop the kubelet; containers run on. Kubernetes calls the node not ready after 50 s."""
    _kubelet(node).suspend()


def continue_kubelet(node: Node) -> None:
    """Let the kubelet continue."""
    _kubelet(node).resume()


def power_off(node: Node) -> list[str]:
    """Kill all processes of the node, containers included; return the names of those outside of containers.

    The cable is pulled first: no peer hears of a closed connection. /run is lost, all else stays. The machine then
    reaches Services through another node.
    """
    if not is_running(node):
        raise ClusterError(f"{node.name} is off")
    switch.connect(node.port, is_connected=False)
    killed = stop_all(node.directory)
    footprint.remove_cgroups(node.port)
    footprint.remove_interfaces(node.port)
    (node.directory / HOLDER_FILE).unlink()
    shutil.rmtree(node.directory / "run")
    if others := [*filter(is_running, nodes_of(node.cluster))]:
        switch.route_services(node.network, others[0].addresses)
    return killed


def power_on(node: Node, kubectl: Kubectl, environ: Mapping[str, str]) -> None:
    """Start a node that was powered off; return when it is ready."""
    if is_running(node):
        raise ClusterError(f"{node.name} is on")
    wait_ready(boot(node))
    join([node], kubectl, environ)


def unplug(node: Node) -> None:
    """Pull the node's cable: it reaches nothing, and nothing reaches it. Its processes run on."""
    switch.connect(node.port, is_connected=False)


def partition(nodes: tuple[Node, ...]) -> None:
    """Let no node reach another. All reach the API server, and the machine reaches all."""
    for node in filter(is_running, nodes):
        switch.isolate(node.port, is_isolated=True)


def slow(node: Node, rate: str) -> None:
    """Let the node's cable carry this much in each direction, for example `1mbit`."""
    switch.limit(node.port, node.namespace, rate)


def heal(nodes: tuple[Node, ...]) -> None:
    """Undo `unplug`, `partition` and `slow` for the nodes that are on."""
    for node in filter(is_running, nodes):
        switch.connect(node.port, is_connected=True)
        switch.isolate(node.port, is_isolated=False)
        switch.unlimit(node.port, node.namespace)


def restore(nodes: tuple[Node, ...], kubectl: Kubectl, environ: Mapping[str, str]) -> None:
    """Undo what has happened to the nodes, but for a kubelet that is stopped; return when all are on."""
    for node in nodes:
        if not is_running(node):
            power_on(node, kubectl, environ)
        uncordon(node, kubectl)
    heal(nodes)


def is_running(node: Node) -> bool:
    """Return whether the node has power."""
    return is_on(node.directory)


def _kubelet(node: Node) -> psutil.Process:
    for process in find(node.directory):
        if process.name() == "kubelet":
            return process
    raise ClusterError(f"{node.name} has no kubelet that runs")
