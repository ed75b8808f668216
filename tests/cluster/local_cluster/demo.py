"""`make cluster-demo`: the quickstart in pods, from nothing to its reward curve."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.node import NodeCluster
from local_cluster.project import Workspace, install, workspace
from local_cluster.project_images import REPOSITORY

MANIFEST = REPOSITORY / "docs" / "examples" / "quickstart.yaml"
NAMESPACE = "demo"
LOOK_S = 1.0


def demo(cluster: NodeCluster, environ: Mapping[str, str]) -> str:
    """Train the quickstart on this cluster, and return what it left. Raises ClusterError if it fails."""
    install(cluster, environ)
    place = workspace(cluster, NAMESPACE)
    name = yaml.safe_load(MANIFEST.read_text())["metadata"]["name"]
    kubectl = cluster.kubectl
    kubectl("delete", "rljob", name, "-n", NAMESPACE, "--ignore-not-found")
    print(kubectl("apply", "-n", NAMESPACE, "-f", str(MANIFEST)).strip())
    for line in news(kubectl, name):
        print(line, flush=True)
    if kubectl.get("rljob", name, "-n", NAMESPACE)["status"]["phase"] != "Succeeded":
        raise ClusterError(kubectl("describe", "rljob", name, "-n", NAMESPACE))
    return "\n".join([curve(kubectl, name), *checkpoints(place)])


def news(kubectl: Kubectl, name: str) -> Iterator[str]:
    """Yield a line for people whenever it changes, until the job has ended."""
    said = ""
    while True:
        status = kubectl.get("rljob", name, "-n", NAMESPACE).get("status", {})
        if (line := in_words(status)) != said:
            yield line
            said = line
        if status.get("phase") in ("Succeeded", "Failed", "Invalid"):
            return
        time.sleep(LOOK_S)


def in_words(status: Mapping[str, Any]) -> str:
    """Return one line about a status."""
    progress = status.get("progress", {})
    numbers = [f"{name} {progress[name]}" for name in ("step", "reward", "heldOutAccuracy") if name in progress]
    return "  ".join([status.get("phase") or "Pending", *numbers])


def curve(kubectl: Kubectl, name: str) -> str:
    """Return what `rljob plot` draws."""
    command = [str(Path(sys.executable).with_name("rljob")), "plot", name, f"--namespace={NAMESPACE}"]
    return subprocess.run(command, env=kubectl.environment, capture_output=True, text=True, check=True).stdout


def checkpoints(place: Workspace) -> list[str]:
    """Return the checkpoints on the volume."""
    return [f"on the volume: {path}" for path in sorted(place.volume.glob("**/iter_*"))]
