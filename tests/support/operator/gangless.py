"""A cluster whose scheduler knows no gangs: it puts pods on nodes one by one, whoever's they are. Time is simulated."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.packing import Node, lets_in
from rljob_operator.queueing.ticket import Holding, Ticket
from support.operator.queue_world import GPU, Queue


@dataclass
class Gangless(Queue):
    """Jobs that run for a while when all their pods are on nodes, and are gone then."""

    seed: int = 0
    lifetimes: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    """when all pods of a job had nodes, last"""
    waited: dict[str, float] = field(default_factory=dict)
    """from creation to the first start"""
    arrived: dict[str, float] = field(default_factory=dict)
    partial_s: float = 0.0
    """the longest time for which a job had a part of its pods"""
    _partial_since: dict[str, float] = field(default_factory=dict)
    most_partial: int = 0
    """jobs that had a part of their pods at one time"""
    revoked: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def comes(self, each: Ticket, lifetime_s: float) -> None:
        self.add(each)
        self.arrived[each.key], self.lifetimes[each.key] = self.now, lifetime_s

    def live(self, seconds: float) -> None:
        """Let pods start, jobs end, and passes be made."""
        self.leave()
        self._end_those_that_are_done()
        self._start_pods()
        found = self.look()
        self.revoked += sum(decision.standing == "Revoked" for decision in found.values())
        self._start_pods()
        self._note_partial()
        self.now += seconds

    def _bound(self, pods: Iterable[Pods]) -> dict[str, tuple[str, ...]]:
        return {}  # pods come a moment later

    def _end_those_that_are_done(self) -> None:
        for key, at in list(self.started.items()):
            if key in self.tickets and self.tickets[key].holding is not Holding.RESERVED:
                del self.started[key]  # it was sent away
            elif self.now >= at + self.lifetimes[key]:
                del self.started[key]
                self.end(key)

    def _start_pods(self) -> None:
        pending = [(key, pods) for key, each in self.tickets.items() for pods in _without_node(each)]
        self._random.shuffle(pending)
        left = self.free()
        for key, pods in pending:
            name = self._node_for(pods, left)
            if name is not None:
                left[name] -= pods.requests[GPU] // 1000
                each = self.tickets[key]
                bound = {**each.bound, pods.group: (*each.bound.get(pods.group, ()), name)}
                self.tickets[key] = replace(each, bound=bound)
        for key, each in self.tickets.items():
            if each.holding is Holding.RESERVED and key not in self.started and not list(_without_node(each)):
                self.started[key] = self.now
                self.waited.setdefault(key, self.now - self.arrived[key])
                self.tickets[key] = replace(each, has_started=True, revoked=0)

    def _node_for(self, pods: Pods, left: dict[str, int]) -> str | None:
        size = pods.requests[GPU] // 1000
        fits = [node for node in self.seen.nodes or () if left[node.name] >= size and lets_in(node, pods)]
        return self._random.choice(fits).name if fits else None

    def leave(self) -> None:
        super().leave()
        for key, each in self.tickets.items():
            if each.holding is Holding.NOTHING and each.has_started:
                self.tickets[key] = replace(each, has_started=False)

    def partial(self) -> list[str]:
        """Return the jobs that have a part of their pods."""
        return [
            key
            for key, each in self.tickets.items()
            if each.holding is Holding.RESERVED and any(each.bound.values()) and list(_without_node(each))
        ]

    def _note_partial(self) -> None:
        now = set(self.partial())
        self.most_partial = max(self.most_partial, len(now))
        self._partial_since = {key: self._partial_since.get(key, self.now) for key in now}
        longest = max((self.now - at for at in self._partial_since.values()), default=0.0)
        self.partial_s = max(self.partial_s, longest)

    def grow(self, *more: Node) -> None:
        """An autoscaler brings nodes."""
        self.seen = replace(self.seen, nodes=(*(self.seen.nodes or ()), *more))


def _without_node(each: Ticket) -> Iterator[Pods]:
    if each.holding is not Holding.RESERVED:
        return
    for pods in each.pods:
        for _ in range(pods.count - len(each.bound.get(pods.group, ()))):
            yield replace(pods, count=1)
