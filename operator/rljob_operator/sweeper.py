"""Keeps the records of run directories, and deletes directories whose time is over. See `job/retention.py`.

What the API server refuses costs its record, and what cannot be read costs its namespace: the directories of all others
are still looked at.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rljob_api.foreign_text import said
from rljob_operator.cache.cache import Cache
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import KIND, Manifest
from rljob_operator.job import retention
from rljob_operator.job.job_defaults import pull_secrets
from rljob_operator.job.retention import RUN_LABEL, SEAL, RunRecord, Step
from rljob_operator.plan import Target
from rljob_operator.world.run_claims import Places
from rljob_operator.world.world import Defaults, Storage

log = logging.getLogger(__name__)

AT_ONCE = 50
"""jobs that are read before other tasks may run"""
NO_RESPONSE = 0
"""status of an error without an answer of the API server: the next object would get none either"""

OF_THIS_PROCESS = Keys.of_this_process()
"""No other process trusts the records of one with these keys, nor does it trust theirs."""

Directory = tuple[str, str]
"""namespace, and path in the pods"""


@dataclass(slots=True)
class Runs:
    """What the jobs say about their directories."""

    wanted: dict[Directory, RunRecord] = field(default_factory=dict)
    """records that there should be"""
    used: Places = field(default_factory=Places)
    kept: Places = field(default_factory=Places)
    """of jobs whose directories stay for ever"""
    unreadable: set[str] = field(default_factory=set)
    """namespaces with a job of which the directories are not known: none of them is deleted"""


class Sweeper:
    """Looks at all records. Nothing is lost when it fails: the next look reads everything again."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        namespaces: Sequence[str],
        defaults: Defaults,
        clock: Callable[[], float],
        keys: Keys = OF_THIS_PROCESS,
    ) -> None:
        """`namespaces` are those that are watched, none: all; `clock` returns unix seconds; `keys` seal the records."""
        self._cluster = cluster
        self._cache = cache
        self._namespaces = namespaces
        self._defaults = defaults
        self._clock = clock
        self._keys = keys
        self._not_sealed = 0
        """records that counted for nothing at the last look"""

    async def sweep(self) -> None:
        """Write what is missing in the records, and begin or end the deletion of directories.

        Raises ClusterError if the API server does not answer, or does not list the records.
        """
        storage, image = self._defaults.storage, self._defaults.image
        if storage is None or image is None:
            return
        runs = await self._runs(storage)
        known = await self._records()
        refused: Counter[str] = Counter()
        for key, record in runs.wanted.items():
            before = known.get(key)
            if before is None or before.ttl_s != record.ttl_s:
                await self._try(record, self._write(record), refused)
        recorded = Places()
        for record in known.values():
            recorded.add(record.place)
        for key, record in known.items():
            if record.namespace in runs.unreadable:
                continue
            place = record.place
            # A directory inside of it that has a record, too, goes first: it may have more time.
            is_used = runs.used.overlap(place) or recorded.has_inside(place)
            await self._try(record, self._look(record, is_used, storage, image), refused)
            if runs.kept.overlap(place) and key not in runs.wanted:
                await self._try(record, self._forget(record), refused)
        for namespace, count in refused.items():
            log.warning("action=sweep namespace=%s outcome=refused records=%d, will try again", namespace, count)

    async def _try(self, record: RunRecord, work: Awaitable[object], refused: Counter[str]) -> None:
        """Do something about a record. If the API server refuses it, the other records go on."""
        try:
            await work
        except ClusterError as error:
            if error.status == NO_RESPONSE:
                raise
            if not refused[record.namespace]:
                log.warning("action=sweep directory=%r outcome=refused: %s", record.directory, said(error))
            refused[record.namespace] += 1

    async def _runs(self, storage: Storage) -> Runs:
        runs = Runs()
        for number, key in enumerate(self._cache.jobs()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            raw = self._cache.job(key)
            if raw is None:
                continue
            try:
                self._note(runs, raw, storage)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                namespace = raw["metadata"]["namespace"]
                if namespace not in runs.unreadable:
                    log.warning("action=sweep job=%s outcome=unreadable: %s", key, said(error))
                runs.unreadable.add(namespace)
        return runs

    def _note(self, runs: Runs, raw: Manifest, storage: Storage) -> None:
        """Add what a job says about its directories."""
        is_ours = raw.get("status", {}).get("release", self._defaults.release) == self._defaults.release
        here = retention.used_places(raw, storage)
        for place in here:
            runs.used.add(place)
        record = retention.record_of_job(raw, self._defaults) if is_ours else None
        if record is not None:
            runs.wanted[record.namespace, record.directory] = record
        elif is_ours and retention.time_to_live(raw, self._defaults) is None:
            for place in here:
                runs.kept.add(place)

    async def _records(self) -> Mapping[Directory, RunRecord]:
        """Return the records that an operator with one of our keys has written."""
        found: dict[Directory, RunRecord] = {}
        others = []
        async for page in self._cluster.pages("ConfigMap", self._namespaces, RUN_LABEL):
            for raw in page.objects:
                record = retention.record_of(raw)
                if record is not None and self._keys.has_sealed(record.sealed_text, str(raw["data"].get(SEAL))):
                    found[record.namespace, record.directory] = record
                else:
                    others.append(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}")
        if others and len(others) != self._not_sealed:
            said_of = "action=sweep kind=ConfigMap outcome=ignored reason=NotSealed records=%d first=%s"
            log.warning(f"{said_of}: nothing is deleted for them", len(others), others[0])
        self._not_sealed = len(others)
        return found

    async def _look(self, record: RunRecord, is_used: bool, storage: Storage, image: str) -> None:
        match retention.step(record, is_used, self._clock()):
            case Step.UNMARK:
                await self._cluster.delete(Target("Job", record.namespace, record.cleaner))
                await self._write(retention.marked(record, None))
            case Step.MARK:
                if not await self._is_used_now(record, storage):
                    log.info("action=mark directory=%r reason=NoJob ttl_s=%d", record.directory, record.ttl_s)
                    await self._write(retention.marked(record, int(self._clock())))
            case Step.CLEAN:
                await self._clean(record, storage, image)
            case Step.NOTHING:
                pass

    async def _clean(self, record: RunRecord, storage: Storage, image: str) -> None:
        there = await self._cluster.read("Job", record.namespace, record.cleaner)
        if there is not None:
            if retention.is_done(there):
                log.info("action=deleted directory=%r", record.directory)
                await self._forget(record)
            return
        if not retention.is_ours_to_delete(record, storage):
            log.warning("action=keep directory=%r reason=NotInTheVolume", record.directory)
            return
        if await self._is_used_now(record, storage):
            return  # the watch will report the job
        log.info("action=delete directory=%r job=%s/%s", record.directory, record.namespace, record.job)
        cleaner = retention.cleaner(record, storage, image, pull_secrets(self._defaults.settings))
        with suppress(ConflictError):  # it runs already
            await self._cluster.create(cleaner)

    async def _is_used_now(self, record: RunRecord, storage: Storage) -> bool:
        """Return whether a job uses the directory, as the API server says: the cache may be behind it."""
        used, place = Places(), record.place
        async for page in self._cluster.pages(KIND, [record.namespace]):
            for raw in page.objects:
                for each in retention.used_places(raw, storage):
                    used.add(each)
        return used.overlap(place)

    async def _write(self, record: RunRecord) -> Manifest:
        wanted = retention.manifest(record)
        sealed = {**wanted["data"], SEAL: self._keys.seal(record.sealed_text)}
        return await self._cluster.apply({**wanted, "data": sealed}, force=True)

    async def _forget(self, record: RunRecord) -> None:
        await self._cluster.delete(Target("ConfigMap", record.namespace, record.name, record.uid))
