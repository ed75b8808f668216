"""Nodes that have failed a job twice, and that the pods of its next RayCluster avoid. Pure.

    ended attempts ─► suspects ─► at most `jobLimits.avoidedNodes` ─► those without which the job still fits

A suspect is forgotten after a day, after an attempt that ran on it, saved further than any before and ended for another
reason, and after an attempt that found no other nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api import recovery
from rljob_api.status import NodeFate
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.attempts.nodes import FAILED
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.pod_stage import Stage

FAILURES = 2
"""attempts that a node has failed, before it is avoided"""
WINDOW_S = 86_400.0
"""failures that are older do not count [s]"""
ELSEWHERE_S = 300.0
"""how long pods that avoid nodes wait for others; an autoscaler brings them in minutes [s]"""

Suspects = Mapping[str, Sequence[AttemptRecord]]
"""by node the attempts that it has failed, the node that failed last at the end"""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """The nodes that a new RayCluster avoids."""

    nodes: tuple[str, ...] = ()
    note: str = ""
    """which ones and why, and which ones not; empty: no node is suspected"""


def avoidance(attempts: Sequence[AttemptRecord], job: AdmittedJob, now: float) -> Avoidance:
    """Return which nodes the pods of the next RayCluster avoid at `now` [unix s]."""
    most = job.defaults.avoided_nodes
    if most == 0:
        return Avoidance()
    found = suspects(attempts, now)
    wanted = nodes = tuple(found)[-most:]
    while nodes and not job.has_room_without(nodes):
        nodes = nodes[1:]
    texts = [
        *(f"avoids node {node}: {_how(node, found[node])}" for node in nodes),
        *(f"uses node {node} again: {attempts[-1].reason}" for node in _allowed(attempts, now)),
        *(
            f"uses node {node}, the job does not fit on the others: {_how(node, found[node])}"
            for node in found
            if node in wanted and node not in nodes
        ),
    ]
    return Avoidance(nodes, "; ".join(texts))


def suspects(attempts: Sequence[AttemptRecord], now: float) -> Suspects:
    """Return the nodes that have failed enough of the ended attempts, with these."""
    found: dict[str, tuple[AttemptRecord, ...]] = {}
    before = recovery.Reached()
    for each in attempts:
        if each.ended is None:
            continue
        if each.started is None and (oldest := next((node for node in found if node in avoided(each)), None)):
            del found[oldest]
        got_further = before.is_behind(each.for_policy(), counts_steps=False)
        for node, fate in each.nodes.items():
            if fate in FAILED and now - each.ended < WINDOW_S:
                found[node] = (*found.pop(node, ()), each)
            elif fate is NodeFate.USED and got_further:
                found.pop(node, None)
        before = before.with_end_of(each.for_policy())
    return {node: failed for node, failed in found.items() if len(failed) >= FAILURES}


def _allowed(attempts: Sequence[AttemptRecord], now: float) -> tuple[str, ...]:
    """Return the node that the last attempt has avoided, and the next one does not, because it found no others."""
    if not attempts or attempts[-1].started is not None:
        return ()
    found = suspects(attempts, now)
    return tuple(node for node in suspects(attempts[:-1], now) if node not in found)


def avoided(record: AttemptRecord) -> tuple[str, ...]:
    """Return the nodes that get no pod of an attempt."""
    return tuple(node for node, fate in record.nodes.items() if fate is NodeFate.AVOIDED)


def found_no_other_nodes(attempt: AttemptView, now: float) -> str | None:
    """Return in words that pods of an attempt that avoids nodes have waited long for others; None: they have not."""
    nodes = avoided(attempt.record)
    pending = [pod.stage.since for pod in attempt.pods if pod.stage is not None and pod.stage.stage is Stage.SCHEDULING]
    if not nodes or attempt.has_live_driver or not pending:
        return None
    waited_s = now - max(attempt.record.start_after, min(pending))
    if waited_s < ELSEWHERE_S:
        return None
    return f"no nodes for {len(pending)} of its pods in {ELSEWHERE_S:.0f} s without {', '.join(nodes)}"


def _how(node: str, failed: Sequence[AttemptRecord]) -> str:
    return ", ".join(f"{each.nodes[node]} in attempt {each.number}" for each in failed)
