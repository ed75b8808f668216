"""The part `pass`: what the queue costs an operator whose cluster has many nodes and pods. No API server takes part."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rljob_operator.capacity.inventory import Kind
from rljob_operator.capacity.other_pods import OtherPods
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.schedule import schedule
from rljob_operator.queueing.ticket import Ticket
from support.operator.queue_world import GPU, NOW, RULES, holder, ticket, workers

GPUS_OF_NODE = 8
PODS_OF_JOB = 4
ROUNDS = 5


@dataclass(frozen=True)
class QueuePass:
    """The best of some rounds: this machine has other work, too."""

    nodes: int
    pods: int
    holders: int
    waiting: int
    look_ms: float
    """to count the pods of others, without the requests"""
    look_mb: float
    """of what is kept of a look"""
    tickets_mb: float
    full_ms: float
    """a pass in which nobody finds room"""
    one_ms: float
    """a pass in which one job has ended, and one gets its room"""


def queue_pass(nodes: int, pods: int, waiting: int) -> QueuePass:
    """Measure passes over jobs that fill all nodes, of whose pods half belong to others."""
    raw_nodes = [_node(number) for number in range(nodes)]
    others = [_pod(number, number % nodes) for number in range(pods // 2)]
    look_ms, seen = _best(lambda: _look(raw_nodes, others))
    look_mb, _ = _memory(lambda: _look(raw_nodes, others))
    tickets_mb, tickets = _memory(lambda: _tickets(nodes, pods // 2, waiting))
    holders = len(tickets) - waiting
    full_ms, _ = _best(lambda: schedule(tickets, seen, RULES, NOW + 1))
    one_ms, _ = _best(lambda: schedule(tickets[1:], seen, RULES, NOW + 1))
    return QueuePass(nodes, pods, holders, waiting, look_ms, look_mb, tickets_mb, full_ms, one_ms)


def _look(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> Snapshot:
    others = OtherPods(())
    for number, each in enumerate(nodes):
        others.put(Kind.NODES, _with_uid(each, number))
    for number, each in enumerate(pods):
        others.put_pod(_with_uid(each, number), job="")
    return others.seen(lambda _: False, with_nodes=True)


def _with_uid(raw: dict[str, Any], number: int) -> dict[str, Any]:
    return {**raw, "metadata": {"uid": str(number), "namespace": "other", **raw["metadata"]}}


def _tickets(nodes: int, pods: int, waiting: int) -> list[Ticket]:
    """Return jobs that take what others leave of each node, and jobs that wait for whole nodes."""
    each = GPUS_OF_NODE * nodes // (2 * pods) or 1
    held = []
    for number in range(pods // PODS_OF_JOB):
        on = tuple(f"node-{(number * PODS_OF_JOB + pod) % nodes}" for pod in range(PODS_OF_JOB))
        held.append(holder(f"held-{number}", workers(each, PODS_OF_JOB), at=number, bound={"workers": on}))
    return held + [ticket(f"waits-{number}", workers(8, 1 + number % 8), at=number) for number in range(waiting)]


def _node(number: int) -> dict[str, Any]:
    room = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(GPUS_OF_NODE)}
    status = {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": f"node-{number}", "labels": {"pool": "gpu"}}, "spec": {}, "status": status}


def _pod(number: int, node: int) -> dict[str, Any]:
    requests = {"cpu": "2", "memory": "8Gi", GPU: "1"}
    spec = {"nodeName": f"node-{node}", "containers": [{"name": "a", "resources": {"requests": requests}}]}
    return {"metadata": {"name": f"pod-{number}", "namespace": "others"}, "spec": spec, "status": {"phase": "Running"}}


def _best(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest time in ms, and what the work returns."""
    found, times = None, []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        found = work()
        times.append((time.perf_counter() - began) * 1000)
    return min(times), found


def _memory(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the MB that the result of the work takes, and the result."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = work()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / 1e6, found
