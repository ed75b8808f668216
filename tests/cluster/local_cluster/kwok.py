"""Simulated nodes: kwok plays their kubelets, so that thousands of pods "run" in seconds and nothing is executed.

What a pod does is a chain of Stage objects; those of `kustomize/stage/fast` make a pod Running and Ready at once. A
test that wants another fate (a crash, a node that is lost) applies stages of its own.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary, manifests
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start

PROGRAMS = ("kwok",)
NODE_ANNOTATION = "kwok.x-k8s.io/node"
STAGE_CRD = "kwok.x-k8s.io_stages.yaml"


def simulated_node(name: str, gpus: int = 8, cpus: int = 64, memory_gib: int = 512) -> Manifest:
    """Return a node that kwok plays: the scheduler counts its GPUs as it counts real ones."""
    capacity = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", "pods": "110"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {NODE_ANNOTATION: "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def crd(environ: Mapping[str, str]) -> Path:
    """Return the file of the one CRD that is used: Stage."""
    return manifests("kwok", environ) / "crd" / "bases" / STAGE_CRD


def start_kwok(api_server: ApiServer, kubectl: Kubectl, environ: Mapping[str, str]) -> Started:
    """Start kwok with the stages that make everything succeed at once. The cluster has `crd` already."""
    kubectl("apply", "--server-side", "-k", str(manifests("kwok", environ) / "stage" / "fast"))
    address = f"{LOOPBACK}:{free_port()}"
    command = [
        str(binary("kwok", environ)),
        f"--kubeconfig={api_server.kubeconfig}",
        "--config=/dev/null",  # not ~/.kwok/kwok.yaml
        f"--manage-nodes-with-annotation-selector={NODE_ANNOTATION}=fake",
        "--enable-crds=Stage",
        "--cidr=10.128.0.0/9",  # apart from real pods, and wide enough for any test
        f"--node-ip={LOOPBACK}",
        "--node-lease-duration-seconds=40",
        f"--server-address={address}",
    ]
    return start("kwok", command, api_server.directory, lambda: answers(f"http://{address}/healthz"))


def remind(kubectl: Kubectl) -> None:
    """Change all stages, for kwok to read them again.

    kwok 0.7.0 looks at its stages when an event comes, and takes those that it knows while their version is the one
    that it knows: none, at first. When all first events come before its informer has set the version, which happens on
    a busy machine, it has no stages until something changes, and plays nothing.
    """
    kubectl("annotate", "stages", "--all", "--overwrite", f"rljob.dev/reminded={time.time()}")
