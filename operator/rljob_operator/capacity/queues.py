"""Queues of Kueue against the pods of a job. Pure.

LocalQueue ─► ClusterQueue ─► cohort: the queue's quota, and what it may borrow. Kueue itself decides; this
says before what Kueue can never admit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rljob_api.errors import UNREADABLE
from rljob_api.rules.quantity import thousandths
from rljob_operator.capacity.demand import Pods, total
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.quantities import PODS, shown
from rljob_operator.identity import Manifest

FIELD = "spec.scheduling.queue"
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a ClusterQueue has of one resource in one flavor."""

    nominal: int
    borrowing_limit: int | None
    """None: as much as the cohort has"""
    lending_limit: int | None
    """None: all of it"""
    reserved: int = 0

    @property
    def lent(self) -> int:
        return self.nominal if self.lending_limit is None else min(self.nominal, self.lending_limit)


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A ClusterQueue, or the quota that a Cohort itself has."""

    name: str
    cohort: str = ""
    """empty: none"""
    flavors: Mapping[tuple[str, str], Flavor] = field(default_factory=dict)
    """by name of the flavor and of the resource"""
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Queues:
    """All queues of Kueue."""

    local: Mapping[tuple[str, str], str]
    """by namespace and name of the LocalQueue: its ClusterQueue"""
    stopped: frozenset[tuple[str, str]]
    """LocalQueues that admit no job"""
    clusters: Mapping[str, ClusterQueue]
    cohorts: Mapping[str, ClusterQueue]
    parents: Mapping[str, str]
    """of a cohort: the cohort above it"""


def queues(local: Iterable[Manifest], clusters: Iterable[Manifest], cohorts: Iterable[Manifest]) -> Queues:
    """Return the queues that these objects of `v1beta2` show; one that cannot be read counts as absent."""
    named = tuple(_readable(local, _local_queue))
    above = tuple(cohorts)
    return Queues(
        local={key: cluster for key, cluster, _ in named},
        stopped=frozenset(key for key, _, is_stopped in named if is_stopped),
        clusters={queue.name: queue for queue in _readable(clusters, _cluster_queue)},
        cohorts={queue.name: queue for queue in _readable(above, _cluster_queue)},
        parents=dict(_readable(above, _parent)),
    )


def _readable(raws: Iterable[Manifest], read: Callable[[Manifest], Read]) -> Iterator[Read]:
    """Yield what can be read. The objects are of many users, and of a project whose versions we do not choose."""
    for raw in raws:
        try:
            yield read(raw)
        except UNREADABLE:
            continue


def _local_queue(raw: Manifest) -> tuple[tuple[str, str], str, bool]:
    """Return namespace and name of a LocalQueue, its ClusterQueue, and whether it is stopped."""
    spec = raw.get("spec", {})
    key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
    return key, str(spec.get("clusterQueue", "")), spec.get("stopPolicy", "None") != "None"


def _parent(raw: Manifest) -> tuple[str, str]:
    """Return the name of a cohort, and of the one above it."""
    return raw["metadata"]["name"], str(raw.get("spec", {}).get("parentName", ""))


def _cluster_queue(raw: Manifest) -> ClusterQueue:
    spec = raw.get("spec", {})
    used = {
        (flavor["name"], each["name"]): thousandths(each.get("total", 0))
        for flavor in raw.get("status", {}).get("flavorsReservation", ())
        for each in flavor.get("resources", ())
    }
    flavors = {
        (flavor["name"], each["name"]): _flavor(each, used.get((flavor["name"], each["name"]), 0))
        for group in spec.get("resourceGroups", ())
        for flavor in group.get("flavors", ())
        for each in flavor.get("resources", ())
    }
    stopped = spec.get("stopPolicy", "None") != "None"
    return ClusterQueue(raw["metadata"]["name"], spec.get("cohortName", ""), flavors, stopped)


def _flavor(raw: Mapping[str, Any], reserved: int) -> Flavor:
    def limit(key: str) -> int | None:
        return thousandths(raw[key]) if raw.get(key) is not None else None

    return Flavor(thousandths(raw.get("nominalQuota", 0)), limit("borrowingLimit"), limit("lendingLimit"), reserved)


def against_queue(pods: Sequence[Pods], namespace: str, name: str, known: Queues) -> Iterator[Obstacle]:
    """Yield what a LocalQueue can never give, or does not give now."""
    key = (namespace, name)
    if key not in known.local:
        yield Obstacle(Outcome.LATER, f"{FIELD}: namespace {namespace} has no LocalQueue {name}", None)
        return
    queue = known.clusters.get(known.local[key])
    if queue is None:
        yield Obstacle(Outcome.LATER, f"ClusterQueue {known.local[key]} of LocalQueue {name} does not exist", None)
        return
    covered = {resource for _, resource in queue.flavors}
    never = list(_too_much(pods, covered, queue, known))
    yield from never
    if never:
        return
    yield from _uncovered(pods, covered, queue)
    if queue.is_stopped or key in known.stopped:
        yield Obstacle(Outcome.LATER, f"LocalQueue {name} or ClusterQueue {queue.name} is stopped", None)
    yield from _now(pods, covered, queue, known)


def _uncovered(pods: Sequence[Pods], covered: set[str], queue: ClusterQueue) -> Iterator[Obstacle]:
    for resource, amount in sorted(total(tuple(pods)).items()):
        if resource not in covered and resource != PODS and amount > 0:
            # Not never: Kueue's configuration, which the operator cannot read, may leave resources out.
            yield Obstacle(Outcome.LATER, f"ClusterQueue {queue.name} has no quota for {resource}", resource)


def _too_much(pods: Sequence[Pods], covered: set[str], queue: ClusterQueue, known: Queues) -> Iterator[Obstacle]:
    """Yield resources of which the queue has too little, were it empty: for all pods, or for those of one group, which
    get one flavor.
    """
    needs = total(tuple(pods))
    for resource in sorted(covered & needs.keys()):
        most = {flavor: _most(queue, flavor, resource, known) for flavor, each in queue.flavors if each == resource}
        if needs[resource] > sum(most.values()):
            yield Obstacle(Outcome.NEVER, _has(queue, resource, known), resource)
            continue
        for each in pods:
            wanted = each.requests.get(resource, 0) * each.count
            if wanted > max(most.values()):
                text = f"the pods of the group {each.group} need {shown(resource, wanted)} of one flavor"
                yield Obstacle(Outcome.NEVER, f"{text}; {_has(queue, resource, known)}", resource)
                break


def _has(queue: ClusterQueue, resource: str, known: Queues) -> str:
    mine = [(name, flavor) for (name, each), flavor in queue.flavors.items() if each == resource]
    nominal = sum(flavor.nominal for _, flavor in mine)
    borrowed = sum(_most(queue, name, resource, known) for name, _ in mine) - nominal
    text = f"ClusterQueue {queue.name} has {shown(resource, nominal)}"
    return f"{text} and may borrow {shown(resource, borrowed)}" if queue.cohort else text


def _now(pods: Sequence[Pods], covered: set[str], queue: ClusterQueue, known: Queues) -> Iterator[Obstacle]:
    needs = total(tuple(pods))
    for resource in sorted(covered & needs.keys()):
        mine = [name for name, each in queue.flavors if each == resource]
        most = sum(_most(queue, name, resource, known) for name in mine)
        reserved = sum(queue.flavors[name, resource].reserved for name in mine)
        if needs[resource] > most - reserved:
            text = f"{_has(queue, resource, known)}; {shown(resource, reserved)} are reserved"
            yield Obstacle(Outcome.LATER, text, resource)


def _most(queue: ClusterQueue, flavor: str, resource: str, known: Queues) -> int:
    """Return what the queue can have of a flavor at most: its own, and what all others of its cohorts lend."""
    own = queue.flavors[flavor, resource]
    if not queue.cohort:
        return own.nominal
    root = _root(queue.cohort, known)
    others = [each for each in known.clusters.values() if each.cohort and each.name != queue.name]
    others = [each for each in others if _root(each.cohort, known) == root]
    others += [cohort for cohort in known.cohorts.values() if _root(cohort.name, known) == root]
    lent = sum(each.flavors[flavor, resource].lent for each in others if (flavor, resource) in each.flavors)
    return own.nominal + (lent if own.borrowing_limit is None else min(lent, own.borrowing_limit))


def _root(cohort: str, known: Queues) -> str:
    """Return the highest cohort above one; Kueue refuses circles, and this does not walk in them."""
    seen = {cohort}
    while (above := known.parents.get(cohort, "")) and above not in seen:
        seen.add(above)
        cohort = above
    return cohort
