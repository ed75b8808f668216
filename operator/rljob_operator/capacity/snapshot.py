"""From objects of the API server to the capacity of each namespace. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_operator.capacity.demand import Container, Pods, containers_of
from rljob_operator.capacity.packing import Node, Nodes, node_of
from rljob_operator.capacity.quantities import PODS, amounts
from rljob_operator.capacity.queues import Queues
from rljob_operator.capacity.quotas import Limit, Quota, limits_of, quota_of
from rljob_operator.capacity.verdict import Capacity
from rljob_operator.identity import Manifest

ENDED = ("Succeeded", "Failed")
NOT_TERMINATING = "NotTerminating"
ALIVE = ",".join(f"status.phase!={phase}" for phase in ENDED)
"""field selector of the pods that take room on nodes"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that limits pods in a cluster, at one time."""

    quotas: Mapping[str, tuple[Quota, ...]]
    """by namespace"""
    limits: Mapping[str, tuple[Limit, ...]]
    """by namespace"""
    nodes: tuple[Node, ...] | None
    coming: tuple[Node, ...] | None = None
    queues: Queues | None = None
    """of Kueue; None: not known"""

    def of(self, namespace: str) -> Capacity:
        """Return what limits the pods of a namespace."""
        mine = self.quotas.get(namespace, ()), self.limits.get(namespace, ())
        return Capacity(*mine, self.nodes, self.coming, namespace, self.queues)


def snapshot(
    quotas: Iterable[Manifest],
    limits: Iterable[Manifest],
    nodes: Iterable[Manifest] | None,
    used: Mapping[str, Mapping[str, int]],
    coming: Sequence[Node] | None = None,
    queues: Queues | None = None,
) -> Snapshot:
    """Return the capacity that these objects show; `used` is what pods request, by node."""
    found_quotas: dict[str, tuple[Quota, ...]] = {}
    for raw in quotas:
        place = raw["metadata"]["namespace"]
        found_quotas[place] = (*found_quotas.get(place, ()), quota_of(raw))
    found_limits: dict[str, tuple[Limit, ...]] = {}
    for raw in limits:
        place = raw["metadata"]["namespace"]
        found_limits[place] = (*found_limits.get(place, ()), *limits_of(raw))
    known = None if nodes is None else Nodes(node_of(raw, used.get(raw["metadata"]["name"], {})) for raw in nodes)
    return Snapshot(found_quotas, found_limits, known, None if coming is None else tuple(coming), queues)


def used_by_node(pods: Iterable[Manifest]) -> dict[str, dict[str, int]]:
    """Return what the pods on each node request."""
    found: dict[str, dict[str, int]] = {}
    for raw in pods:
        add_used(found, raw)
    return found


def takes_room(pod: Manifest) -> bool:
    """Return whether a pod is on a node, and has not ended."""
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in ENDED


def add_used(found: dict[str, dict[str, int]], pod: Manifest) -> None:
    """Add what a pod requests to its node."""
    if not takes_room(pod):
        return
    used = found.setdefault(pod["spec"]["nodeName"], {})
    for name, amount in requests_of(pod["spec"]).items():
        used[name] = used.get(name, 0) + amount


def requests_of(pod: Manifest) -> dict[str, int]:
    """Return what the scheduler counts for a pod."""
    sizes = tuple(
        Container(amounts(each.get("resources", {}).get("requests")), {}, is_init)
        for each, is_init in containers_of(pod)
    )
    requests = dict(Pods("", 1, sizes, {}, (), None).requests)
    for name, amount in amounts(pod.get("overhead")).items():
        requests[name] = requests.get(name, 0) + amount
    return {**requests, PODS: 1000}


def coming_of(given: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the nodes that an autoscaler can bring: `[{count, allocatable, labels, taints}]`.

    Raises ValueError for a quantity that is none.
    """
    return tuple(
        Node(
            name=f"autoscaler-{kind}-{index}",
            allocatable={PODS: 110_000, **amounts(each["allocatable"])},
            labels=each.get("labels", {}),
            taints=tuple(each.get("taints", ())),
        )
        for kind, each in enumerate(given)
        for index in range(int(each.get("count", 1)))
    )
