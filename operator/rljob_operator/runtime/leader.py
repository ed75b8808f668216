"""Leader election: only the replica that holds the Lease acts. A replica that loses it exits at once.

The client library's election is not used: it stops at the first connection error, waits without a deadline, and
writes local time into the Lease.

    acquire ─► hold (renew every 2 s) ─► release, or lost: the process ends without finishing anything
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

LEASE_S = 15
"""without renewal for this time, others may take the Lease [s]"""
RENEW_DEADLINE_S = 10.0
"""without renewal for this time, the holder exits, well before others take over [s]"""
RETRY_S = 2.0
LOST = 1
"""exit code of a replica that has lost the Lease"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The Lease as it was first seen in this version."""

    version: str
    at: float
    """on our own clock, because the holder's may differ [monotonic s]"""


def may_take(lease: Manifest | None, observed: Observed | None, identity: str, now: float) -> bool:
    """Return whether this replica may write itself into the Lease at `now` [monotonic s]."""
    if lease is None:
        return True
    holder = lease.get("spec", {}).get("holderIdentity")
    if not holder or holder == identity:
        return True
    assert observed is not None
    lasts_s: float = lease["spec"].get("leaseDurationSeconds", LEASE_S)
    return now - observed.at > lasts_s


def taken(lease: Manifest | None, namespace: str, name: str, identity: str, wall: float) -> Manifest:
    """Return the Lease with this replica as its holder at `wall` [unix s]."""
    spec = lease.get("spec", {}) if lease else {}
    now = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    is_new = spec.get("holderIdentity") != identity
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": lease["metadata"] if lease else {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": LEASE_S,
            "acquireTime": now if is_new else spec["acquireTime"],
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (1 if is_new and lease else 0),
        },
    }


class Election:
    """This replica's part in the election."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._observed: Observed | None = None
        self._renewed_at = 0.0

    async def acquire(self) -> None:
        """Return when this replica holds the Lease."""
        while not await self.take_or_renew():
            await asyncio.sleep(RETRY_S)
        log.info("action=lead identity=%s", self._identity)

    async def hold(self) -> None:
        """Renew the Lease; return when it is lost."""
        while self._clock() - self._renewed_at < RENEW_DEADLINE_S:
            await asyncio.sleep(RETRY_S)
            await self.take_or_renew()
        log.error("action=lose identity=%s reason=NotRenewed", self._identity)

    async def take_or_renew(self) -> bool:
        """Take or renew the Lease if that is possible now; return whether this replica holds it."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                lease = await self._cluster.read_lease(self._namespace, self._name)
                version = lease["metadata"]["resourceVersion"] if lease else ""
                if self._observed is None or self._observed.version != version:
                    self._observed = Observed(version, asked_at)
                if not may_take(lease, self._observed, self._identity, asked_at):
                    return False
                wanted = taken(lease, self._namespace, self._name, self._identity, time.time())
                await self._cluster.write_lease(wanted)
        except (ClusterError, TimeoutError) as error:
            log.info("action=renew failed, will try again: %s", error)
            return False
        # The time before the request: the server may have written the Lease that early.
        self._renewed_at = asked_at
        return True

    async def release(self) -> None:
        """Release the Lease so that another replica can take it at once. If that fails, it can after LEASE_S."""
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                while not await self._is_released():
                    log.info("action=release outcome=conflict: the last renewal came in between")
        except (ClusterError, TimeoutError) as error:
            log.warning("action=release failed, others can take the Lease after %d s: %s", LEASE_S, error)

    async def _is_released(self) -> bool:
        lease = await self._cluster.read_lease(self._namespace, self._name)
        if lease and lease["spec"].get("holderIdentity") == self._identity:
            try:
                await self._cluster.write_lease({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
            except ConflictError:
                return False
        return True

    def guard(self, die: Callable[[int], None] = os._exit) -> None:
        """End the process when the Lease is not renewed in time, even if the event loop hangs."""
        threading.Thread(target=self._watch, args=(die,), name="lease-guard", daemon=True).start()

    def _watch(self, die: Callable[[int], None]) -> None:
        while self._clock() - self._renewed_at < RENEW_DEADLINE_S + RETRY_S:
            time.sleep(RETRY_S / 4)
        die(LOST)
