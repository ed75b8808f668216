"""What limits pods in the cluster, for the queue: quotas, limit ranges, nodes, PriorityClasses, and what others use.

Each kind is followed by a watch from the first look on, so a look costs what has changed since the last one. The
pods of the queue's own jobs are left out: the operator knows these at once.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rljob_operator.cache.cache import Key, is_ours, key_of
from rljob_operator.capacity.inventory import Kind
from rljob_operator.capacity.other_pods import OtherPods
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.snapshot import ALIVE, Snapshot
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.cluster.reflector import Kept, Reflector
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

LOOK_S = 15.0
"""between two looks [s]"""
OLD_S = 300.0
"""older news of a watch does not count [s]; an API server sends a bookmark every minute"""
KNOWN_S = 30.0
"""how long a look waits until all is known [s]"""
POLL_S = 0.02
FORBIDDEN = 403
NODES = "api/v1/nodes"
PRIORITY_CLASSES = "apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(frozen=True, slots=True)
class CapacityReading:
    """What others leave, and the cluster's PriorityClasses."""

    seen: Snapshot
    priority_classes: tuple[Manifest, ...] = ()


class _Objects(Kept):
    """The objects of one path, which may be forbidden."""

    def __init__(self, where: str, put: Callable[[Manifest], None], remove: Callable[[str], None]) -> None:
        super().__init__(put, remove)
        self.where = where
        self.error: ClusterError | None = None

    @property
    def is_forbidden(self) -> bool:
        """Whether they may not be read, as in a namespace that was deleted."""
        return self.error is not None and self.error.status == FORBIDDEN

    def listed(self, uids: Collection[str], version: str) -> None:
        super().listed(uids, version)
        self.error = None

    def failed(self, error: ClusterError) -> None:
        self.error = error


class CapacityReader:
    """Looks at the cluster."""

    def __init__(self, cluster: Cluster, namespaces: Sequence[str], coming: Sequence[Node] | None) -> None:
        """No namespaces: all. `coming` are the nodes that an autoscaler can bring; None: not known."""
        self._cluster, self._namespaces = cluster, namespaces
        self._others = OtherPods(coming)
        self._classes: dict[str, Manifest] = {}
        self._followed: list[tuple[Reflector, _Objects]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def read(self, is_queued: Callable[[Key], bool]) -> CapacityReading:
        """Return what others leave; raise ClusterError if that is not known.

        `is_queued` says of which jobs the pods do not count. Where only some namespaces are seen, nodes are not: pods
        of the others may use them. Nor are PriorityClasses, for which the operator then has no right.
        """
        self._follow()
        try:
            async with asyncio.timeout(KNOWN_S):
                while unknown := self._unknown():
                    if (error := next((each.error for each in unknown if each.error is not None), None)) is not None:
                        raise error
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            where = ", ".join(each.where for each in self._unknown())
            raise ClusterError(f"there is no recent data about {where}") from None
        with_nodes = not self._namespaces and not self._is_forbidden(NODES)
        return CapacityReading(self._others.seen(is_queued, with_nodes), tuple(self._classes.values()))

    async def close(self) -> None:
        """Follow the cluster no longer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks, self._followed = [], []

    def _follow(self) -> None:
        if self._tasks:
            return
        for where, query, put, remove in self._paths():
            objects = _Objects(where, put, remove)
            self._followed.append((Reflector(self._cluster, where, query, objects), objects))
        self._tasks = [asyncio.create_task(each.follow()) for each, _ in self._followed]

    def _paths(self) -> Iterator[tuple[str, list[tuple[str, str]], Callable[[Manifest], None], Callable[[str], None]]]:
        others = self._others
        for place in [f"api/v1/namespaces/{name}" for name in self._namespaces] or ["api/v1"]:
            yield f"{place}/resourcequotas", [], others.put_quota, others.remove_quota
            yield f"{place}/limitranges", [], partial(others.put, Kind.LIMITS), partial(others.remove, Kind.LIMITS)
            yield f"{place}/pods", [("fieldSelector", ALIVE)], self._put_pod, others.remove_pod
        if not self._namespaces:
            yield NODES, [], partial(others.put, Kind.NODES), partial(others.remove, Kind.NODES)
            yield PRIORITY_CLASSES, [], self._put_class, self._remove_class

    def _put_pod(self, raw: Manifest) -> None:
        of_kind = {**raw, "kind": "Pod"}
        self._others.put_pod(raw, key_of(of_kind) if is_ours(of_kind) else "")

    def _put_class(self, raw: Manifest) -> None:
        self._classes[raw["metadata"]["uid"]] = raw

    def _remove_class(self, uid: str) -> None:
        self._classes.pop(uid, None)

    def _unknown(self) -> list[_Objects]:
        """Return of which objects nothing is known; of the whole cluster pods say what is left on nodes."""
        now = asyncio.get_running_loop().time()
        old = [
            objects
            for followed, objects in self._followed
            if followed.heard_at is None or now - followed.heard_at >= OLD_S
        ]
        return [each for each in old if not each.is_forbidden or each.where == "api/v1/pods"]

    def _is_forbidden(self, where: str) -> bool:
        return any(objects.is_forbidden for _, objects in self._followed if objects.where == where)
