"""The node profile: the control plane, and real nodes in namespaces of their own with kubelet, containerd and DNS."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster import control_plane, footprint, home, node, node_images
from local_cluster.api_server import ApiServer, start_api_server
from local_cluster.errors import ClusterError
from local_cluster.hardware import PRETENDED, Hardware, write_hardware
from local_cluster.kubectl import Kubectl
from local_cluster.namespace import make_namespace
from local_cluster.network import free_network, write_network
from local_cluster.node import Node, nodes_of
from local_cluster.packages import require
from local_cluster.processes import wait_ready
from local_cluster.runtime import pause_archive
from local_cluster.switch import make_switch, plug_in, routes

log = logging.getLogger(__name__)

PROGRAMS = (*control_plane.PROGRAMS, *node.PROGRAMS, "helm")
ROOM_GIB = 20
"""for images, which are built, moved and unpacked, and for containers; with less a pod waits for ever"""
VOLUMES = "volumes"
"""directory of the cluster that all its nodes see, under the path that it has on this machine"""


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """A running cluster with real nodes."""

    kubectl: Kubectl
    nodes: tuple[Node, ...] = ()
    """take images; none if the cluster is not ours"""
    server: ApiServer | None = None
    """makes users; None if the cluster is not ours"""

    @property
    def volumes(self) -> Path:
        """A directory that all nodes see."""
        return self.kubectl.kubeconfig.parent / VOLUMES

    def import_archive(self, archive: Path) -> None:
        """Make the images of this archive known to all kubelets, and remove it. Raises ClusterError."""
        node_images.import_archive(archive, [each.runtime for each in self.nodes])

    def has_image(self, name: str) -> bool:
        """Return whether all kubelets know this image."""
        return all(name in each.runtime.images() for each in self.nodes)


def start_cluster(
    directory: Path, environ: Mapping[str, str], nodes: int = 1, hardware: Hardware = PRETENDED
) -> NodeCluster:
    """Start a cluster with this many nodes; return when pods run and names resolve.

    Raises ClusterError, also if this machine lacks root or a package.
    """
    require(environ, hardware.packages)
    started = time.monotonic()
    network = free_network(routes(), nodes)
    write_network(directory, network)
    write_hardware(directory, hardware)
    make_switch(directory, network)
    made = nodes_of(directory)
    runtimes = [node.boot(each) for each in made]
    server = start_api_server(directory, environ, network)
    kubectl = control_plane.complete(server, environ, nodes=())
    cluster = NodeCluster(kubectl, made, server)
    for runtime in runtimes:
        wait_ready(runtime)
    cluster.import_archive(pause_archive(directory))
    node.admit(server, kubectl)
    for each in made:
        node.install(each, server)
    node.join(made, kubectl, environ)
    log.info("action=ready profile=node nodes=%d seconds=%.1f", nodes, time.monotonic() - started)
    return cluster


def cluster_of(kubectl: Kubectl) -> NodeCluster:
    """Return the cluster that this kubectl talks to, with its nodes if `start_cluster` started it."""
    return NodeCluster(kubectl, nodes_of(kubectl.kubeconfig.parent))


def try_out(directory: Path, environ: Mapping[str, str]) -> None:
    """Raise ClusterError unless this machine lets us make what a node stands on; it goes with the directory."""
    try:
        require(environ)
        home.require_room(directory, ROOM_GIB)
        network = free_network(routes())
        write_network(directory, network)
        (tried,) = nodes_of(directory)
        make_switch(directory, network)
        plug_in(directory, network, tried.addresses, make_namespace(tried.directory))
        footprint.make_cgroup(directory, tried.addresses.number)
    except OSError as error:
        raise ClusterError(f"this machine lets nobody make a cgroup: {error}") from error
