"""Other releases of the chart that watch the same namespaces: each job belongs to the one that saw it first.

    status.release ─┬─ absent, or this one ─► act
                    └─ another one ─► leave alone; take over once its Lease was not renewed for 15 min

Two releases that see a new job at once both write its first status. Only one write succeeds: it carries the version of
the job that was read.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from rljob_api.errors import UNREADABLE
from rljob_api.foreign_text import said
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

GONE_S = 900.0
"""a release whose Lease was not renewed for this time is gone; an upgrade takes less [s]"""
LOOK_S = 30.0
"""between two looks at a Lease [s]"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at the Lease of another release."""

    at: float
    """[unix s]"""
    alive_at: float
    """when it was renewed last, on its holder's clock; without a Lease, when that was seen first [unix s]"""
    same_since: float = 0.0
    """when this operator first saw it as it is [unix s]"""


def seen(lease: Manifest | None, before: Seen | None, now: float) -> Seen:
    """Return what a look at a Lease shows at `now` [unix s]; None: there is no Lease."""
    renewed: str | None = lease["spec"].get("renewTime") if lease is not None else None
    if renewed is None:
        return Seen(now, before.alive_at if before is not None else now)
    alive_at = datetime.fromisoformat(renewed).timestamp()
    is_same = before is not None and before.alive_at == alive_at
    return Seen(now, alive_at, before.same_since if before is not None and is_same else now)


def is_gone(look: Seen, now: float) -> bool:
    """Return whether a release is gone at `now` [unix s], so that its jobs may be taken over.

    One that is alive renews its Lease every few seconds, even with a wrong clock.
    """
    return now - look.alive_at >= GONE_S and look.at - look.same_since >= LOOK_S


class OtherReleases:
    """What is known of them."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._clock = clock
        self._seen: dict[str, Seen] = {}

    async def is_gone(self, release: str) -> bool:
        """Return whether a release, as a status names it, is gone. One whose Lease cannot be read is not."""
        now, look = self._clock(), self._seen.get(release)
        if look is None or now - look.at >= LOOK_S:
            namespace, _, name = release.partition("/")
            try:
                look = seen(await self._cluster.read_lease(namespace, name), look, now)
            except (ClusterError, *UNREADABLE) as error:
                log.warning("action=look release=%s outcome=failed its jobs are left alone: %s", release, said(error))
                look = Seen(now, now)
            self._seen[release] = look
        return is_gone(look, now)
