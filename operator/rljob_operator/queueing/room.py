"""What is left of quotas and nodes while a pass gives it away. Pure, but for its own bookkeeping.

In the quotas that a Room is made of, `used` is what pods of others take. What jobs of the queue take is added here, by
their pods' requests: the API server counts the same, but later.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.finding import Finding, Outcome
from rljob_operator.capacity.packing import Node, against_empty_nodes, lets_in, places
from rljob_operator.capacity.quantities import shown
from rljob_operator.capacity.quotas import Quota, against_limits, against_quotas, completed, counts
from rljob_operator.capacity.snapshot import Snapshot

Amounts = Mapping[str, int]
Spots = tuple[tuple[Pods, int], ...]
"""pods, each with the index of its node"""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why pods have no room."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    of_quota: bool
    """whether a quota or a limit range is short; otherwise nodes are"""


@dataclass(slots=True)
class Taken:
    """What one job takes."""

    namespace: str
    pods: tuple[Pods, ...]
    on: list[tuple[int, Amounts]] = field(default_factory=list)
    """index of the node, and what is taken there"""


class Room:
    """Quotas and nodes, less what was taken."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen
        self._quotas: dict[str, list[Quota]] = {place: list(found) for place, found in seen.quotas.items()}
        nodes = [node for node in seen.nodes or () if node.is_schedulable]
        self._nodes = nodes if seen.nodes is not None else None
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._taken: dict[str, Taken] = {}
        self._closed: frozenset[int] = frozenset()

    def copy(self) -> "Room":
        """Return a room that can be changed apart from this one."""
        other = Room.__new__(Room)
        other._seen, other._index, other._closed = self._seen, self._index, self._closed
        other._quotas = {place: list(found) for place, found in self._quotas.items()}
        other._nodes = None if self._nodes is None else list(self._nodes)
        other._taken = dict(self._taken)
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
        there = [index for index in range(len(self._nodes)) if index not in self._closed]
        if self._may_have(whole, there):
            spots = places(whole, [self._nodes[index] for index in there])
            if spots is not None:
                return tuple((each, there[index]) for each, index in spots)
        never = against_empty_nodes(whole, self._seen.nodes or (), self._seen.coming)
        return _shortage(never or (self._short_now(whole, there),), of_quota=False)

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

    def hold(self, key: str, namespace: str, pods: Sequence[Pods], bound: Mapping[str, tuple[str, ...]]) -> None:
        """Take what a job holds, on the nodes where its pods are; those without a node get one if there is one."""
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
        if self._nodes is None or not rest:
            return
        taken = self._taken[key]
        for each, index in self._as_many_as_fit(rest):
            self._use(index, each.requests, 1)
            taken.on.append((index, each.requests))

    def give_back(self, key: str) -> None:
        """Free what a job has taken."""
        taken = self._taken.pop(key, None)
        if taken is None:
            return
        self._count(taken.namespace, taken.pods, -1)
        for index, requests in taken.on:
            self._use(index, requests, -1)

    def keep(self, key: str, namespace: str, pods: Sequence[Pods], with_nodes: bool) -> None:
        """Keep room for a job that has to wait: its part of the quotas, and nodes on which it would fit alone.

        These are the nodes with the most room left, so what others give back there is never given to a third.
        """
        self.take(key, namespace, pods, ())
        if self._nodes is None or not with_nodes:
            return
        whole = self._whole(namespace, pods)
        there = [index for index in range(len(self._nodes)) if index not in self._closed]
        nodes = self._nodes
        there.sort(key=lambda index: _roominess(nodes[index], whole))
        empty = [replace(nodes[index], used={}) for index in there]
        spots = places(whole, empty)
        self._closed |= {there[index] for _, index in spots or ()}

    def _as_many_as_fit(self, rest: Sequence[Pods]) -> Iterator[tuple[Pods, int]]:
        """Yield a node for each of these pods that finds one: all at once, or else one after the other."""
        assert self._nodes is not None
        spots = places(rest, self._nodes)
        if spots is not None:
            yield from spots
            return
        for each in rest:
            for _ in range(each.count):
                one = places([replace(each, count=1)], self._nodes)
                if one is None:
                    break
                yield one[0]

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

    def _may_have(self, pods: Sequence[Pods], there: Iterable[int]) -> bool:
        """Return whether nodes together have as much as pods ask for; a search is much slower."""
        assert self._nodes is not None
        wanted: dict[str, int] = {}
        for each in pods:
            for name, amount in each.requests.items():
                wanted[name] = wanted.get(name, 0) + amount * each.count
        left = {name: amount for name, amount in wanted.items() if amount > 0}
        for index in there:
            node = self._nodes[index]
            for name in list(left):
                left[name] -= max(0, node.allocatable.get(name, 0) - node.used.get(name, 0))
                if left[name] <= 0:
                    del left[name]
            if not left:
                return True
        return not left

    def _short_now(self, pods: Sequence[Pods], there: Sequence[int]) -> Finding:
        """Return what nodes lack at present."""
        assert self._nodes is not None
        nodes = [self._nodes[index] for index in there]
        matching = [node for node in nodes if any(lets_in(node, each) for each in pods)]
        names = {name for each in pods for name, amount in each.requests.items() if amount > 0}
        for name in sorted(names, key=lambda name: ("/" not in name, name)):
            amount = sum(each.requests.get(name, 0) * each.count for each in pods)
            room = sum(max(0, node.allocatable.get(name, 0) - node.used.get(name, 0)) for node in matching)
            if amount > room:
                return Finding(Outcome.LATER, f"matching nodes have {shown(name, room)} free", name)
        return Finding(Outcome.LATER, "matching nodes have enough free, but not on single nodes")


def _at_least(pods: Pods, bound: Mapping[str, tuple[str, ...]]) -> Pods:
    return replace(pods, count=max(pods.count, len(bound.get(pods.group, ()))))


def _shortage(found: Sequence[Finding], of_quota: bool) -> Shortage:
    worst = max(each.outcome for each in found)
    return Shortage(worst, tuple(each for each in found if each.outcome is worst), of_quota)


def _roominess(node: Node, pods: Sequence[Pods]) -> tuple[int, ...]:
    """Return a key that sorts nodes with the most of what is rarest first."""
    names = sorted({name for each in pods for name in each.requests}, key=lambda name: ("/" not in name, name))
    return tuple(node.used.get(name, 0) - node.allocatable.get(name, 0) for name in names)
