"""The node profile: the control plane, and a real node in namespaces of its own with kubelet, containerd and DNS."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster import control_plane, dns, footprint, home, network_policies
from local_cluster.api_server import ApiServer, start_api_server
from local_cluster.binaries import binary
from local_cluster.errors import ClusterError
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl
from local_cluster.namespace import Namespace, make_namespace, routes
from local_cluster.network import Network, free_network
from local_cluster.packages import require
from local_cluster.processes import Started, start, wait_ready
from local_cluster.runtime import Runtime, pause_archive, start_runtime

log = logging.getLogger(__name__)

PROGRAMS = (*control_plane.PROGRAMS, *dns.PROGRAMS, *network_policies.PROGRAMS, "kubelet", "kube-proxy", "helm")
NAME = "node"
PROXY_HEALTH_PORT = 10256
ROOM_GIB = 20
"""for images, which are built, moved and unpacked, and for containers; with less a pod waits for ever"""


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """A running cluster with a real node."""

    kubectl: Kubectl
    runtime: Runtime | None
    """takes images; None if the cluster is not ours"""
    server: ApiServer | None = None
    """makes users; None if the cluster is not ours"""


def start_cluster(directory: Path, environ: Mapping[str, str], gpus: int) -> NodeCluster:
    """Start a cluster whose node says it has this many GPUs; return when pods run and names resolve.

    Raises ClusterError, also if this machine lacks root or a package.
    """
    require(environ)
    started = time.monotonic()
    network = free_network(routes())
    namespace = make_namespace(directory, network)
    runtime, containerd = start_runtime(directory, namespace, network)
    server = start_api_server(directory, environ, network)
    kubectl = control_plane.complete(server, environ, nodes=())
    wait_ready(containerd)
    runtime.import_archive(pause_archive(directory))
    for process in _start_node(server, kubectl, namespace, environ):
        wait_ready(process)
    wait_ready(network_policies.start_network_policies(server, kubectl, namespace, NAME, environ))
    kubectl("patch", "node", NAME, "--subresource=status", "--type=merge", f"--patch={_capacity(gpus)}")
    log.info("action=ready profile=node seconds=%.1f", time.monotonic() - started)
    return NodeCluster(kubectl, runtime, server)


DISK_SIGNALS = ("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")
"""on which a kubelet evicts pods and deletes images"""


def try_out(directory: Path, environ: Mapping[str, str]) -> None:
    """Raise ClusterError unless this machine lets us make what a node stands on; it goes with the directory."""
    try:
        require(environ)
        home.require_room(directory, ROOM_GIB)
        make_namespace(directory, free_network(routes()))
        footprint.make_cgroup(directory)
    except OSError as error:
        raise ClusterError(f"this machine lets nobody make a cgroup: {error}") from error


def kubelet_configuration(directory: Path, network: Network, cgroup: str, authority: Path) -> dict[str, Any]:
    """Return the kubelet's configuration: that of a real node, on a machine that is used for other things too."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority)}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(directory / "certificates" / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(directory / "certificates" / "kubelet-server.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [network.node],
        "clusterDomain": dns.DOMAIN,
        "resolvConf": "",
        # The machine is not the node's alone: a full disk or a busy memory must not evict a test's pods. Under pressure
        # of the disk the kubelet would also delete every image, the sandbox's too, and nothing could pull them again;
        # containerd 1.6 cannot pin images. 0% and 100%: never.
        "evictionHard": {"memory.available": "100Mi", **dict.fromkeys(DISK_SIGNALS, "0%")},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "registryPullQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
    }


def proxy_arguments(kubeconfig: Path, network: Network) -> list[str]:
    """Return the arguments of kube-proxy. Sizes of connection tracking belong to the machine and are left alone."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={network.pods}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
        f"--healthz-bind-address={network.node}:{PROXY_HEALTH_PORT}",
    ]


def _start_node(server: ApiServer, kubectl: Kubectl, namespace: Namespace, environ: Mapping[str, str]) -> list[Started]:
    network, directory = server.network, server.directory
    assert network.node is not None
    server.authority.server("kubelet-server", [NAME], [network.node])
    configuration = namespace.state / "kubelet.json"
    cgroup = footprint.make_cgroup(directory)
    configured = kubelet_configuration(directory, network, cgroup, server.authority.own.certificate)
    configuration.write_text(json.dumps(configured, indent=2))
    kubelet = [
        str(binary("kubelet", environ)),
        f"--config={configuration}",
        f"--kubeconfig={server.kubeconfig_for('kubelet', f'system:node:{NAME}', ['system:nodes'])}",
        f"--hostname-override={NAME}",
        f"--node-ip={network.node}",
    ]
    proxy = proxy_arguments(server.kubeconfig_for("kube-proxy", "system:kube-proxy"), network)
    health = f"http://{network.node}:{PROXY_HEALTH_PORT}/healthz"
    return [
        dns.start_dns(server, kubectl, namespace, network.node, environ),
        start("kubelet", namespace.inside(*kubelet), directory, lambda: _is_ready(kubectl)),
        start(
            "kube-proxy",
            namespace.inside(str(binary("kube-proxy", environ)), *proxy),
            directory,
            lambda: answers(health),
        ),
    ]


def _is_ready(kubectl: Kubectl) -> bool:
    nodes = [node for node in kubectl.get("nodes")["items"] if node["metadata"]["name"] == NAME]
    conditions = [condition for node in nodes for condition in node["status"].get("conditions", ())]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _capacity(gpus: int) -> str:
    amount = {"nvidia.com/gpu": str(gpus)}
    return json.dumps({"status": {"capacity": amount, "allocatable": amount}})
