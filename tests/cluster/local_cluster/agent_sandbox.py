"""The real controller of agent-sandbox, with the rights that its own RBAC manifests give it and no more."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary, manifests
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start
from local_cluster.readers import binding

PROGRAMS = ("agent-sandbox",)
CRD = "sandboxes.agents.x-k8s.io"
VERSION = "v1beta1"
"""newer releases serve no other, and so need no webhook that converts"""
USER = "agent-sandbox-controller"
ROLE = "agent-sandbox-controller"
"""that agent-sandbox ships for its service account"""


def start_agent_sandbox(api_server: ApiServer, kubectl: Kubectl, environ: Mapping[str, str]) -> Started:
    """Install the CRD of Sandboxes, and start the controller."""
    shipped = manifests("agent-sandbox", environ)
    kubectl.apply(_crd(shipped / "crds" / "agents.x-k8s.io_sandboxes.yaml"))
    kubectl.wait_for_crds()
    kubectl("apply", "--server-side", "-f", str(shipped / "rbac.generated.yaml"))
    kubectl.apply(binding(USER, ROLE))
    probe = f"{LOOPBACK}:{free_port()}"
    command = [
        str(binary("agent-sandbox", environ)),
        "--leader-elect=false",
        "--enable-webhook=false",
        "--metrics-bind-address=0",
        f"--health-probe-bind-address={probe}",
    ]
    variables = {"KUBECONFIG": str(api_server.kubeconfig_for(USER, USER))}
    return start("agent-sandbox", command, api_server.directory, lambda: answers(f"http://{probe}/readyz"), variables)


def _crd(path: Path) -> Manifest:
    """Return the CRD with one version."""
    crd: Manifest = yaml.safe_load(path.read_text())
    crd["spec"]["versions"] = [each for each in crd["spec"]["versions"] if each["name"] == VERSION]
    del crd["spec"]["conversion"]
    return crd
