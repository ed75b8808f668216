"""The real KubeRay operator, with the rights that its own RBAC manifests give it and no more."""

from collections.abc import Mapping
from pathlib import Path

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary, manifests
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start
from local_cluster.readers import binding

PROGRAMS = ("kuberay",)
KINDS = ("rayclusters", "rayjobs", "rayservices")
USER = "kuberay-operator"
ROLE = "kuberay-operator"
"""that KubeRay ships for its service account"""


def crds(environ: Mapping[str, str]) -> list[Path]:
    """Return the files of the CRDs that the operator needs with its usual feature gates."""
    return [manifests("kuberay", environ) / "crd" / "bases" / f"ray.io_{kind}.yaml" for kind in KINDS]


def start_kuberay(api_server: ApiServer, kubectl: Kubectl, environ: Mapping[str, str]) -> Started:
    """Start the operator. The cluster has `crds` already."""
    kubectl("apply", "--server-side", "-f", str(manifests("kuberay", environ) / "rbac" / "role.yaml"))
    kubectl.apply(binding(USER, ROLE))
    probe = f"{LOOPBACK}:{free_port()}"
    command = [
        str(binary("kuberay", environ)),
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address={probe}",
    ]
    variables = {"KUBECONFIG": str(api_server.kubeconfig_for(USER, USER))}
    return start("kuberay", command, api_server.directory, lambda: answers(f"http://{probe}/readyz"), variables)
