"""What limits pods in the cluster, for the webhook: quotas, limit ranges, nodes, pods, and Kueue's queues.

Each kind is followed by a watch, so a review is judged by what was true a moment ago, and no look at a whole cluster
stops the reviews meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

from rljob_operator.capacity.inventory import OF_KUEUE, Inventory, Kind
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.snapshot import ALIVE, Snapshot
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.cluster.reflector import Kept, Reflector

KUEUE = "apis/kueue.x-k8s.io/v1beta2"
OLD_S = 300.0
"""what was last heard of longer ago says nothing [s]; an API server sends a bookmark every minute"""
OF_CLUSTER = (Kind.NODES, Kind.CLUSTER_QUEUES, Kind.COHORTS)
"""kinds without a namespace"""


class CapacityWatch:
    """The newest state of all that limits pods."""

    def __init__(
        self, cluster: Cluster, namespaces: Sequence[str], coming: Sequence[Node] | None, has_kueue: bool
    ) -> None:
        """No namespaces: all. `coming` are the nodes that an autoscaler can bring; None: not known."""
        self._inventory = Inventory(coming, has_kueue)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._followed = [self._follow(cluster, kind, where) for kind, where in paths(namespaces, has_kueue)]

    @property
    def seen(self) -> Snapshot | None:
        """What limits pods now; None: it is not all known, or too old to refuse a job by it."""
        now = (self._loop or asyncio.get_running_loop()).time()  # a worker that judges has no loop that runs
        heard = (each.heard_at for each in self._followed)
        return self._inventory.snapshot if all(at is not None and now - at < OLD_S for at in heard) else None

    @property
    def unreadable(self) -> int:
        """How many objects could not be read and were skipped."""
        return sum(each.unreadable for each in self._followed)

    async def keep(self) -> None:
        """Follow the cluster for ever."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for each in self._followed:
                group.create_task(each.follow())

    def _follow(self, cluster: Cluster, kind: Kind, where: str) -> Reflector:
        query = [("fieldSelector", ALIVE)] if kind is Kind.PODS else []
        kept = Kept(partial(self._inventory.put, kind), partial(self._inventory.remove, kind))
        return Reflector(cluster, where, query, kept)


def paths(namespaces: Sequence[str], has_kueue: bool) -> Iterator[tuple[Kind, str]]:
    """Yield what to follow, with its path; no namespaces: all."""
    for kind in Kind:
        if kind in OF_KUEUE and not has_kueue:
            continue
        group = KUEUE if kind in OF_KUEUE else "api/v1"
        places = [] if kind in OF_CLUSTER else [f"{group}/namespaces/{name}" for name in namespaces]
        yield from ((kind, f"{place}/{kind}") for place in places or [group])
