"""NetworkPolicies on a node are enforced by kube-router's firewall, as a process: by iptables and ipset.

Its router and its proxy are off: the bridge and kube-proxy are there. (kube-network-policies, which judges the first
packet of each connection in a queue, needs a kernel with nftables' `queue`.)
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from local_cluster.binaries import binary
from local_cluster.health import answers
from local_cluster.kubectl import Manifest
from local_cluster.namespace import Namespace
from local_cluster.network import NodeAddresses
from local_cluster.processes import Started, start
from local_cluster.readers import reader

PROGRAMS = ("kube-router",)
StartGuard = Callable[[Namespace, Path, NodeAddresses, str, Mapping[str, str]], Started]
"""of what enforces NetworkPolicies: called as `start_network_policies`"""
USER = "kube-router"
HEALTH_PORT = 20244


def start_network_policies(
    namespace: Namespace, kubeconfig: Path, node: NodeAddresses, services: str, environ: Mapping[str, str]
) -> Started:
    """Start it in a node. `services`: the CIDR of Services."""
    command = [
        str(binary("kube-router", environ)),
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--service-cluster-ip-range={services}",
        f"--health-port={HEALTH_PORT}",
    ]
    # Its health endpoint answers at the node's address after the first rules.
    url = f"http://{node.address}:{HEALTH_PORT}/healthz"
    return start("kube-router", namespace.inside(*command), namespace.state, lambda: answers(url))


def rights() -> tuple[Manifest, Manifest]:
    """Return what kube-router may read, and who is kube-router."""
    verbs = ["get", "list", "watch"]
    return reader(
        USER,
        [
            {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces", "services", "endpoints"], "verbs": verbs},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    )
