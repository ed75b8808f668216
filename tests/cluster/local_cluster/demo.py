"""`make cluster-demo`: the quickstart in pods, from nothing to its reward curve."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import Workspace, install, workspace
from local_cluster.project_images import REPOSITORY

MANIFEST = REPOSITORY / "docs" / "examples" / "quickstart.yaml"
NAMESPACE = "demo"


def demo(cluster: NodeCluster, environ: Mapping[str, str]) -> str:
    """Train the quickstart on this cluster, and return what it left. Raises ClusterError if it fails."""
    install(cluster, environ)
    place = workspace(cluster, NAMESPACE)
    name = yaml.safe_load(MANIFEST.read_text())["metadata"]["name"]
    kubectl = cluster.kubectl
    kubectl("delete", "rljob", name, "-n", NAMESPACE, "--ignore-not-found")
    print(kubectl("apply", "-n", NAMESPACE, "-f", str(MANIFEST)).strip())
    if rljob(kubectl, "status", name, "--watch"):
        raise ClusterError(kubectl("describe", "rljob", name, "-n", NAMESPACE))
    rljob(kubectl, "plot", name)
    return "\n".join(checkpoints(place))


def rljob(kubectl: Kubectl, verb: str, *arguments: str) -> int:
    """Run our own command line, as its users do, and return its exit code."""
    command = [str(Path(sys.executable).with_name("rljob")), verb, f"--namespace={NAMESPACE}", *arguments]
    return subprocess.run(command, env={**os.environ, **kubectl.environment}, check=False).returncode


def checkpoints(place: Workspace) -> list[str]:
    """Return the checkpoints on the volume."""
    return [f"on the volume: {path}" for path in sorted(place.volume.glob("**/iter_*"))]
