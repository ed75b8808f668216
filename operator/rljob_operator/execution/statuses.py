"""Writes the statuses of jobs, and remembers those that the API server does not take.

    write ─► the whole status ─► refused: what has to survive a restart ─► refused: the least of that ─► remembered here

What is remembered counts as the job's status in this process, so a deadline that has begun continues, and an attempt
that has ended stays ended. Every look tries the whole status again. After a restart the stored status counts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from rljob_api.reading.job_status import dumped, read
from rljob_api.status import Status
from rljob_operator.cache.cache import Key
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.identity import Manifest
from rljob_operator.status.memory import less_of
from rljob_operator.world.world import Job

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""what cannot be undone waits so long for a status that is not stored; a conflict counts as a refusal after it [s]"""
CONTENT = (400, 413, 422)
"""codes with which an API server refuses what a write says; less of it may be accepted"""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A status that is not stored as it should be."""

    uid: str
    """of the job"""
    stored: Manifest
    """the status that is stored; another one means that another client has written it"""
    wanted: Status
    since: float
    """[unix s]"""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a write."""

    stored: Manifest
    """the job as the API server has it now"""
    error: ClusterError | None = None
    """why it does not have the whole status; None: it has"""


class Statuses:
    """The statuses of all jobs."""

    def __init__(self, cluster: Cluster, keep: Callable[[Manifest], None], clock: Callable[[], float]) -> None:
        """`keep` takes a job as it was written; `clock` returns unix seconds."""
        self._cluster = cluster
        self._keep = keep
        self._clock = clock
        self._unwritten: dict[Key, Unwritten] = {}
        self._conflicts: dict[Key, float] = {}
        """by job, since when all writes of its status are conflicts [unix s]"""

    def known(self, key: Key, raw: Manifest) -> Manifest:
        """Return a job with the status that counts here: the stored one, or what it should be."""
        known = self._unwritten.get(key)
        if known is None:
            return raw
        if (known.uid, known.stored) != (raw["metadata"]["uid"], raw.get("status", {})):
            del self._unwritten[key]
            return raw
        return {**raw, "status": dumped(known.wanted)}

    def unwritten_s(self, key: Key) -> float:
        """Return how long a job's status has not been stored as it should be; 0: it is [s]."""
        known = self._unwritten.get(key)
        return self._clock() - known.since if known is not None else 0.0

    async def write(self, job: Job, stored: Manifest, wanted: Status | None) -> Written:
        """Write a status; None: try again what is remembered. `stored` is the job as the API server has it.

        Raises ConflictError if the job has changed since it was read: then nothing that was planned may be done.
        """
        known = self._unwritten.get(job.key)
        wanted = wanted if wanted is not None or known is None else known.wanted
        if wanted is None:
            return Written(stored)
        job = replace(job, given_status=stored.get("status", {}))
        try:
            written = await self._cluster.write_status(job, wanted)
        except ClusterError as error:
            if isinstance(error, ConflictError) and not self._is_stuck(job.key):
                raise
            since = known.since if known is not None else self._clock()
            left = await self._write_less(job, stored, wanted) if error.status in CONTENT else stored
            self._unwritten[job.key] = Unwritten(job.uid, left.get("status", {}), wanted, since)
            return Written(left, error)
        self.forget(job.key)
        self._keep(written)
        return Written(written)

    def forget(self, key: Key) -> None:
        """Forget what is remembered of a job."""
        self._unwritten.pop(key, None)
        self._conflicts.pop(key, None)

    async def _write_less(self, job: Job, stored: Manifest, wanted: Status) -> Manifest:
        """Write as much of a refused status as the API server takes; return the job as it is stored then."""
        for less in less_of(read(stored.get("status")), wanted):
            if dumped(less) == stored.get("status", {}):
                return stored
            try:
                written = await self._cluster.write_status(job, less)
            except ClusterError as error:
                log.warning("action=write-status outcome=refused too: %s", error)
                continue
            self._keep(written)
            return written
        return stored

    def _is_stuck(self, key: Key) -> bool:
        """Return whether writes of a job's status have conflicted for long: another client keeps changing it."""
        return self._clock() - self._conflicts.setdefault(key, self._clock()) >= PATIENCE_S
