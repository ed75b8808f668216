"""What is left of quotas and nodes while a pass gives it away. Pure, but for its own bookkeeping.

In the quotas that it is made of, `used` is what pods of others take. What jobs of the queue take is added here, by
their pods' requests: the API server counts the same, but later.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.packing import Node, against_empty_nodes, lets_in, placed, places
from rljob_operator.capacity.quantities import shown
from rljob_operator.capacity.quotas import Quota, against_limits, against_quotas, completed, counts
from rljob_operator.capacity.snapshot import Snapshot

Value = TypeVar("Value")
Amounts = Mapping[str, int]
Spots = tuple[tuple[Pods, int], ...]
"""pods, each with the index of its node"""
Pool = frozenset[Hashable]
"""nodes by index; pods that no node could let in stand for the nodes that they wait for"""


GAVE_UP = "the search for nodes took too long and was stopped"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why pods have no room."""

    outcome: Outcome
    obstacles: tuple[Obstacle, ...]
    of_quota: bool
    """whether a quota or a limit range is short; otherwise nodes are"""
    is_unknown: bool = False
    """whether the search for places has given up: there may be some"""


@dataclass(slots=True)
class Taken:
    """What one job takes."""

    namespace: str
    pods: tuple[Pods, ...]
    on: list[tuple[int, Amounts]] = field(default_factory=list)
    """index of the node, and what is taken there"""


class FreeCapacity:
    """Quotas and nodes, less what was taken."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen
        self._quotas: dict[str, list[Quota]] = {place: list(found) for place, found in seen.quotas.items()}
        nodes = [node for node in seen.nodes or () if node.is_schedulable]
        self._nodes = nodes if seen.nodes is not None else None
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._taken: dict[str, Taken] = {}
        self._closed: frozenset[int] = frozenset()
        self._short: dict[Hashable, Shortage] = {}
        """nodes that were not found, by the shape of the pods: until a job gives room back there are none"""
        self._known: dict[Hashable, Any] = {}
        """what does not depend on what is taken; all copies share it"""

    def copy(self) -> "FreeCapacity":
        """Return a room that can be changed apart from this one."""
        other = FreeCapacity.__new__(FreeCapacity)
        other._seen, other._index, other._closed = self._seen, self._index, self._closed
        other._quotas = {place: list(found) for place, found in self._quotas.items()}
        other._nodes = None if self._nodes is None else list(self._nodes)
        other._taken, other._short, other._known = dict(self._taken), dict(self._short), self._known
        return other

    def find(self, namespace: str, pods: Sequence[Pods]) -> Spots | Shortage:
        """Return where pods have room, all of them at once, or why they have not."""
        whole = self._whole(namespace, pods)
        limits, quotas = self._seen.limits.get(namespace, ()), self._quotas.get(namespace, ())
        found = [*against_limits(whole, limits), *against_quotas(whole, quotas)]
        if found:
            return _shortage(found, of_quota=True)
        if self._nodes is None:
            return ()
        shape = shape_of(whole)
        if shape not in self._short:
            spots = self._find_nodes(whole, self._nodes)
            if not isinstance(spots, Shortage):
                return spots
            self._short[shape] = spots
        return self._short[shape]

    def _find_nodes(self, whole: Sequence[Pods], nodes: Sequence[Node]) -> Spots | Shortage:
        there = [index for index in range(len(nodes)) if index not in self._closed]
        spots = places(whole, [nodes[index] for index in there])
        if isinstance(spots, tuple):
            return tuple((each, there[index]) for each, index in spots)
        never = against_empty_nodes(whole, self._seen.nodes or (), self._seen.coming)
        if never:
            return _shortage(never, of_quota=False)
        if spots is None:
            return Shortage(Outcome.LATER, (Obstacle(Outcome.LATER, GAVE_UP),), of_quota=False, is_unknown=True)
        return _shortage([self._short_now(whole, there)], of_quota=False)

    def pool(self, namespace: str, pods: Sequence[Pods]) -> Pool:
        """Return the nodes that the pods with the rarest resources may be on, free or not."""
        whole = self._whole(namespace, pods)
        rare = [each for each in whole if any("/" in name for name, amount in each.requests.items() if amount > 0)]
        found = self.suitable(rare or whole)
        return found or frozenset(shape_of([replace(each, count=1)]) for each in rare or whole)

    def suitable(self, pods: Sequence[Pods]) -> frozenset[int]:
        """Return the nodes that one of these pods may be on, free or not."""
        nodes = self._nodes or ()
        return self._once(
            ("suitable", shape_of(pods)),
            lambda: frozenset(index for index, node in enumerate(nodes) if any(_could_be(node, each) for each in pods)),
        )

    def could_fit(self, namespace: str, pods: Sequence[Pods]) -> bool:
        """Return whether the nodes that there are would have room for pods if all others left."""
        whole, nodes = self._whole(namespace, pods), self._nodes or ()
        return self._once(("empty", shape_of(whole)), lambda: placed(whole, nodes) is not False)

    def could_grow(self, namespace: str, pods: Sequence[Pods]) -> bool:
        """Return whether pods may have room when all nodes have come that an autoscaler can bring."""
        coming = self._seen.coming
        if coming is None or self._nodes is None:
            return self._nodes is not None
        return bool(coming) and placed(self._whole(namespace, pods), [*self._nodes, *coming], now=True) is not False

    def _once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._known:
            self._known[key] = make()
        found: Value = self._known[key]
        return found

    def nodes_of(self, key: str) -> frozenset[int]:
        """Return the nodes on which a job has taken something."""
        taken = self._taken.get(key)
        return frozenset(index for index, _ in taken.on) if taken is not None else frozenset()

    def close(self, nodes: frozenset[int]) -> None:
        """Let no other pods find room on these nodes."""
        self._closed |= nodes

    def take(self, key: str, namespace: str, pods: Sequence[Pods], spots: Spots) -> None:
        """Take room, whether or not it is there."""
        whole = self._whole(namespace, pods)
        taken = Taken(namespace, whole)
        self._count(namespace, whole, 1)
        for each, index in spots:
            self._use(index, each.requests, 1)
            taken.on.append((index, each.requests))
        before = self._taken.get(key)
        if before is not None:
            taken = Taken(namespace, (*before.pods, *whole), [*before.on, *taken.on])
        self._taken[key] = taken

    def hold(
        self, key: str, namespace: str, pods: Sequence[Pods], bound: Mapping[str, tuple[str, ...]]
    ) -> tuple[Pods, ...]:
        """Take what a job holds, on the nodes where its pods are; return its pods that are on none."""
        whole = self._whole(namespace, pods)
        spots: list[tuple[Pods, int]] = []
        rest: list[Pods] = []
        for each in whole:
            on = bound.get(each.group, ())
            spots += [(each, self._index[name]) for name in on if name in self._index]
            if each.count > len(on):
                rest.append(replace(each, count=each.count - len(on)))
        # More pods than there shall be: the job was scaled down, and they are leaving.
        self.take(key, namespace, [_at_least(each, bound) for each in pods], tuple(spots))
        return tuple(rest)

    def place(self, key: str, rest: Sequence[Pods]) -> tuple[Pods, ...]:
        """Take nodes for pods of a holder that are on none yet; return those for which there are none."""
        if self._nodes is None or not rest:
            return ()
        found, without = self._as_many_as_fit(rest, self._nodes)
        taken = self._taken[key]
        for each, index in found:
            self._use(index, each.requests, 1)
            taken.on.append((index, each.requests))
        return without

    def give_back(self, key: str) -> None:
        """Free what a job has taken."""
        taken = self._taken.pop(key, None)
        if taken is None:
            return
        self._short.clear()
        self._count(taken.namespace, taken.pods, -1)
        for index, requests in taken.on:
            self._use(index, requests, -1)

    def keep(self, key: str, namespace: str, pods: Sequence[Pods], with_nodes: bool) -> None:
        """Keep room for a job that has to wait: its part of the quotas, and nodes on which it would fit alone.

        These are the nodes with the most room left, so what others give back there is never given to a third. Nodes
        that are kept for an older one are used only if there are not enough of others.
        """
        self.take(key, namespace, pods, ())
        if self._nodes is None or not with_nodes:
            return
        whole, nodes = self._whole(namespace, pods), self._nodes
        by_room = sorted(range(len(nodes)), key=lambda index: _roominess(nodes[index], whole))
        for there in ([index for index in by_room if index not in self._closed], by_room):
            spots = places(whole, [nodes[index] for index in there], now=False)
            if spots:
                self._closed |= {there[index] for _, index in spots}
                return

    def _as_many_as_fit(self, rest: Sequence[Pods], nodes: Sequence[Node]) -> tuple[Spots, tuple[Pods, ...]]:
        """Return nodes for these pods, all at once or else as many as find one, and those that find none."""
        spots = places(rest, nodes)
        if spots:
            return spots, ()
        left, found, without = list(nodes), list[tuple[Pods, int]](), list[Pods]()
        for each in rest:
            for number in range(each.count):
                one = places([replace(each, count=1)], left)
                if not one:
                    without.append(replace(each, count=each.count - number))
                    break
                index = one[0][1]
                used = {name: left[index].used.get(name, 0) + amount for name, amount in each.requests.items()}
                left[index] = replace(left[index], used={**left[index].used, **used})
                found.append((each, index))
        return tuple(found), tuple(without)

    def _whole(self, namespace: str, pods: Sequence[Pods]) -> tuple[Pods, ...]:
        limits = self._seen.limits.get(namespace, ())
        return tuple(completed(each, limits) for each in pods) if limits else tuple(pods)

    def _count(self, namespace: str, whole: Sequence[Pods], sign: int) -> None:
        quotas = self._quotas.get(namespace, [])
        for index, quota in enumerate(quotas):
            taken = counts(quota, whole)
            used = {line: quota.used.get(line, 0) + sign * amount for line, amount in taken.items()}
            quotas[index] = replace(quota, used={**quota.used, **used})

    def _use(self, index: int, requests: Amounts, sign: int) -> None:
        assert self._nodes is not None
        node = self._nodes[index]
        used = {name: node.used.get(name, 0) + sign * amount for name, amount in requests.items()}
        self._nodes[index] = replace(node, used={**node.used, **used})

    def _short_now(self, pods: Sequence[Pods], there: Sequence[int]) -> Obstacle:
        """Return what nodes lack at present."""
        assert self._nodes is not None
        nodes = [self._nodes[index] for index in there]
        matching = [node for node in nodes if any(lets_in(node, each) for each in pods)]
        names = {name for each in pods for name, amount in each.requests.items() if amount > 0}
        for name in sorted(names, key=lambda name: ("/" not in name, name)):
            amount = sum(each.requests.get(name, 0) * each.count for each in pods)
            room = sum(max(0, node.allocatable.get(name, 0) - node.used.get(name, 0)) for node in matching)
            if amount > room:
                return Obstacle(Outcome.LATER, f"matching nodes have {shown(name, room)} free", name)
        return Obstacle(Outcome.LATER, "matching nodes have enough free, but not on single nodes")


def shape_of(pods: Sequence[Pods]) -> Hashable:
    """Return the same value for pods that are alike, under any names of groups."""
    return tuple((each.count, *_one(each)) for each in pods)


def _one(pods: Pods) -> tuple[Hashable, ...]:
    return (
        tuple(sorted(pods.requests.items())),
        tuple(sorted(pods.node_selector.items())),
        repr(pods.tolerations) if pods.tolerations else "",
        pods.avoids,
    )


def _could_be(node: Node, pods: Pods) -> bool:
    """Return whether a pod may be on a node that is empty."""
    return lets_in(node, pods) and all(
        node.allocatable.get(name, 0) >= amount for name, amount in pods.requests.items()
    )


def _at_least(pods: Pods, bound: Mapping[str, tuple[str, ...]]) -> Pods:
    return replace(pods, count=max(pods.count, len(bound.get(pods.group, ()))))


def _shortage(found: Sequence[Obstacle], of_quota: bool) -> Shortage:
    worst = max(each.outcome for each in found)
    return Shortage(worst, tuple(each for each in found if each.outcome is worst), of_quota)


def _roominess(node: Node, pods: Sequence[Pods]) -> tuple[int, ...]:
    """Return a key that sorts nodes with the most of what is rarest first."""
    names = sorted({name for each in pods for name in each.requests}, key=lambda name: ("/" not in name, name))
    return tuple(node.used.get(name, 0) - node.allocatable.get(name, 0) for name in names)
