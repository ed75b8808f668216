"""All that limits pods in a cluster, kept up to date object by object. Pure, but for its own bookkeeping.

A change costs the same in a cluster of any size: only the node, or the namespace, that it touches is read again.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Generic, TypeVar

from rljob_operator.capacity.packing import Node, Nodes, node_of
from rljob_operator.capacity.queues import Queues, queues
from rljob_operator.capacity.quotas import Limit, Quota, limits_of, quota_of
from rljob_operator.capacity.snapshot import Snapshot, requests_of, takes_room
from rljob_operator.identity import Manifest

Value = TypeVar("Value")


class Kind(StrEnum):
    """What is kept; the values are plurals, as in paths of the API server."""

    QUOTAS = "resourcequotas"
    LIMITS = "limitranges"
    NODES = "nodes"
    PODS = "pods"
    LOCAL_QUEUES = "localqueues"
    CLUSTER_QUEUES = "clusterqueues"
    COHORTS = "cohorts"


OF_KUEUE = (Kind.LOCAL_QUEUES, Kind.CLUSTER_QUEUES, Kind.COHORTS)


class Inventory:
    """Objects by kind and uid."""

    def __init__(self, coming: Sequence[Node] | None, has_queues: bool = False) -> None:
        """`coming` are the nodes that an autoscaler can bring; None: not known."""
        self._coming = None if coming is None else tuple(coming)
        self._quotas = _ByNamespace[Quota]()
        self._limits = _ByNamespace[tuple[Limit, ...]]()
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, str] = {}
        self._pods: dict[str, tuple[str, dict[str, int]]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._changed: set[str] = set()
        """nodes on which pods use more or less than their `Node` says"""
        self._queues: dict[Kind, dict[str, Manifest]] = {kind: {} for kind in OF_KUEUE}
        self._read: Queues | None = None
        self._has_queues = has_queues
        self._snapshot: Snapshot | None = None

    def put(self, kind: Kind, raw: Manifest) -> None:
        """Keep the newest version of an object."""
        uid, self._snapshot = raw["metadata"]["uid"], None
        match kind:
            case Kind.QUOTAS:
                self._quotas.put(raw["metadata"]["namespace"], uid, quota_of(raw))
            case Kind.LIMITS:
                self._limits.put(raw["metadata"]["namespace"], uid, limits_of(raw))
            case Kind.NODES:
                node = node_of(raw, {})
                self._names[uid] = node.name
                self._nodes[node.name] = node
                self._changed.add(node.name)
            case Kind.PODS:
                self._put_pod(uid, raw)
            case Kind.LOCAL_QUEUES | Kind.CLUSTER_QUEUES | Kind.COHORTS:
                self._queues[kind][uid] = raw
                self._read = None

    def remove(self, kind: Kind, uid: str) -> None:
        """Forget an object."""
        self._snapshot = None
        match kind:
            case Kind.QUOTAS:
                self._quotas.remove(uid)
            case Kind.LIMITS:
                self._limits.remove(uid)
            case Kind.NODES:
                name = self._names.pop(uid, None)
                if name is not None and name not in self._names.values():  # a new node may have the name already
                    self._nodes.pop(name, None)
            case Kind.PODS:
                self._remove_pod(uid)
            case Kind.LOCAL_QUEUES | Kind.CLUSTER_QUEUES | Kind.COHORTS:
                self._queues[kind].pop(uid, None)
                self._read = None

    @property
    def snapshot(self) -> Snapshot:
        """The sums over all objects now."""
        if self._snapshot is None:
            for name in self._changed & self._nodes.keys():
                self._nodes[name] = replace(self._nodes[name], used=dict(self._used.get(name, {})))
            self._changed.clear()
            limits = {place: tuple(each for one in found for each in one) for place, found in self._limits.all.items()}
            nodes = Nodes(self._nodes.values())
            self._snapshot = Snapshot(dict(self._quotas.all), limits, nodes, self._coming, self._known_queues())
        return self._snapshot

    def _put_pod(self, uid: str, raw: Manifest) -> None:
        if not takes_room(raw):
            self._remove_pod(uid)
            return
        self.place_pod(uid, raw["spec"]["nodeName"], requests_of(raw["spec"]))

    def place_pod(self, uid: str, where: str, requests: dict[str, int]) -> None:
        """Keep what a pod requests of a node; `remove` forgets it."""
        self._snapshot = None
        if self._pods.get(uid) == (where, requests):
            return
        self._remove_pod(uid)
        self._pods[uid] = (where, requests)
        self._use(where, requests, 1)

    def _remove_pod(self, uid: str) -> None:
        where, requests = self._pods.pop(uid, ("", {}))
        if where:
            self._use(where, requests, -1)

    def _use(self, node: str, requests: dict[str, int], sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in requests.items():
            used[name] = used.get(name, 0) + sign * amount
        if not any(used.values()):
            del self._used[node]
        self._changed.add(node)

    def _known_queues(self) -> Queues | None:
        if self._has_queues and self._read is None:
            self._read = queues(*(self._queues[kind].values() for kind in OF_KUEUE))
        return self._read


class _ByNamespace(Generic[Value]):
    """Values by uid; those of a namespace together."""

    def __init__(self) -> None:
        self.all: dict[str, tuple[Value, ...]] = {}
        self._values: dict[str, dict[str, Value]] = {}
        self._places: dict[str, str] = {}

    def put(self, namespace: str, uid: str, value: Value) -> None:
        self._places[uid] = namespace
        self._values.setdefault(namespace, {})[uid] = value
        self._gather(namespace)

    def remove(self, uid: str) -> None:
        namespace = self._places.pop(uid, None)
        if namespace is not None:
            del self._values[namespace][uid]
            self._gather(namespace)

    def _gather(self, namespace: str) -> None:
        self.all[namespace] = tuple(self._values[namespace].values())
        if not self.all[namespace]:
            del self.all[namespace], self._values[namespace]
