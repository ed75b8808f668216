"""How long pods stay on a node whose kubelet is silent: the tolerations of two taints. Pure.

Kubernetes lets pods stay for 300 s. A training job with a pod there stands still, and its other GPUs with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Toleration = Mapping[str, Any]

TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""that the node controller sets; pods without a toleration of one are deleted at once"""
EFFECT = "NoExecute"


def bounded(tolerations: Sequence[Toleration], longest_s: float) -> list[Toleration]:
    """Return tolerations with which a pod is deleted after this time, unless it has its own of that taint."""
    missing = [key for key in TAINTS if not any(_is_about(each, key) for each in tolerations)]
    rest = {"operator": "Exists", "effect": EFFECT, "tolerationSeconds": int(longest_s)}
    return [*tolerations, *({"key": key, **rest} for key in missing)]


def is_bound(toleration: Toleration) -> bool:
    """Return whether a toleration says how long a pod stays on a silent node: no pod is put on one because of it."""
    return toleration.get("key") in TAINTS and toleration.get("tolerationSeconds") is not None


def _is_about(toleration: Toleration, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in (EFFECT, "", None)
