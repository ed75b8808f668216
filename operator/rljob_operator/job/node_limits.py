"""Nodes that pods may not be on. Pure."""

from collections.abc import Sequence
from typing import Any

from rljob_operator.identity import HOSTNAME_LABEL, Manifest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def without_nodes(pod: Manifest, nodes: Sequence[str]) -> Manifest:
    """Return a pod's spec that lets it on none of these nodes; its other affinities stay."""
    if not nodes:
        return pod
    affinity = pod.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{"matchExpressions": []}]
    required = {"nodeSelectorTerms": [_without(term, nodes) for term in terms]}
    return {**pod, "affinity": {**affinity, "nodeAffinity": {**of_nodes, REQUIRED: required}}}


def _without(term: Any, nodes: Sequence[str]) -> Any:
    """Return one of several alternatives with the nodes left out of it; an empty one lets a pod on no node at all."""
    if not term:
        return term
    elsewhere = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(nodes)}
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), elsewhere]}
