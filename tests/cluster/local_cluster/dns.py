"""CoreDNS on a node, as a process: cluster names resolve, and nothing else does."""

from collections.abc import Mapping
from pathlib import Path

from local_cluster.binaries import binary
from local_cluster.health import answers
from local_cluster.kubectl import Manifest
from local_cluster.namespace import Namespace
from local_cluster.processes import Started, start
from local_cluster.readers import reader

PROGRAMS = ("coredns",)
USER = "coredns"
DOMAIN = "cluster.local"
READY_PORT = 8181

COREFILE = """.:53 {{
    bind {address}
    ready {address}:{ready_port}
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
}}
"""


def start_dns(namespace: Namespace, kubeconfig: Path, address: str, environ: Mapping[str, str]) -> Started:
    """Start CoreDNS in a node at port 53 of this address."""
    corefile = namespace.state / "Corefile"
    corefile.write_text(COREFILE.format(address=address, ready_port=READY_PORT, domain=DOMAIN, kubeconfig=kubeconfig))
    command = namespace.inside(str(binary("coredns", environ)), "-conf", str(corefile))
    return start("coredns", command, namespace.state, lambda: answers(f"http://{address}:{READY_PORT}/ready"))


def rights() -> tuple[Manifest, Manifest]:
    """Return what CoreDNS may read, and who is CoreDNS."""
    verbs = ["list", "watch"]
    return reader(
        USER,
        [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    )
