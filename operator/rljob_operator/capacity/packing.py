"""Nodes against the pods of a job. Pure.

A search decides whether all pods find a place at once. It says no only when it has tried everything; where it gives up,
the answer is that the pods may fit.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from sys import intern
from typing import Any, Literal

from rljob_operator.capacity.demand import Pods, total
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.quantities import amounts, shown
from rljob_operator.identity import HOSTNAME_LABEL, Manifest

MOST_PLACES = 5_000
"""that the search tries before it gives up"""
MOST_COMPARED = 6
"""groups of pods of which all combinations are compared with nodes; a job has four or five"""
PASSING = "node.kubernetes.io/"
"""taints of this prefix go away when the node is well again"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, or one that an autoscaler can bring."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    is_schedulable: bool = True
    """ready, and not cordoned"""
    used: Mapping[str, int] = field(default_factory=dict)
    """what pods on it request"""
    free: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """what is left; every search asks every node"""
    _shape: str | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        free = {name: amount - self.used.get(name, 0) for name, amount in self.allocatable.items()}
        object.__setattr__(self, "free", free)

    @property
    def hostname(self) -> str:
        """What the label says that pods avoid it by."""
        return self.labels.get(HOSTNAME_LABEL, self.name)

    @property
    def shape(self) -> str:
        """The same text for nodes that differ in name and labels only; made once."""
        if self._shape is None:
            parts = sorted(self.allocatable.items()), sorted(self.free.items()), self.taints, self.is_schedulable
            object.__setattr__(self, "_shape", intern(repr(parts)))
        assert self._shape is not None
        return self._shape


def node_of(raw: Manifest, used: Mapping[str, int]) -> Node:
    """Return a node as the API server shows it."""
    spec, status = raw.get("spec", {}), raw.get("status", {})
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return Node(
        name=raw["metadata"]["name"],
        allocatable=amounts(status.get("allocatable")),
        labels=raw["metadata"].get("labels", {}),
        taints=tuple(spec.get("taints", ())),
        is_schedulable=ready and not spec.get("unschedulable", False),
        used=used,
    )


def against_nodes(pods: Sequence[Pods], nodes: Sequence[Node], coming: Sequence[Node] | None) -> Iterator[Obstacle]:
    """Yield what nodes do not have, or do not have now.

    `coming` are the nodes that an autoscaler can bring; None: unknown, so all missing resources may come later.
    """
    known = _alike(pods, nodes)
    ready = [each for each in known if each.node.is_schedulable]
    if _lacking(pods, ready, now=True) is None and placed(pods, _enough(pods, ready), now=True):
        return
    found = _against_empty(pods, [*known, *_alike(pods, coming or ())], coming is not None)
    yield from found
    if not found:
        yield _short_now(pods, ready)


def against_empty_nodes(
    pods: Sequence[Pods], nodes: Sequence[Node], coming: Sequence[Node] | None
) -> tuple[Obstacle, ...]:
    """Return what nodes would not have if they were empty, and all that can come were there."""
    return _against_empty(pods, _alike(pods, (*nodes, *(coming or ()))), coming is not None)


def _against_empty(pods: Sequence[Pods], nodes: Sequence["_Alike"], is_all: bool) -> tuple[Obstacle, ...]:
    never = Outcome.NEVER if is_all else Outcome.LATER
    return tuple(_shapes(pods, nodes, never)) or tuple(_together(pods, nodes, never))


@dataclass(slots=True)
class _Alike:
    """Nodes that are the same to some pods."""

    node: Node
    """the first of them"""
    count: int = 1


class Nodes(tuple[Node, ...]):
    """The nodes of one time. A cluster has thousands of them and few kinds, and every job is asked about all: so they
    remember their kinds.
    """

    def __init__(self, _: Iterable[Node] = ()) -> None:
        self._kinds: dict[tuple[str, ...], Sequence[_Alike]] = {}

    def kinds(self, labels: tuple[str, ...]) -> Sequence[_Alike]:
        """Return them in groups that differ in nothing but names and labels other than these."""
        if labels not in self._kinds:
            found: dict[Hashable, _Alike] = {}
            for node in self:
                kind = (node.shape, *(node.labels.get(label) for label in labels))
                if kind in found:
                    found[kind].count += 1
                else:
                    found[kind] = _Alike(node)
            self._kinds[labels] = tuple(found.values())
        return self._kinds[labels]


def fits(pods: Sequence[Pods], nodes: Sequence[Node]) -> bool | None:
    """Return whether all pods find a place at once if the nodes are empty; None: not found in the time allowed."""
    return placed(pods, _enough(pods, _alike(pods, nodes)))


def _alike(pods: Sequence[Pods], nodes: Sequence[Node]) -> Sequence[_Alike]:
    """Return nodes in groups that are the same to these pods, without those that all pods avoid."""
    if left_out := frozenset.intersection(*(each.avoids for each in pods)) if pods else ():
        nodes = [node for node in nodes if node.hostname not in left_out]
    known = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
    return known.kinds(tuple(sorted({label for each in pods for label in each.node_selector})))


def _enough(pods: Sequence[Pods], nodes: Sequence[_Alike]) -> list[Node]:
    """Return nodes among which pods find a place if they find one among all: of each kind one for each pod."""
    most = sum(each.count for each in pods)
    return [each.node for each in nodes for _ in range(min(each.count, most))]


def _shapes(pods: Sequence[Pods], kinds: Sequence[_Alike], never: Outcome) -> Iterator[Obstacle]:
    """Yield the groups of which no pod fits on any node, were it empty."""
    nodes = [each.node for each in kinds]
    for each in pods:
        requests = each.requests
        if any(_has(node.allocatable, requests) and _lets_in(node, each) for node in nodes):
            continue
        matching = [node for node in nodes if _lets_in(node, each)]
        if not matching:
            yield Obstacle(never, _nowhere(each, nodes, sum(kind.count for kind in kinds)))
        else:
            name, largest = _shortest(each, matching)
            text = f"a pod of the group {each.group} needs {shown(name, each.requests[name])}"
            yield Obstacle(never, f"{text}; the largest node has {shown(name, largest)}", name)


def _nowhere(pods: Pods, nodes: Sequence[Node], number: int) -> str:
    selected = [node for node in nodes if _is_selected(node, pods)]
    if not nodes:
        return "the cluster has no nodes"
    if not selected:
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(pods.node_selector.items()))
        return f"none of {number} nodes has the labels {wanted} of spec.scheduling.nodeSelector"
    taint = next(taint for taint in selected[0].taints if _keeps_out(taint, pods, passing=False))
    text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return f"spec.scheduling.tolerations: none tolerates the taint {text}, as on node {selected[0].name}"


def _shortest(pods: Pods, nodes: Sequence[Node]) -> tuple[str, int]:
    """Return a resource that is short on every node, and how much the best node has of it."""
    best = {name: max(node.allocatable.get(name, 0) for node in nodes) for name in pods.requests}
    short = [name for name, amount in pods.requests.items() if amount > best[name]]
    # If each resource alone is there, but never together, the devices are what is rare.
    name = next(iter(sorted(short, key=_rarest)), None) or min(pods.requests, key=_rarest)
    return name, best[name]


def _rarest(name: str) -> tuple[bool, str]:
    return "/" not in name, name


def _together(pods: Sequence[Pods], kinds: Sequence[_Alike], never: Outcome) -> Iterator[Obstacle]:
    """Yield what is short if every node were empty."""
    short = _lacking(pods, kinds, now=False)
    if short is not None:
        name, there = short
        yield Obstacle(never, f"all matching nodes together have {shown(name, there)}", name)
    elif placed(pods, _enough(pods, kinds)) is False:
        count = sum(each.count for each in pods)
        number = sum(kind.count for kind in kinds)
        yield Obstacle(never, f"{count} pods do not fit on the {number} nodes, even if these were empty")


def _lacking(pods: Sequence[Pods], kinds: Sequence[_Alike], now: bool) -> tuple[str, int] | None:
    """Return a resource of which all matching nodes together have too little, and how much that is."""
    matching = [kind for kind in kinds if any(_lets_in(kind.node, each, passing=now) for each in pods)]
    for name, amount in sorted(total(tuple(pods)).items(), key=lambda each: _rarest(each[0])):
        there = 0
        for kind in matching:
            has = kind.node.free if now else kind.node.allocatable
            there += max(0, has.get(name, 0)) * kind.count
        if amount > there:
            return name, there
    return None


def _short_now(pods: Sequence[Pods], ready: Sequence[_Alike]) -> Obstacle:
    """Return what these nodes lack at present."""
    matching = [kind for kind in ready if any(_lets_in(kind.node, each) for each in pods)]
    unwell = [kind for kind in matching if not any(_lets_in(kind.node, each, passing=True) for each in pods)]
    kept_out = f"; {_taints(unwell)}" if unwell else ""
    if (short := _lacking(pods, ready, now=True)) is not None:
        name, there = short
        return Obstacle(Outcome.LATER, f"matching nodes have {shown(name, there)} free{kept_out}", name)
    return Obstacle(Outcome.LATER, f"matching nodes have enough free, but not on single nodes{kept_out}")


def _taints(unwell: Sequence[_Alike]) -> str:
    """Return `3 more have the taint node.kubernetes.io/disk-pressure`."""
    keys = sorted({str(taint["key"]) for kind in unwell for taint in kind.node.taints if _passes(taint)})
    return f"{sum(kind.count for kind in unwell)} more have the taint {' or '.join(keys)}"


def placed(pods: Sequence[Pods], nodes: Sequence[Node], now: bool = False) -> bool | None:
    """Return whether all pods find a place at once, on empty nodes or `now`; None: not found in the time allowed."""
    return _search(pods, nodes, now).place()


def _search(pods: Sequence[Pods], nodes: Sequence[Node], now: bool) -> "_Search":
    names = sorted({name for each in pods for name in each.requests}, key=_rarest)
    # The rarest first: most nodes that lack something lack that.
    sizes = [{name: each.requests[name] for name in names if each.requests.get(name, 0) > 0} for each in pods]
    order = sorted(zip(pods, sizes, strict=True), key=lambda each: [each[1].get(n, 0) for n in names], reverse=True)
    return _Search(order, nodes, now)


Places = tuple[tuple[Pods, int], ...]
"""pods, each with the index of its node"""


def places(pods: Sequence[Pods], nodes: Sequence[Node], now: bool = True) -> Places | Literal[False] | None:
    """Return the index of a node for each pod at once, as nodes are now or as if they were empty.

    False: the pods have no places; None: none were found in the time allowed.
    """
    search = _search(pods, nodes, now)
    found = search.place()
    return search.path() if found else found


def lets_in(node: Node, pods: Pods) -> bool:
    """Return whether a pod may be on a node, as far as labels and taints go."""
    return _lets_in(node, pods, passing=True)


Spread = tuple[tuple[int, int], ...]
"""the index of a node, and how many pods of a group it gets"""


class _Search:
    """Depth first, over groups of pods that are alike: the one with the least room to spare goes first.

    A step is a node that gets some number of pods, at first as many as fit. So ten thousand pods take no longer than
    ten. Of nodes that are alike, none gets more pods than the one before it. Nodes that the fewest groups can use come
    first. A search that gives up still says no where some groups together ask for more than their nodes have.
    """

    def __init__(self, order: Sequence[tuple[Pods, Mapping[str, int]]], nodes: Sequence[Node], now: bool) -> None:
        self._groups = order
        self._nodes, self._now = nodes, now
        self._rooms: list[Mapping[str, int]] = [node.free if now else node.allocatable for node in nodes]
        self._open = [[_lets_in(node, pods, now) for node in nodes] for pods, _ in order]
        self._fits = [
            [_times(room, sizes, pods.count) if is_open else 0 for room, is_open in zip(self._rooms, each, strict=True)]
            for (pods, sizes), each in zip(order, self._open, strict=True)
        ]
        """how many pods of a group each node has room for"""
        useful = [sum(map(bool, fits)) for fits in zip(*self._fits, strict=True)]
        self._order = sorted(range(len(nodes)), key=useful.__getitem__)
        self._found: list[tuple[int, Spread]] = []
        self._left = MOST_PLACES + 2 * len(nodes) * len(order)

    def path(self) -> Places:
        """Return the pods with their nodes, after `place` has found them."""
        return tuple(
            (self._groups[group][0], node)
            for group, spread in self._found
            for node, number in spread
            for _ in range(number)
        )

    def place(self) -> bool | None:
        found = self._place(frozenset(range(len(self._groups))))
        return False if found is None and self._is_short() else found

    def _is_short(self) -> bool:
        """Return whether some groups together ask for more than the nodes have that let one of them in."""
        self._rooms = [node.free if self._now else node.allocatable for node in self._nodes]
        count = len(self._groups)
        masks = range(1, 1 << count) if count <= MOST_COMPARED else [1 << group for group in range(count)]
        return any(self._lacks([group for group in range(count) if mask >> group & 1]) for mask in masks)

    def _lacks(self, groups: Sequence[int]) -> bool:
        sizes = [(self._groups[group][0].count, self._groups[group][1]) for group in groups]
        fits = [
            any(self._open[group][node] and _has(room, self._groups[group][1]) for group in groups)
            for node, room in enumerate(self._rooms)
        ]
        rooms = [room for room, fit in zip(self._rooms, fits, strict=True) if fit]
        for name in {name for _, size in sizes for name in size}:
            if sum(count * size.get(name, 0) for count, size in sizes) > sum(
                max(0, room.get(name, 0)) for room in rooms
            ):
                return True
            least = min(size.get(name, 0) for _, size in sizes)
            if least and sum(count for count, _ in sizes) > sum(max(0, room.get(name, 0)) // least for room in rooms):
                return True
        return False

    def _place(self, groups: frozenset[int]) -> bool | None:
        if not groups:
            return True
        group = min(sorted(groups), key=lambda each: sum(self._fits[each]) - self._groups[each][0].count)
        rest, requests = groups - {group}, self._groups[group][1]
        for spread in self._spreads(group):
            before = [self._rooms[node] for node, _ in spread]
            self._set(rest, spread, [_less(self._rooms[node], requests, number) for node, number in spread])
            found = self._place(rest)
            if found:
                self._found.append((group, spread))
            if found is not False:
                return found
            self._set(rest, spread, before)
        return False if self._left >= 0 else None

    def _set(self, groups: Iterable[int], spread: Spread, rooms: Sequence[Mapping[str, int]]) -> None:
        """Note what nodes have left, and how many pods of other groups that is enough for."""
        for (node, _), room in zip(spread, rooms, strict=True):
            self._rooms[node] = room
            for group in groups:
                pods, requests = self._groups[group]
                self._fits[group][node] = _times(room, requests, pods.count) if self._open[group][node] else 0

    def _spreads(self, group: int) -> Iterator[Spread]:
        """Yield the ways to spread the pods of a group over the nodes, until the search gives up."""
        fits = self._fits[group]
        nodes = [node for node in self._order if fits[node]]
        self._left -= len(nodes)
        beyond = [0, *accumulate(fits[node] for node in reversed(nodes))][::-1]
        left, chosen = self._groups[group][0].count, list[int]()
        twins: Mapping[int, int] | None = None
        most = left
        while True:
            while left and len(chosen) < len(nodes) and left <= beyond[len(chosen)]:
                self._left -= 1
                twin = twins.get(len(chosen)) if twins is not None else None
                limit = chosen[twin] if twin is not None else left
                chosen.append(min(left, fits[nodes[len(chosen)]], most, limit))
                left -= chosen[-1]
                most = left
            if not left:
                self._left -= len(chosen)
                yield tuple((node, number) for node, number in zip(nodes, chosen, strict=False) if number)
            while chosen and not chosen[-1]:
                chosen.pop()
            if not chosen or self._left < 0:
                return
            twins = self._twins(nodes) if twins is None else twins  # the first way needs none, and is mostly the last
            left += chosen[-1]
            most = chosen.pop() - 1

    def _twins(self, nodes: Sequence[int]) -> Mapping[int, int]:
        """Return, for places in a list of nodes, the place before it with a node that is alike."""
        wanted = total(tuple(pods for pods, _ in self._groups))  # what no pod could use makes no difference
        last: dict[Hashable, int] = {}
        found = {}
        for place, node in enumerate(nodes):
            room = self._rooms[node]
            has = tuple(min(room.get(name, 0), amount) for name, amount in wanted.items())
            kind = (*(each[node] for each in self._open), has)
            if kind in last:
                found[place] = last[kind]
            last[kind] = place
        return found


def _less(room: Mapping[str, int], requests: Mapping[str, int], number: int) -> Mapping[str, int]:
    return {**room, **{name: room.get(name, 0) - amount * number for name, amount in requests.items()}}


def _times(room: Mapping[str, int], requests: Mapping[str, int], most: int) -> int:
    """Return how many pods a node has room for, up to a limit."""
    for name, amount in requests.items():
        most = min(most, room.get(name, 0) // amount)
        if most <= 0:
            return 0
    return most


def _has(room: Mapping[str, int], requests: Mapping[str, int]) -> bool:
    for name, amount in requests.items():  # noqa: SIM110 a generator takes twice the time, at every node
        if amount > 0 and room.get(name, 0) < amount:
            return False
    return True


def _lets_in(node: Node, pods: Pods, passing: bool = False) -> bool:
    if pods.node_selector and not _is_selected(node, pods):
        return False
    if pods.avoids and node.hostname in pods.avoids:
        return False
    return not node.taints or not any(_keeps_out(taint, pods, passing) for taint in node.taints)


def _is_selected(node: Node, pods: Pods) -> bool:
    return all(node.labels.get(key) == value for key, value in pods.node_selector.items())


def _keeps_out(taint: Mapping[str, Any], pods: Pods, passing: bool) -> bool:
    if taint.get("effect") not in ("NoSchedule", "NoExecute"):
        return False
    if not passing and _passes(taint):
        return False
    return not any(_tolerates(each, taint) for each in pods.tolerations)


def _passes(taint: Mapping[str, Any]) -> bool:
    return str(taint["key"]).startswith(PASSING)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") in (None, ""):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
