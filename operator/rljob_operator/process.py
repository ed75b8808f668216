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
from functools import partial
from itertools import chain, repeat

import aiohttp
import kopf

from rljob_api.status import ToolPodOwner
from rljob_operator import handlers, logs
from rljob_operator.background_tasks import TASK_ENDED, BackgroundTasks
from rljob_operator.cache import Cache, Freshness, Key, is_ours, key_of
from rljob_operator.cluster import CHILDREN, OF_AGENT_SANDBOX, OF_KUEUE, Cluster, ClusterError, ConflictError, GoneError
from rljob_operator.driver_news import News
from rljob_operator.drivers import Drivers
from rljob_operator.garbage import collect_young_garbage_only
from rljob_operator.identity import KIND, Manifest
from rljob_operator.keys import Keys
from rljob_operator.leader import LOST, Election
from rljob_operator.metrics import Metrics
from rljob_operator.probes import Probes
from rljob_operator.reconcile import Reconciler
from rljob_operator.reservations import Reservations
from rljob_operator.sender import Order
from rljob_operator.settings import Settings
from rljob_operator.sight import Sight
from rljob_operator.sweeper import Sweeper
from rljob_operator.watch_liveness import WatchLiveness
from rljob_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

FIRST_RESYNC_S = 10.0
"""from the first list to the second: no event reports what was deleted after the list and before its watch began [s]"""
RESYNC_S = 300.0
"""between two later lists, which check the watches [s]"""
OF_OTHERS = (*OF_KUEUE, *OF_AGENT_SANDBOX)
"""kinds of projects without which most jobs run; the operator runs without their CRDs, too"""
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

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is watched and listed."""
        defaults = self.settings.defaults
        of_kueue = OF_KUEUE if defaults.has_kueue else ()
        of_agent_sandbox = OF_AGENT_SANDBOX if defaults.tool_pod_owner is ToolPodOwner.SANDBOX else ()
        return (KIND, *CHILDREN, *of_kueue, *of_agent_sandbox)

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        """Take in an event of a watch, and queue its job if the object has changed: most events echo our own writes."""
        if not is_ours(raw):
            return
        self.watches.arrived(raw, is_gone)
        if is_gone:
            self.cache.remove(raw)
            self.queue.add(key_of(raw))
            return
        match self.cache.put(raw):
            case Freshness.CHANGED:
                self.queue.add(key_of(raw))
            case Freshness.EDITED:
                self.queue.retry(key_of(raw))
            case Freshness.UNCHANGED | Freshness.STALE:
                pass

    async def work(self) -> None:
        """Reconcile one job after the other, until cancelled."""
        while True:
            key = await self.queue.get()
            logs.job.set(key)
            with self.metrics.reconcile_seconds.time():
                await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
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
        """List everything and queue every job. This finds changes that the watches missed, and so dead watches."""
        for kind in self.kinds:
            try:
                await self._list(kind)
            except GoneError as error:
                if kind not in OF_OTHERS:
                    raise
                # Jobs without these objects go on. `helm test` says what to install.
                log.warning("action=list kind=%s outcome=unserved: %s", kind, error)
        for key in self.cache.jobs():
            self.queue.add(key)

    async def _list(self, kind: str) -> None:
        """Take in all objects of a kind, and forget those that are gone."""
        there, version = set(), ""
        async for page in self.cluster.pages(kind, self.settings.namespaces):
            version = version or page.resource_version  # of the first namespace: those of the others are newer
            for raw in filter(is_ours, page.objects):
                there.add(raw["metadata"]["uid"])
                if self.cache.put(raw) is not Freshness.STALE:
                    self.watches.expect(raw)
        gone = self.cache.remove_missing(kind, there, version)
        self.watches.withdraw(gone)
        for key in gone.values():
            self.queue.add(key)

    async def resync_for_ever(self) -> None:
        for pause_s in chain((FIRST_RESYNC_S,), repeat(RESYNC_S)):
            await asyncio.sleep(pause_s)
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


def joined(settings: Settings, cluster: Cluster, session: aiohttp.ClientSession) -> Operator:
    """Return an operator with all its parts connected."""
    cache, queue, watches = Cache(), WorkQueue(time.monotonic), WatchLiveness(time.monotonic)

    def changed(key: Key, news: News) -> None:
        queue.add(key, reconciler.progress_due_s(key) if news is News.PROGRESS else 0.0)

    def answered(order: Order, is_accepted: bool) -> None:
        metrics.count_order(order, is_accepted)

    drivers = Drivers(session, settings.resolve, time.time, changed, answered)
    metrics = Metrics(cache, queue, watches, cluster.requests, settings.defaults.release)
    reservations = None
    if settings.queue is not None:
        sight = Sight(cluster, settings.namespaces, settings.coming)
        reservations = Reservations(cache, sight, settings.queue, metrics, time.time, changed)
    keys = Keys()
    reconciler = Reconciler(cluster, cache, drivers, watches, metrics, settings.defaults, keys, time.time, reservations)
    sweeper = Sweeper(cluster, cache, settings.namespaces, settings.defaults, time.time, keys)
    return Operator(settings, cluster, cache, queue, watches, drivers, metrics, reconciler, sweeper, reservations, keys)


async def run(
    settings: Settings,
    cluster: Cluster,
    session: aiohttp.ClientSession,
    die: Callable[[int], None] = os._exit,
) -> int:
    """Run until SIGTERM, and return the exit code. A lost Lease ends the process at once, by `die`.

    `session` carries the requests to heads and drivers.
    """
    stop = _stop_on_signals()
    operator = joined(settings, cluster, session)
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


async def _watch(operator: Operator, stop: asyncio.Event) -> None:
    """Report changes to the operator until `stop` is set."""
    tasks = await kopf.spawn_tasks(
        registry=handlers.registry(operator.seen, operator.settings.kubeconfig, operator.kinds),
        settings=handlers.watching(),
        standalone=True,
        clusterwide=not operator.settings.namespaces,
        namespaces=operator.settings.namespaces,
        stop_flag=stop,
    )
    # Not kopf.operator: at its end that waits 5 s for all tasks of the process that are younger, as those which follow
    # drivers, and then cancels them.
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


async def lead(
    operator: Operator,
    election: Election,
    stop: asyncio.Event,
    watch: Callable[[Operator, asyncio.Event], Awaitable[None]] = _watch,
    die: Callable[[int], None] = os._exit,
) -> str | None:
    """Reconcile until `stop` is set; return the name of the background task that has set it by its end, if one has.

    `die` is called when the Lease is lost.
    """
    # Before the first list: that of a large cluster takes longer than a Lease which nobody renews.
    holding = asyncio.create_task(election.hold())
    holding.add_done_callback(partial(_end_at_once, die))
    tasks = BackgroundTasks(stop)
    try:
        collect_young_garbage_only()
        await operator.keys.load(operator.cluster, operator.settings.lease_namespace, operator.settings.key_secret)
        await operator.resync()
        for number in range(operator.settings.workers):
            tasks.start(f"worker-{number}", operator.work())
        tasks.start("resync", operator.resync_for_ever())
        tasks.start("sweep", operator.sweep_for_ever())
        if operator.reservations is not None:
            tasks.start("queue", operator.reservations.run())
        await watch(operator, stop)
    finally:
        await tasks.close(STOP_S)
        await operator.drivers.close()
        holding.cancel()
    return tasks.failed


def _end_at_once(die: Callable[[int], None], holding: "asyncio.Task[None]") -> None:
    """End the process, which no longer renews the Lease: another replica may act now."""
    if not holding.cancelled():
        log.critical("action=end reason=TaskEnded task=lease error=%r", holding.exception())
        die(LOST)


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
