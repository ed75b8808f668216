"""rljob on a cluster with real nodes, as its users install it: images, chart, and a volume for the runs."""

import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster.binaries import binary
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.node_cluster import NodeCluster
from local_cluster.project_images import OPERATOR, REPOSITORY, TRAINER, load

log = logging.getLogger(__name__)

RELEASE = "rljob"
NAMESPACE = "rljob"
"""of the operator"""
CLAIM = "runs"
MOUNT = Path("/rljob")
"""where a job's pods see the volume"""
USER = 10001
LoadImages = Callable[[NodeCluster, Mapping[str, str]], tuple[str, str]]
"""gives images to the nodes, and returns the names of the trainer's and the operator's"""
HELM_OPTIONS = ("--wait", "--timeout=3m", "--take-ownership")  # the tests' clusters have the CRD already


@dataclass(frozen=True, slots=True)
class Workspace:
    """A namespace for jobs, with a volume that they share."""

    namespace: str
    volume: Path
    """as this machine and the nodes see it; pods see it at MOUNT"""


def built_images(cluster: NodeCluster, environ: Mapping[str, str]) -> tuple[str, str]:
    """Build the images of trainer and operator, load them into the nodes, and return their names."""
    trainer, operator = (load(image, cluster, environ) for image in (TRAINER, OPERATOR))
    return trainer, operator


def install(
    cluster: NodeCluster, environ: Mapping[str, str], *values: str, load_images: LoadImages = built_images
) -> None:
    """Load the images of trainer and operator into the nodes, and install the chart. Raises ClusterError."""
    if not cluster.nodes:
        raise ClusterError("images can only be loaded into a cluster that was started here")
    trainer, operator = load_images(cluster, environ)
    cluster.kubectl.make_namespace(NAMESPACE)
    repository, _, tag = operator.rpartition(":")
    settings = {
        "image.repository": repository,
        "image.tag": tag,
        "trainer.image": trainer,
        "trainer.storage.persistentVolumeClaim.claimName": CLAIM,
        "trainer.storagePath": str(MOUNT),
    }
    given = [f"--set={name}={value}" for name, value in settings.items()]
    helm(cluster.kubectl, "upgrade", "--install", RELEASE, "charts/rljob", *HELM_OPTIONS, *given, *values)


def helm(kubectl: Kubectl, *arguments: str) -> str:
    """Run helm on the operator's namespace; return what it prints. Raises ClusterError."""
    command = [str(binary("helm", os.environ)), f"--namespace={NAMESPACE}", *arguments]
    environment = {**os.environ, **kubectl.environment}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def workspace(cluster: NodeCluster, namespace: str) -> Workspace:
    """Make a namespace for jobs, with a claim for a volume that all their pods can write to, on each node."""
    cluster.kubectl.make_namespace(namespace)
    directory = cluster.volumes / namespace
    directory.mkdir(parents=True, exist_ok=True)
    os.chown(directory, USER, USER)
    cluster.kubectl.apply(*volume(namespace, directory))
    return Workspace(namespace, directory)


def volume(namespace: str, path: Path) -> tuple[Manifest, Manifest]:
    """Return a volume in a directory that all nodes see, and the claim to it."""
    name = f"{CLAIM}-{namespace}"
    size = {"storage": "20Gi"}
    offered = {
        "capacity": size,
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": CLAIM},
        "hostPath": {"path": str(path), "type": "Directory"},
    }
    asked = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": size},
    }
    kinds = {"apiVersion": "v1", "metadata": {"name": name}, "kind": "PersistentVolume", "spec": offered}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": asked}
    return kinds, claim | {"metadata": {"name": CLAIM, "namespace": namespace}}
