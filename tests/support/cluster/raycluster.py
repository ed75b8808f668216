"""A small RayCluster, as its users write one."""

from typing import Any

from local_cluster.kubectl import Manifest
from support.cluster.restricted import CONTAINER, POD


def raycluster(name: str, namespace: str, workers: int, gpus: int, node_selector: dict[str, str]) -> Manifest:
    """Return a RayCluster with a head without GPUs and one group of workers with this many GPUs each."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"rayStartParams": {}, "template": _pod("head", 0, node_selector)},
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": workers,
                    "minReplicas": workers,
                    "maxReplicas": workers,
                    "rayStartParams": {},
                    "template": _pod("worker", gpus, node_selector),
                }
            ],
        },
    }


def _pod(container: str, gpus: int, node_selector: dict[str, str]) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    resources = {"limits": amounts, "requests": amounts}
    return {
        "spec": {
            "nodeSelector": node_selector,
            "securityContext": POD,
            "containers": [
                {
                    "name": container,
                    "image": "ray.local/ray:test",
                    "resources": resources,
                    "securityContext": CONTAINER,
                }
            ],
        }
    }
