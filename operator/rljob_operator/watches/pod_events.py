"""Reads the events of one pod of a job, and only while its status does not say why it does not start."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rljob_api.errors import UNREADABLE
from rljob_api.foreign_text import said
from rljob_operator.cache.cache import Key
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest
from rljob_operator.status.waiting import pod_to_ask
from rljob_operator.world.pod_stage import PodEvent, pod_event_of
from rljob_operator.world.world import Pod

log = logging.getLogger(__name__)

AGAIN_S = 15.0
"""between two looks at the events of a job's pods [s]"""


@dataclass(frozen=True, slots=True)
class Look:
    """What was read."""

    pod: str
    at: float
    events: tuple[PodEvent, ...]


class PodEvents:
    """The newest look of each job."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._clock = clock
        self._looks: dict[Key, Look] = {}

    async def of(self, key: Key, namespace: str, pods: tuple[Pod, ...]) -> Mapping[str, tuple[PodEvent, ...]]:
        """Return the events of the pod that explains most, by its name; empty: all pods explain themselves.

        An explanation is not worth a failed reconcile: without the right, or without an answer, there are no events.
        """
        now = self._clock()
        pod = pod_to_ask(pods, now)
        if pod is None:
            self.forget(key)
            return {}
        look = self._looks.get(key)
        if look is None or look.pod != pod.name or now - look.at >= AGAIN_S:
            look = self._looks[key] = Look(pod.name, now, await self._read(namespace, pod.name))
        return {look.pod: look.events}

    def forget(self, key: Key) -> None:
        self._looks.pop(key, None)

    async def _read(self, namespace: str, pod: str) -> tuple[PodEvent, ...]:
        try:
            return tuple(_readable(await self._cluster.pod_events(namespace, pod)))
        except ClusterError as error:
            log.warning("action=explain pod=%s outcome=failed: %s", pod, error)
            return ()


def _readable(events: Sequence[Manifest]) -> Iterator[PodEvent]:
    """Yield the events that can be read: tenants may write events about their pods."""
    for raw in events:
        try:
            yield pod_event_of(raw)
        except UNREADABLE as error:
            log.warning("action=explain outcome=skipped: %s", said(error))
