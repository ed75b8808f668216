"""What limits pods in the cluster: quotas, limit ranges, nodes, and what others use. Read again every few seconds.

The operator looks while a job waits, and leaves out the pods of its own jobs: it knows these from its watches, at once.
The webhook follows the same objects by watches of its own (`webhook/supply.py`).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.snapshot import ALIVE, OthersUse, Snapshot, snapshot
from rljob_operator.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

LOOK_S = 15.0
"""between two looks [s]"""
FORBIDDEN = 403
NODES = "api/v1/nodes"
PRIORITY_CLASSES = "apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(frozen=True, slots=True)
class Look:
    """What others leave, and the cluster's PriorityClasses."""

    seen: Snapshot
    priority_classes: tuple[Manifest, ...] = ()


class Sight:
    """Looks at the cluster."""

    def __init__(self, cluster: Cluster, namespaces: Sequence[str], coming: Sequence[Node] | None) -> None:
        """No namespaces: all. `coming` are the nodes that an autoscaler can bring; None: not known."""
        self._cluster = cluster
        self._namespaces = namespaces
        self._coming = coming

    async def look_at_others(self, is_other: Callable[[Manifest], bool]) -> "Look":
        """Read everything that is allowed, and count only the pods of others; raise ClusterError.

        Where only some namespaces are seen, nodes are not: pods of the others may use them. Nor are PriorityClasses,
        for which the operator then has no right.
        """
        quotas = await self._of_namespaces("resourcequotas")
        limits = await self._of_namespaces("limitranges")
        nodes = None if self._namespaces else await self._allowed(self._list(NODES))
        use = await self._use(quotas, is_other)
        known = None if self._namespaces else await self._allowed(self._list(PRIORITY_CLASSES))
        found = snapshot((), limits, nodes, use.of_nodes, self._coming)
        return Look(Snapshot(use.quotas, found.limits, found.nodes, found.coming), tuple(known or ()))

    async def _use(self, quotas: Sequence[Manifest], counts: Callable[[Manifest], bool]) -> OthersUse:
        """Return what the pods that count take of nodes and of these quotas."""
        use = OthersUse(quotas)
        for place in self._places:
            counting = self._count(place, use, counts)
            # Of the whole cluster these pods say what is left on nodes: without them there is no look.
            await (self._allowed(counting) if self._namespaces else counting)
        return use

    async def _count(self, place: str, use: OthersUse, counts: Callable[[Manifest], bool]) -> list[Manifest]:
        """Add the pods of a place that count."""
        async for pod in self._all(f"{place}/pods", ALIVE):
            if counts(pod):
                use.add(pod)
        return []

    async def _allowed(self, reading: Awaitable[list[Manifest]]) -> list[Manifest] | None:
        """Return what was read; None: the operator may not read it, as in a namespace that was deleted."""
        try:
            return await reading
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            log.info("action=look-at-capacity outcome=forbidden: %s", error)
            return None

    @property
    def _places(self) -> list[str]:
        return [f"api/v1/namespaces/{name}" for name in self._namespaces] or ["api/v1"]

    async def _of_namespaces(self, plural: str) -> list[Manifest]:
        found = [await self._allowed(self._list(f"{place}/{plural}")) for place in self._places]
        return [raw for each in found if each is not None for raw in each]

    async def _list(self, path: str) -> list[Manifest]:
        return [raw async for raw in self._all(path)]

    async def _all(self, path: str, fields: str = "") -> AsyncIterator[Manifest]:
        async for page in self._cluster.lists(path, [("fieldSelector", fields)]):
            for raw in page["items"]:
                yield raw
