"""Jobs in a queue as values, moved by the decisions of passes, and by what happens to jobs. For the pure queue only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quotas import Quota
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.schedule import schedule
from rljob_operator.queueing.ticket import Holding, Priority, Rules, Ticket
from rljob_operator.world.queue_decision import QueueDecision, Standing

NOW = 1_800_000_000.0
GPU = "nvidia.com/gpu"
RULES = Rules(
    priorities={
        "low": Priority(-10),
        "high": Priority(100),
        "polite": Priority(100, preempts=False),
    }
)


def workers(gpus: int, count: int = 1, group: str = "workers", **selector: str) -> Pods:
    """Return pods with so many GPUs each."""
    size = {GPU: gpus * 1000}
    return Pods(group, count, (Container(size, size),), selector, (), None)


def ticket(name: str, *pods: Pods, at: float = 0.0, **more: object) -> Ticket:
    """Return a job that wants these pods; it was created so many seconds after NOW."""
    namespace = name.partition("/")[0] if "/" in name else "ml"
    key = name if "/" in name else f"ml/{name}"
    gpus = sum(each.count * each.requests.get(GPU, 0) // 1000 for each in pods)
    return replace(Ticket(key, namespace, NOW + at, tuple(pods), gpus), **more)  # type: ignore[arg-type]


def holder(name: str, *pods: Pods, at: float = 0.0, **more: object) -> Ticket:
    """Return a job that has a reservation."""
    return ticket(name, *pods, at=at, **{"holding": Holding.RESERVED, "since": NOW + at, **more})


def quotas(**gpus: int) -> Snapshot:
    """Return a cluster whose nodes may not be seen; each namespace has a quota of so many GPUs."""
    return Snapshot({name: (_quota(most),) for name, most in gpus.items()}, {}, None)


def nodes(*gpus: int, coming: tuple[Node, ...] | None = ()) -> Snapshot:
    """Return a cluster without quotas, with nodes of so many GPUs."""
    return Snapshot({}, {}, tuple(node(f"node-{i}", each) for i, each in enumerate(gpus)), coming)


def node(name: str, gpus: int, **labels: str) -> Node:
    return Node(name, {GPU: gpus * 1000, "pods": 110_000}, labels)


def _quota(gpus: int) -> Quota:
    return Quota("gpus", {f"requests.{GPU}": gpus * 1000}, {})


def decisions(seen: Snapshot, *tickets: Ticket, rules: Rules = RULES, at: float = 0.0) -> Mapping[str, QueueDecision]:
    """Return the decisions of these jobs, by their names without the namespace `ml`."""
    found = schedule(tickets, seen, rules, NOW + at)
    return {key.removeprefix("ml/"): decision for key, decision in found.items()}


def reserved(found: Mapping[str, QueueDecision]) -> set[str]:
    return {key for key, decision in found.items() if decision.is_reserved}


@dataclass
class Queue:
    """A cluster in which jobs come, run and end."""

    seen: Snapshot
    rules: Rules = RULES
    now: float = NOW
    tickets: dict[str, Ticket] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """jobs in the order in which they got room"""

    def add(self, each: Ticket) -> None:
        self.tickets[each.key] = replace(each, created=self.now)

    def look(self) -> Mapping[str, QueueDecision]:
        """Make a pass, and do what its decisions say."""
        found = schedule(self.tickets.values(), self.seen, self.rules, self.now)
        for key, decision in found.items():
            self._act(self.tickets[key], decision)
        return found

    def _act(self, each: Ticket, decision: QueueDecision) -> None:
        if decision.is_reserved and each.holding is Holding.NOTHING:
            self.order.append(each.key)
            bound = self._bound(each.pods)
            each = replace(
                each, holding=Holding.RESERVED, since=self.now, first_since=decision.first_since, bound=bound
            )
        elif decision.is_reserved and each.more and decision.engines == each.engines:
            each = replace(each, pods=(*each.pods, *each.more), more=(), held_engines=each.engines)
        elif decision.standing is Standing.PREEMPTED and each.holding is Holding.RESERVED:
            each = replace(each, holding=Holding.LEAVING, preempted_for="another", since=None)
        elif decision.standing is Standing.REVOKED and each.holding is Holding.RESERVED:
            again = {
                "revoked": decision.revoked,
                "retry_at": decision.retry_at or 0.0,
                "first_since": decision.first_since,
            }
            each = replace(each, holding=Holding.LEAVING, since=None, **again)  # type: ignore[arg-type]
        elif decision.standing is Standing.QUEUED:
            each = replace(each, first_since=decision.first_since)
        self.tickets[each.key] = each

    def end(self, key: str) -> None:
        """A job ends, and its pods are gone."""
        del self.tickets[key]

    def leave(self) -> None:
        """The pods of jobs that were sent away are gone."""
        for key, each in self.tickets.items():
            if each.holding is Holding.LEAVING:
                self.tickets[key] = replace(each, holding=Holding.NOTHING, bound={}, preempted_for=None)

    @property
    def holders(self) -> list[Ticket]:
        return [each for each in self.tickets.values() if each.holding is not Holding.NOTHING]

    def held(self, namespace: str) -> int:
        return sum(each.gpus for each in self.holders if each.namespace == namespace)

    def free(self) -> dict[str, int]:
        """Return the GPUs that bound pods leave on each node."""
        left = {each.name: each.allocatable[GPU] // 1000 for each in self.seen.nodes or ()}
        for each in self.holders:
            for pods in each.pods:
                for name in each.bound.get(pods.group, ()):
                    left[name] -= pods.requests[GPU] // 1000
        return left

    def _bound(self, pods: Iterable[Pods]) -> dict[str, tuple[str, ...]]:
        """Return nodes for pods as a scheduler picks them, which spreads them and knows no gangs."""
        left, found = self.free(), dict[str, tuple[str, ...]]()
        for each in pods:
            for _ in range(each.count):
                name = max(left, key=lambda name: (left[name], name), default=None)
                if name is not None and left[name] >= each.requests[GPU] // 1000:
                    left[name] -= each.requests[GPU] // 1000
                    found[each.group] = (*found.get(each.group, ()), name)
        return found
