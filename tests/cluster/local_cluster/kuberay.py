"""The real KubeRay operator, with the rights that its own RBAC manifests give it and no more."""

from collections.abc import Mapping
from pathlib import Path

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary, manifests
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start

PROGRAMS = ("kuberay",)
KINDS = ("rayclusters", "rayjobs", "rayservices")
USER = "kuberay-operator"


def crds(environ: Mapping[str, str]) -> list[Path]:
    """Return the files of the CRDs that the operator needs with its usual feature gates."""
    return [manifests("kuberay", environ) / "crd" / "bases" / f"ray.io_{kind}.yaml" for kind in KINDS]


def binding() -> Manifest:
    """Return what gives the operator, here a user, the role that KubeRay ships for its service account."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kuberay-operator"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }


def start_kuberay(api_server: ApiServer, kubectl: Kubectl, environ: Mapping[str, str]) -> Started:
    """Start the operator. The cluster has `crds` already."""
    kubectl("apply", "--server-side", "-f", str(manifests("kuberay", environ) / "rbac" / "role.yaml"))
    kubectl.apply(binding())
    probe = f"{LOOPBACK}:{free_port()}"
    command = [
        str(binary("kuberay", environ)),
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address={probe}",
    ]
    variables = {"KUBECONFIG": str(api_server.kubeconfig_for(USER, USER))}
    return start("kuberay", command, api_server.directory, lambda: answers(f"http://{probe}/readyz"), variables)
