"""Keeps the records of run directories, and deletes directories whose time is over. See `retention.py`."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rljob_operator import retention
from rljob_operator.cache import Cache
from rljob_operator.cluster import Cluster, ConflictError
from rljob_operator.identity import KIND, Manifest
from rljob_operator.job_defaults import pull_secrets
from rljob_operator.plan import Target
from rljob_operator.retention import RUN_LABEL, RunRecord, Step
from rljob_operator.world import Defaults, Storage

log = logging.getLogger(__name__)

AT_ONCE = 50
"""jobs that are read before other work gets its turn"""

Place = tuple[str, str]
"""namespace and directory"""


@dataclass(frozen=True, slots=True)
class Runs:
    """What the jobs say about their directories."""

    wanted: dict[Place, RunRecord] = field(default_factory=dict)
    """records that there should be"""
    used: set[Place] = field(default_factory=set)
    kept: set[Place] = field(default_factory=set)
    """of jobs whose directories stay for ever"""


class Sweeper:
    """Looks at all records. Nothing is lost when it fails: the next look reads everything again."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        namespaces: Sequence[str],
        defaults: Defaults,
        clock: Callable[[], float],
    ) -> None:
        """`namespaces` are those that are watched, none: all; `clock` returns unix seconds."""
        self._cluster = cluster
        self._cache = cache
        self._namespaces = namespaces
        self._defaults = defaults
        self._clock = clock

    async def sweep(self) -> None:
        """Write what is missing in the records, and begin or end the deletion of directories. Raises ClusterError."""
        storage, image = self._defaults.storage, self._defaults.image
        if storage is None or image is None:
            return
        runs = await self._runs(storage)
        known = await self._records()
        for key, record in runs.wanted.items():
            before = known.get(key)
            if before is None or before.ttl_s != record.ttl_s:
                await self._write(record)
        for key, record in known.items():
            await self._look(record, key in runs.used, storage, image)
            if key in runs.kept and key not in runs.wanted:
                await self._forget(record)

    async def _runs(self, storage: Storage) -> Runs:
        runs = Runs()
        for number, key in enumerate(self._cache.jobs()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            raw = self._cache.job(key)
            if raw is None:
                continue
            is_ours = raw.get("status", {}).get("release", self._defaults.release) == self._defaults.release
            namespace = raw["metadata"]["namespace"]
            here = {(namespace, each) for each in retention.directories(raw, storage)}
            runs.used.update(here)
            record = retention.record_of_job(raw, self._defaults) if is_ours else None
            if record is not None:
                runs.wanted[namespace, record.directory] = record
            elif is_ours and retention.time_to_live(raw, self._defaults) is None:
                runs.kept.update(here)
        return runs

    async def _records(self) -> Mapping[Place, RunRecord]:
        found: dict[Place, RunRecord] = {}
        async for page in self._cluster.pages("ConfigMap", self._namespaces, RUN_LABEL):
            for raw in page.objects:
                record = retention.record_of(raw)
                if record is not None:
                    found[record.namespace, record.directory] = record
        return found

    async def _look(self, record: RunRecord, is_used: bool, storage: Storage, image: str) -> None:
        match retention.step(record, is_used, self._clock()):
            case Step.UNMARK:
                await self._cluster.delete(Target("Job", record.namespace, record.cleaner))
                await self._write(retention.marked(record, None))
            case Step.MARK:
                if not await self._is_used_now(record, storage):
                    log.info("action=mark directory=%s reason=NoJob ttl_s=%d", record.directory, record.ttl_s)
                    await self._write(retention.marked(record, int(self._clock())))
            case Step.CLEAN:
                await self._clean(record, storage, image)
            case Step.NOTHING:
                pass

    async def _clean(self, record: RunRecord, storage: Storage, image: str) -> None:
        there = await self._cluster.read("Job", record.namespace, record.cleaner)
        if there is not None:
            if retention.is_done(there):
                log.info("action=deleted directory=%s", record.directory)
                await self._forget(record)
            return
        if not retention.is_ours_to_delete(record, storage):
            log.warning("action=keep directory=%s reason=NotInTheVolume", record.directory)
            return
        if await self._is_used_now(record, storage):
            return  # the watch will report the job
        log.info("action=delete directory=%s job=%s/%s", record.directory, record.namespace, record.job)
        cleaner = retention.cleaner(record, storage, image, pull_secrets(self._defaults.settings))
        with suppress(ConflictError):  # it runs already
            await self._cluster.create(cleaner)

    async def _is_used_now(self, record: RunRecord, storage: Storage) -> bool:
        """Return whether a job uses the directory, as the API server says: the cache may be behind it."""
        async for page in self._cluster.pages(KIND, [record.namespace]):
            if any(record.directory in retention.directories(raw, storage) for raw in page.objects):
                return True
        return False

    async def _write(self, record: RunRecord) -> Manifest:
        return await self._cluster.apply(retention.manifest(record), force=True)

    async def _forget(self, record: RunRecord) -> None:
        await self._cluster.delete(Target("ConfigMap", record.namespace, record.name, record.uid))
