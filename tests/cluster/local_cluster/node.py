"""One real node: kubelet, containerd, kube-proxy, CoreDNS and kube-router in namespaces of their own.

`install` writes its files once. `boot` and `join` start it from these, the first time and after a power-off.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster import dns, footprint, network_policies
from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary
from local_cluster.certificates import Certificate
from local_cluster.hardware import DISK_SIGNALS, Parts, read_hardware
from local_cluster.health import answers
from local_cluster.kubeconfig import path_of
from local_cluster.kubectl import Kubectl
from local_cluster.namespace import Namespace, make_namespace, namespace_of
from local_cluster.network import Network, NodeAddresses, read_network
from local_cluster.processes import Started, start, wait_ready
from local_cluster.runtime import Runtime, start_runtime
from local_cluster.switch import plug_in

PROGRAMS = (*dns.PROGRAMS, *network_policies.PROGRAMS, "kubelet", "kube-proxy")
PROXY_USER = "kube-proxy"
PROXY_HEALTH_PORT = 10256
KUBELET_HEALTH_PORT = 10248
KUBELET_FILE = "kubelet.json"
"""has the kubelet's configuration, in the node's directory"""


@dataclass(frozen=True, slots=True)
class Node:
    """A real node: its place in the cluster."""

    cluster: Path
    """directory of the cluster"""
    network: Network
    """of the cluster"""
    addresses: NodeAddresses

    @property
    def name(self) -> str:
        """What Kubernetes calls it."""
        return self.addresses.name

    @property
    def directory(self) -> Path:
        """Where it keeps all that it writes."""
        return self.cluster / self.name

    @property
    def parts(self) -> Parts:
        """What it is built of."""
        return read_hardware(self.cluster).parts(self.addresses.number)

    @property
    def port(self) -> str:
        """The name of the machine's end of its cable; its cgroup has this name, too."""
        return footprint.name(self.cluster, self.addresses.number)

    @property
    def namespace(self) -> Namespace:
        """Its namespaces. Raises ClusterError if it is off."""
        return namespace_of(self.directory)

    @property
    def runtime(self) -> Runtime:
        """Its containerd, which takes images."""
        return Runtime(self.directory)


def nodes_of(cluster: Path) -> tuple[Node, ...]:
    """Return the real nodes of the cluster in this directory."""
    network = read_network(cluster)
    return tuple(Node(cluster, network, addresses) for addresses in network.nodes) if network else ()


def admit(server: ApiServer, kubectl: Kubectl) -> None:
    """Give the programs that run on each node their rights and kubeconfigs."""
    kubectl.apply(*dns.rights(), *network_policies.rights())
    for user in (dns.USER, network_policies.USER):
        server.kubeconfig_for(user, user)
    server.kubeconfig_for(PROXY_USER, f"system:{PROXY_USER}")


def install(node: Node, server: ApiServer) -> None:
    """Write the files of the kubelet: certificates and configuration."""
    address = node.addresses.address
    certificate = server.authority.server(f"{_kubelet(node)}-server", [node.name], [address])
    server.kubeconfig_for(_kubelet(node), f"system:node:{node.name}", ["system:nodes"])
    usual = kubelet_configuration(address, certificate, f"/{node.port}", server.authority.own.certificate)
    (node.directory / KUBELET_FILE).write_text(json.dumps({**usual, **node.parts.kubelet}, indent=2))


def boot(node: Node) -> Started:
    """Make the node's namespaces, connect its cable, and start containerd, which is returned."""
    namespace = make_namespace(node.directory)
    plug_in(node.cluster, node.network, node.addresses, namespace)
    footprint.make_cgroup(node.cluster, node.addresses.number)
    return start_runtime(namespace, node.addresses.pods, node.parts.files)


def join(nodes: Sequence[Node], kubectl: Kubectl, environ: Mapping[str, str]) -> None:
    """Start the programs of nodes whose containerd runs; return when pods run there and names resolve."""
    for process in [process for node in nodes for process in _programs(node, kubectl, environ)]:
        wait_ready(process)
    for process in [process for node in nodes for process in _guards(node, environ)]:
        wait_ready(process)
    for node in nodes:
        node.parts.gpus.attach(node.name, node.directory, kubectl)


def kubelet_configuration(address: str, server: Certificate, cgroup: str, authority: Path) -> dict[str, Any]:
    """Return the kubelet's configuration: that of a real node, on a machine that is used for other things too.

    `address` of the node, `server` the kubelet's certificate, `authority` the file of the one that signs clients'.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority)}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(server.certificate),
        "tlsPrivateKeyFile": str(server.key),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [address],
        "clusterDomain": dns.DOMAIN,
        "resolvConf": "",
        "healthzBindAddress": address,
        "healthzPort": KUBELET_HEALTH_PORT,
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


def proxy_arguments(kubeconfig: Path, pods: str, node: NodeAddresses) -> list[str]:
    """Return the arguments of kube-proxy. Sizes of connection tracking belong to the machine and are left alone.

    `pods`: the CIDR of all pods of the cluster.
    """
    return [
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={pods}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
        f"--healthz-bind-address={node.address}:{PROXY_HEALTH_PORT}",
    ]


def _programs(node: Node, kubectl: Kubectl, environ: Mapping[str, str]) -> list[Started]:
    """Start all but what enforces NetworkPolicies, which needs the kubelet."""
    address, namespace = node.addresses.address, node.namespace
    kubelet = [
        str(binary("kubelet", environ)),
        f"--config={node.directory / KUBELET_FILE}",
        f"--kubeconfig={path_of(node.cluster, _kubelet(node))}",
        f"--hostname-override={node.name}",
        f"--node-ip={address}",
    ]
    proxy = proxy_arguments(path_of(node.cluster, PROXY_USER), node.network.pods, node.addresses)
    proxy = namespace.inside(str(binary("kube-proxy", environ)), *proxy)
    proxy_health = f"http://{address}:{PROXY_HEALTH_PORT}/healthz"
    # Kubernetes takes a node that comes back soon for ready all the time.
    health = f"http://{address}:{KUBELET_HEALTH_PORT}/healthz"
    return [
        dns.start_dns(namespace, path_of(node.cluster, dns.USER), address, environ),
        start(
            "kubelet",
            namespace.inside(*kubelet),
            node.directory,
            lambda: answers(health) and is_ready(node.name, kubectl),
        ),
        start("kube-proxy", proxy, node.directory, lambda: answers(proxy_health)),
    ]


def _guards(node: Node, environ: Mapping[str, str]) -> list[Started]:
    kubeconfig = path_of(node.cluster, network_policies.USER)
    services = node.network.services
    return [begin(node.namespace, kubeconfig, node.addresses, services, environ) for begin in node.parts.guards]


def _kubelet(node: Node) -> str:
    """Return the name of the files of its certificate and kubeconfig."""
    return f"kubelet-{node.name}"


def is_ready(name: str, kubectl: Kubectl) -> bool:
    """Return whether Kubernetes calls the node of this name ready."""
    nodes = [each for each in kubectl.get("nodes")["items"] if each["metadata"]["name"] == name]
    conditions = [condition for each in nodes for condition in each["status"].get("conditions", ())]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
