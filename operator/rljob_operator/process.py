"""The operator's process: what it is made of, and in which order it starts and ends.

probes ─► Lease ─► lists fill the cache ─► watches, workers, resync ─► SIGTERM: workers end, Lease is released
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Awaitable
from dataclasses import dataclass

import aiohttp
import kopf

from rljob_operator import handlers, logs
from rljob_operator.cache import Cache, Key, Seen, key_of
from rljob_operator.cluster import CHILDREN, Cluster, ClusterError, ConflictError
from rljob_operator.driver_api import DriverUnreachableError
from rljob_operator.drivers import Drivers, News
from rljob_operator.identity import KIND, Manifest
from rljob_operator.leader import LOST, Election
from rljob_operator.metrics import Metrics
from rljob_operator.probes import Probes
from rljob_operator.pulse import Pulse
from rljob_operator.reconcile import Reconciler
from rljob_operator.settings import Settings
from rljob_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

RESYNC_S = 300.0
"""between two lists that check what the watches have shown [s]"""
STOP_S = 10.0
"""time for reconciles under way to end [s]"""
NEVER = 10**9


@dataclass(frozen=True)
class Operator:
    """The parts, joined."""

    settings: Settings
    cluster: Cluster
    cache: Cache
    queue: WorkQueue
    pulse: Pulse
    drivers: Drivers
    metrics: Metrics
    reconciler: Reconciler

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        """Take in an event of a watch, and look at its job if it tells something new: most are echoes of our writes."""
        self.pulse.heard(raw, is_gone)
        if is_gone:
            self.cache.remove(raw)
        if is_gone or self.cache.put(raw) is Seen.NEWS:
            self.queue.add(key_of(raw))

    async def work(self) -> None:
        """Look at one job after the other, for ever."""
        while True:
            key = await self.queue.get()
            logs.job.set(key)
            with self.metrics.reconcile_seconds.time():
                await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
        try:
            again_s = await self.reconciler.reconcile(key)
        except ConflictError as error:
            # The job has changed since it was read; the event that says so is on its way.
            log.info("action=reconcile outcome=conflict will try again: %s", error)
            self._failed(key, error)
        except (ClusterError, DriverUnreachableError) as error:
            log.warning("action=reconcile outcome=failed will try again: %s", error)
            self._failed(key, error)
        except Exception as error:  # the top of one job's work: its fault must not stop the other jobs
            log.exception("action=reconcile outcome=failed will try again")
            self._failed(key, error)
        else:
            self.queue.done(key, again_s)

    def _failed(self, key: Key, error: Exception) -> None:
        self.metrics.reconcile_errors.labels(type(error).__name__).inc()
        self.queue.failed(key)

    async def resync(self) -> None:
        """List everything, and look at every job. What the watches have missed is found, and their death with it."""
        for kind in (KIND, *CHILDREN):
            there, version = set(), ""
            async for page in self.cluster.pages(kind, self.settings.namespaces):
                version = version or page.resource_version  # of the first namespace: those of the others are newer
                for raw in page.objects:
                    there.add(raw["metadata"]["uid"])
                    if self.cache.put(raw) is not Seen.OLD:
                        self.pulse.expect(raw)
            for key in self.cache.remove_missing(kind, there, version):
                self.queue.add(key)
        for key in self.cache.jobs():
            self.queue.add(key)

    async def resync_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.resync()
            except ClusterError as error:
                log.warning("action=resync failed, will try again: %s", error)
            gc.collect()


def collect_young_garbage_only() -> None:
    """Leave what has become old to an explicit `gc.collect`: it is the cache, which has no cycles, and to walk through
    that of a thousand jobs stops all work for 0.4 s, every few seconds while statuses change.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


def joined(settings: Settings, cluster: Cluster, session: aiohttp.ClientSession) -> Operator:
    """Return an operator whose parts know each other."""
    cache, queue, pulse = Cache(), WorkQueue(time.monotonic), Pulse(time.monotonic)

    def changed(key: Key, news: News) -> None:
        queue.add(key, reconciler.progress_due_s(key) if news is News.PROGRESS else 0.0)

    drivers = Drivers(session, settings.resolve, time.time, changed)
    metrics = Metrics(cache, queue, pulse, cluster.requests)
    reconciler = Reconciler(cluster, cache, drivers, pulse, metrics, settings.defaults, time.time)
    return Operator(settings, cluster, cache, queue, pulse, drivers, metrics, reconciler)


async def run(settings: Settings, cluster: Cluster, session: aiohttp.ClientSession) -> int:
    """Run until SIGTERM, and return the exit code. A lost Lease ends the process at once instead.

    `session` carries the requests to heads and drivers.
    """
    stop = _stop_on_signals()
    operator = joined(settings, cluster, session)
    probes = Probes(lambda: operator.pulse.is_alive, operator.metrics.text)
    port = await probes.start("0.0.0.0", settings.port)
    log.info("action=serve port=%d", port)
    try:
        election = Election(cluster, settings.lease_namespace, settings.lease, settings.identity)
        if not await _unless(stop, election.acquire()):
            return 0
        operator.metrics.is_leader.set(1)
        election.guard()
        await _lead(operator, election, stop)
        await election.release()
    finally:
        await probes.close()
    log.info("action=end reason=Signal")
    return 0


async def _lead(operator: Operator, election: Election, stop: asyncio.Event) -> None:
    """Act until `stop` is set."""
    collect_young_garbage_only()
    await operator.resync()
    holding = asyncio.create_task(election.hold())
    holding.add_done_callback(lambda task: None if task.cancelled() else os._exit(LOST))
    workers = [asyncio.create_task(operator.work()) for _ in range(operator.settings.workers)]
    workers.append(asyncio.create_task(operator.resync_for_ever()))
    try:
        await kopf.operator(
            registry=handlers.registry(operator.seen, operator.settings.kubeconfig),
            settings=handlers.watching(),
            standalone=True,
            clusterwide=not operator.settings.namespaces,
            namespaces=operator.settings.namespaces,
            stop_flag=stop,
        )
    finally:
        for task in workers:
            task.cancel()
        await asyncio.wait(workers, timeout=STOP_S)
        await operator.drivers.close()
        holding.cancel()


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do the work; return False if `stop` was set first."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    return False


def _stop_on_signals() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
