"""What the webhook knows of quotas, limit ranges and nodes: read again every few seconds, not at each request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.queues import Queues, queues
from rljob_operator.capacity.snapshot import ALIVE, Snapshot, add_used, snapshot
from rljob_operator.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

LOOK_S = 15.0
"""between two looks [s]"""
KUEUE = "apis/kueue.x-k8s.io/v1beta2"
OLD_S = 300.0
"""a look that is older says nothing [s]"""


class Sight:
    """The newest look."""

    def __init__(
        self, cluster: Cluster, namespaces: Sequence[str], coming: Sequence[Node] | None, has_kueue: bool = False
    ) -> None:
        """No namespaces: all. `coming` are the nodes that an autoscaler can bring; None: not known."""
        self._has_kueue = has_kueue
        self._cluster = cluster
        self._namespaces = namespaces
        self._coming = coming
        self._seen: Snapshot | None = None
        self._at = 0.0

    @property
    def seen(self) -> Snapshot | None:
        """The newest snapshot; None: there is none, or it is too old to refuse a job by it."""
        fresh = asyncio.get_running_loop().time() - self._at < OLD_S
        return self._seen if fresh else None

    async def keep(self) -> None:
        """Look for ever."""
        while True:
            try:
                self._seen = await self.look()
                self._at = asyncio.get_running_loop().time()
            except ClusterError as error:
                log.warning("action=look-at-capacity outcome=failed: %s", error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Snapshot:
        """Read everything; raise ClusterError."""
        places = [f"api/v1/namespaces/{name}" for name in self._namespaces] or ["api/v1"]
        quotas = [raw for place in places async for raw in self._all(f"{place}/resourcequotas")]
        limits = [raw for place in places async for raw in self._all(f"{place}/limitranges")]
        nodes = [raw async for raw in self._all("api/v1/nodes")]
        used: dict[str, dict[str, int]] = {}
        for place in places:
            async for raw in self._all(f"{place}/pods", ALIVE):
                add_used(used, raw)
        seen = await self._queues() if self._has_kueue else None
        return snapshot(quotas, limits, nodes, used, self._coming, seen)

    async def _queues(self) -> Queues:
        local = [f"{KUEUE}/namespaces/{name}/localqueues" for name in self._namespaces] or [f"{KUEUE}/localqueues"]
        return queues(
            [raw for place in local async for raw in self._all(place)],
            [raw async for raw in self._all(f"{KUEUE}/clusterqueues")],
            [raw async for raw in self._all(f"{KUEUE}/cohorts")],
        )

    async def _all(self, path: str, fields: str = "") -> AsyncIterator[Manifest]:
        async for page in self._cluster.lists(path, [("fieldSelector", fields)]):
            for raw in page["items"]:
                yield raw
