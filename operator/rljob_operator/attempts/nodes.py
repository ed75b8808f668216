"""Which nodes an attempt's pods are on, and which of them failed it. Pure.

While it runs, a node fails that Kubernetes names as the reason for the end of a pod. When it has ended, also one whose
kubelet is silent, that has not ended a pod in time, or from which a pod with the driver or with ranks is gone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rljob_api.exits import Cause
from rljob_api.status import MOST_NODES, NodeFate
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.job.cluster_shape import is_of_engines
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.world import Pod

FATES: Mapping[str, NodeFate] = {
    "DeletionByTaintManager": NodeFate.EVICTED,
    "DeletionByPodGC": NodeFate.DELETED,
    "EvictionByEvictionAPI": NodeFate.EVICTED,
    "TerminationByKubelet": NodeFate.EVICTED,
    "Evicted": NodeFate.EVICTED,
    "NodeLost": NodeFate.UNREACHABLE,
    "NodeShutdown": NodeFate.EVICTED,
    "Terminated": NodeFate.EVICTED,
}
"""by reason of the end of a pod; a pod that makes room for one of a higher priority is not its node's failure"""
WORDS: Mapping[NodeFate, str] = {
    NodeFate.UNREACHABLE: "is unreachable",
    NodeFate.EVICTED: "has evicted a pod",
    NodeFate.DELETED: "is deleted or out of service",
    NodeFate.POD_LOST: "has lost a pod",
}
FAILED = tuple(WORDS)
NAMED = 3
"""nodes in a message"""


def with_nodes(record: AttemptRecord, attempt: AttemptView) -> AttemptRecord:
    """Return the record of an attempt that runs with the nodes of its pods; before it runs, pods come and go."""
    if record.started is None:
        return record
    pods = (*attempt.pods, *_ending_since(attempt, record.started))
    used = {pod.node: NodeFate.USED for pod in pods if pod.node is not None}
    return _with(record, {**used, **record.nodes, **dict(_disrupted(attempt, record.started))})


def with_failed_nodes(record: AttemptRecord, attempt: AttemptView) -> AttemptRecord:
    """Return the record of an attempt that has just ended, with the nodes that failed it; its reason names them."""
    if record.started is None or record.cause is Cause.SUSPENDED or attempt.lost_its_cluster:
        return record
    record = _with(record, {**dict(_lost(record, attempt)), **_failed(record.nodes)})
    failed = _failed(record.nodes)
    if not failed:
        return record
    named = [f"node {node} {WORDS[fate]}" for node, fate in sorted(failed.items())]
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return replace(record, reason=f"{record.reason}; {', '.join(named[:NAMED])}{rest}")


def without_used(record: AttemptRecord) -> AttemptRecord:
    """Return the record of an old attempt without the nodes that were well: a status stays small."""
    return replace(record, nodes={node: fate for node, fate in record.nodes.items() if fate is not NodeFate.USED})


def _failed(nodes: Mapping[str, NodeFate]) -> dict[str, NodeFate]:
    return {node: fate for node, fate in nodes.items() if fate in FAILED}


def _with(record: AttemptRecord, found: Mapping[str, NodeFate]) -> AttemptRecord:
    """Return the record with these nodes besides its own, as many as a status holds."""
    nodes = {**record.nodes, **found}
    kept = sorted(nodes, key=lambda node: (nodes[node] is NodeFate.USED, node not in record.nodes, node))[:MOST_NODES]
    return replace(record, nodes={node: nodes[node] for node in sorted(kept)})


def _disrupted(attempt: AttemptView, started: float) -> Iterator[tuple[str, NodeFate]]:
    """Yield the nodes that Kubernetes names as the reason for the end of a pod."""
    for pod in _ending_since(attempt, started):
        fate = FATES.get(pod.disruption)
        if fate is not None and pod.node is not None:
            yield pod.node, NodeFate.UNREACHABLE if pod.is_on_silent_node else fate


def _lost(record: AttemptRecord, attempt: AttemptView) -> Iterator[tuple[str, NodeFate]]:
    """Yield the nodes of pods that the end of the attempt shows to be lost; what is surer comes later."""
    assert record.started is not None
    ending = tuple(_ending_since(attempt, record.started))
    for pod in ending if record.cause is Cause.INFRASTRUCTURE else ():
        if pod.node is not None and not pod.disruption and not is_of_engines(pod.group):
            yield pod.node, NodeFate.POD_LOST
    for pod in (*attempt.pods, *ending):
        if pod.node is not None and (pod.is_on_silent_node or pod.name in attempt.stuck):
            yield pod.node, NodeFate.UNREACHABLE


def _ending_since(attempt: AttemptView, started: float) -> Iterator[Pod]:
    """Yield the pods that have been deleted in this attempt; one on a lost node can outlast several."""
    for pod in attempt.ending:
        if pod.deleted_at is not None and pod.deleted_at >= started:
            yield pod
