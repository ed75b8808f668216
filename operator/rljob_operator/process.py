"""The operator's process: its parts, and the order in which they start and stop.

probes ─► Lease ─► lists fill the cache ─► watches, workers, resync ─► SIGTERM: workers end, Lease is released
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import aiohttp

from rljob_api.status import ToolPodOwner
from rljob_operator.cache.cache import Cache, Key
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import (
    CHILDREN,
    OF_AGENT_SANDBOX,
    OF_KUEUE,
    Cluster,
    ClusterError,
    ConflictError,
    GoneError,
)
from rljob_operator.cluster.reflector import uid_of
from rljob_operator.diagnoses import Diagnoses
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.drivers.sender import Order
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import KIND, Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile import Reconciler
from rljob_operator.reservations import Reservations
from rljob_operator.runtime import logs
from rljob_operator.runtime.background_tasks import TASK_ENDED, BackgroundTasks
from rljob_operator.runtime.garbage import collect_young_garbage_only
from rljob_operator.runtime.leader import LOST, Election
from rljob_operator.runtime.probes import Probes
from rljob_operator.settings import Settings
from rljob_operator.sweeper import Sweeper
from rljob_operator.watches.capacity_reader import CapacityReader
from rljob_operator.watches.watching import FORBIDDEN, OF_OTHERS, Inbox, Place, follow, places
from rljob_operator.world.driver_news import News

log = logging.getLogger(__name__)

RESYNC_S = 300.0
"""between two lists of everything, which check the watches [s]"""
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
"""pause after the first request at the start that failed, and the longest [s]"""
STOP_S = 10.0
"""time for running reconciles to finish [s]"""


@dataclass(frozen=True)
class Operator:
    """The parts, joined."""

    settings: Settings
    cluster: Cluster
    cache: Cache
    queue: WorkQueue
    watches: WatchLiveness
    drivers: Drivers
    metrics: Metrics
    reconciler: Reconciler
    sweeper: Sweeper
    reservations: Reservations | None = None
    """None: jobs do not wait for others"""
    keys: Keys = field(default_factory=Keys)
    diagnoses: Diagnoses | None = None
    """None: planning reads evidence itself"""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is watched and listed."""
        defaults = self.settings.defaults
        of_kueue = OF_KUEUE if defaults.has_kueue else ()
        of_agent_sandbox = OF_AGENT_SANDBOX if defaults.tool_pod_owner is ToolPodOwner.SANDBOX else ()
        return (KIND, *CHILDREN, *of_kueue, *of_agent_sandbox)

    @cached_property
    def inbox(self) -> Inbox:
        """What takes in objects."""
        return Inbox(self.cache, self.queue, self.watches, lambda: self.metrics.unreadable.inc())

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        """Take in an event of a watch, and queue its job if the object has changed."""
        self.inbox.take(raw, is_gone, str(raw.get("kind", "")))

    async def work(self) -> None:
        """Reconcile one job after the other, until cancelled."""
        while True:
            key = await self.queue.get()
            logs.job.set(key)
            with self.metrics.reconcile_seconds.time():
                await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
        if not self.inbox.is_known(key.partition("/")[0]):
            if self.reservations is not None:
                self.reservations.skip(key)
            self.queue.done(key, None)  # a list queues it again
            return
        try:
            again_s = await self.reconciler.reconcile(key)
        except ConflictError as error:
            # The job has changed since it was read; the watch will report it.
            log.info("action=reconcile outcome=conflict will try again: %s", error)
            self._failed(key, error)
        except ClusterError as error:
            log.warning("action=reconcile outcome=failed will try again: %s", error)
            self._failed(key, error)
        except Exception as error:  # the top of one job's work: its failure must not stop the other jobs
            log.exception("action=reconcile outcome=failed will try again")
            self._failed(key, error)
        else:
            self.queue.done(key, again_s)

    def _failed(self, key: Key, error: Exception) -> None:
        self.metrics.reconcile_errors.labels(type(error).__name__).inc()
        self.queue.failed(key)

    async def resync(self) -> None:
        """List everything and queue every job. This finds changes that the watches missed, and so dead watches.

        The other places are listed even if one cannot be. Raises ClusterError after that, unless
        the right to read one of several namespaces was removed, which is how the chart leaves one that is
        deleted, or the kind is of a project that is not installed.
        """
        failed: list[ClusterError] = []
        for place in places(self.kinds, self.settings.namespaces):
            try:
                await self._list(place)
            except ClusterError as error:
                self.inbox.failed(place, error)
                if isinstance(error, GoneError) and place.kind in OF_OTHERS:
                    # Jobs without these objects go on. `helm test` says what to install.
                    log.warning("action=list kind=%s outcome=unserved: %s", place.kind, error)
                elif error.status == FORBIDDEN and place.namespace is not None:
                    log.warning("action=list kind=%s outcome=refused: %s", place.kind, error)
                else:
                    failed.append(error)
        for key in self.cache.jobs():
            self.queue.add(key)
        if failed:
            raise failed[0]

    async def _list(self, place: Place) -> None:
        """Take in all objects of a place, and forget those that are gone."""
        there, version = set(), ""
        everywhere = [place.namespace] if place.namespace is not None else ()
        async for page in self.cluster.pages(place.kind, everywhere):
            version = version or page.resource_version
            for raw in page.objects:
                there.add(uid_of(raw))
                self.inbox.lists(raw, place.kind)
        self.inbox.listed(place, there, version)

    async def resync_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                with self.metrics.resync_seconds.time():
                    await self.resync()
            except ClusterError as error:
                log.warning("action=resync failed, will try again: %s", error)
            gc.collect()

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            try:
                await self.sweeper.sweep()
            except ClusterError as error:
                log.warning("action=sweep failed, will try again: %s", error)


def joined(settings: Settings, cluster: Cluster, session: aiohttp.ClientSession, cache: Cache) -> Operator:
    """Return an operator with all its parts connected."""
    queue, watches = WorkQueue(time.monotonic), WatchLiveness(time.monotonic)

    def changed(key: Key, news: News) -> None:
        queue.add(key, reconciler.progress_due_s(key) if news is News.PROGRESS else 0.0)

    def answered(order: Order, is_accepted: bool) -> None:
        metrics.count_order(order, is_accepted)

    drivers = Drivers(session, settings.resolve, cluster.clock, changed, answered)
    metrics = Metrics(cache, queue, watches, cluster.requests, settings.defaults.release)
    reservations = None
    if settings.queue is not None:
        reader = CapacityReader(cluster, settings.namespaces, settings.coming)
        reservations = Reservations(cache, reader, settings.queue, metrics, cluster.clock, changed)
    keys = Keys()
    diagnoses = Diagnoses(queue.add)
    reconciler = Reconciler(
        cluster, cache, drivers, watches, metrics, settings.defaults, keys, cluster.clock, reservations, diagnoses
    )
    sweeper = Sweeper(cluster, cache, settings.namespaces, settings.defaults, cluster.clock, keys)
    return Operator(
        settings, cluster, cache, queue, watches, drivers, metrics, reconciler, sweeper, reservations, keys, diagnoses
    )


async def run(
    settings: Settings,
    cluster: Cluster,
    session: aiohttp.ClientSession,
    die: Callable[[int], None] = os._exit,
    cache: Cache | None = None,
) -> int:
    """Run until SIGTERM, and return the exit code. A lost Lease ends the process at once, by `die`.

    `session` carries the requests to heads and drivers. `cache` is filled; None: no other part reads it.
    """
    stop = _stop_on_signals()
    operator = joined(settings, cluster, session, cache or Cache())
    probes = Probes(lambda: operator.watches.is_alive, operator.metrics.text)
    port = await probes.start("0.0.0.0", settings.port)
    log.info("action=serve port=%d", port)
    try:
        election = Election(cluster, settings.lease_namespace, settings.lease, settings.identity)
        if not await _unless(stop, election.acquire()):
            return 0
        operator.metrics.is_leader.set(1)
        election.guard(die)
        failed = await lead(operator, election, stop, die=die)
        await election.release()
    finally:
        await probes.close()
    if failed is not None:
        return TASK_ENDED
    log.info("action=end reason=Signal")
    return 0


async def _watch(operator: Operator, stop: asyncio.Event) -> str | None:
    """Follow what is watched until `stop` is set; return the name of the task that has set it by its end, if any."""
    tasks = BackgroundTasks(stop)
    try:
        wanted = places(operator.kinds, operator.settings.namespaces)
        for followed in follow(operator.cluster, operator.inbox, wanted, time.monotonic):
            tasks.start("watch", followed.follow())
        await stop.wait()
    finally:
        await tasks.close(STOP_S)
    return tasks.failed


async def lead(
    operator: Operator,
    election: Election,
    stop: asyncio.Event,
    watch: Callable[[Operator, asyncio.Event], Awaitable[str | None]] = _watch,
    die: Callable[[int], None] = os._exit,
) -> str | None:
    """Reconcile until `stop` is set; return the name of the background task that has set it by its end, if one has.

    `die` is called when the Lease is lost.
    """
    # Before the first list: that of a large cluster takes longer than a Lease lasts without a renewal.
    holding = asyncio.create_task(election.hold())
    holding.add_done_callback(partial(_end_at_once, die))
    tasks = BackgroundTasks(stop)
    try:
        collect_young_garbage_only()
        settings = operator.settings
        load = partial(operator.keys.load, operator.cluster, settings.lease_namespace, settings.key_secret)
        if not (await _patiently(stop, "load", load) and await _patiently(stop, "list", operator.resync)):
            return tasks.failed
        for number in range(operator.settings.workers):
            tasks.start(f"worker-{number}", operator.work())
        tasks.start("loop-lag", operator.metrics.loop_lag.watch())
        tasks.start("resync", operator.resync_for_ever())
        tasks.start("sweep", operator.sweep_for_ever())
        if operator.reservations is not None:
            tasks.start("queue", operator.reservations.run())
        failed = await watch(operator, stop)
    finally:
        await tasks.close(STOP_S)
        await operator.drivers.close()
        if operator.diagnoses is not None:
            await operator.diagnoses.close()
        holding.cancel()
    return tasks.failed or failed


def _end_at_once(die: Callable[[int], None], holding: "asyncio.Task[None]") -> None:
    """End the process, which no longer renews the Lease: another replica may act now."""
    if not holding.cancelled():
        log.critical("action=end reason=TaskEnded task=lease error=%r", holding.exception())
        die(LOST)


async def _patiently(stop: asyncio.Event, action: str, work: Callable[[], Awaitable[None]]) -> bool:
    """Do the work, again and again until the API server lets it succeed; return False if `stop` was set first.

    A process that ends instead begins later: the kubelet waits for up to 5 min before it starts it again.
    """
    pause_s = FIRST_RETRY_S
    while not stop.is_set():
        try:
            if await _unless(stop, work()):
                return True
        except ClusterError as error:
            log.warning("action=%s outcome=failed will try again in %.0f s: %s", action, pause_s, error)
            await _unless(stop, asyncio.sleep(pause_s))
            pause_s = min(LONGEST_RETRY_S, pause_s * 2)
    return False


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
