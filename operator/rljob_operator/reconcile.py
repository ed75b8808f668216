"""Reconciles a job with its cluster: read the world, plan, carry the plan out."""

import logging
from collections.abc import Callable
from dataclasses import replace

from rljob_operator.cache import Cache, Freshness, Key
from rljob_operator.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.drivers import Drivers
from rljob_operator.identity import Manifest
from rljob_operator.keys import Keys
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Plan, admitted, plan, progress_s
from rljob_operator.pod_events import PodEvents
from rljob_operator.releases import OtherReleases
from rljob_operator.reservations import Reservations
from rljob_operator.tokens import Tokens
from rljob_operator.watch_liveness import WatchLiveness
from rljob_operator.world import Defaults, Job, World, job_of

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles jobs. The queue never hands out the same job twice at a time."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        drivers: Drivers,
        watches: WatchLiveness,
        metrics: Metrics,
        defaults: Defaults,
        keys: Keys,
        clock: Callable[[], float],
        reservations: Reservations | None = None,
    ) -> None:
        """`clock` returns unix seconds. Without reservations no job waits for others."""
        self._reservations = reservations
        self._cluster = cluster
        self._cache = cache
        self._drivers = drivers
        self._watches = watches
        self._metrics = metrics
        self._defaults = defaults
        self._clock = clock
        self._tokens = Tokens(cluster, keys, clock)
        self._progress_due_at: dict[Key, float] = {}
        self._refused: dict[Key, str] = {}
        self._pod_events = PodEvents(cluster, clock)
        self._releases = OtherReleases(cluster, clock)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile a job; return when to do so again at the latest [s].

        Raises ClusterError. Nothing is lost then: the next reconcile reads the world again.
        """
        try:
            return await self._reconcile(key)
        except Exception:  # whatever is wrong with this job, the queue of all others does not wait for it
            if self._reservations is not None:
                self._reservations.skip(key)
            raise

    async def _reconcile(self, key: Key) -> float | None:
        raw = self._cache.job(key)
        if raw is None:
            await self._forget(key)
            return None
        job = job_of(raw)
        world = await self._read_world(job)
        known = admitted(job, world)
        if self._reservations is not None:
            # Nothing is awaited between the decision that is read here and the plan.
            world = replace(world, turn=self._reservations.turn(job, raw, world, known))
        todo = plan(job, world, self._clock(), known)
        if todo.status is not None and todo.status.attempt > job.status.get("attempt", 0):
            self._cache.begins({**raw, "status": todo.status.model_dump(mode="json", by_alias=True, exclude_none=True)})
        self._metrics.waits(key, todo.waiting.blocker if todo.waiting else None)
        await self._carry_out(job, world, todo)
        return todo.requeue_after_s

    def progress_due_s(self, key: Key) -> float:
        """Return how long mere progress of a job can wait, because it was written recently [s]."""
        return max(0.0, self._progress_due_at.get(key, 0.0) - self._clock())

    async def _read_world(self, job: Job) -> World:
        pods, driver = self._cache.pods(job), self._drivers.driver(job.key)
        other = job.is_left_to(self._defaults.release)
        tool_pods, children = self._cache.tool_pods(job), self._cache.children(job)
        return World(
            children=children,
            pods=pods,
            workloads=self._cache.workloads(job),
            tool_pods=tool_pods,
            pod_events=await self._pod_events.of(job.key, job.namespace, (*pods, *tool_pods)),
            driver=driver,
            has_secret=await self._tokens.has_secret(job, children, (*pods, *tool_pods), driver),
            token=self._tokens.token(job),
            secret_key=self._tokens.key_of_secret(job),
            token_key=self._tokens.key,
            defaults=self._defaults,
            refused=self._refused.get(job.key),
            runs=self._cache.runs,
            is_other_release_gone=other is not None and await self._releases.is_gone(other),
            progress_due_at=self._progress_due_at.get(job.key, 0.0),
        )

    async def _carry_out(self, job: Job, world: World, todo: Plan) -> None:
        if todo.status is not None:
            self._keep(await self._cluster.write_status(job, todo.status))
            waiting = self._reservations.waiting if self._reservations is not None else 0
            self._progress_due_at[job.key] = self._clock() + progress_s(self._drivers.followed + waiting)
            self._metrics.count(job.status, todo.status)
        for target in todo.delete:
            log.info("action=delete kind=%s name=%s", target.kind, target.name)
            await self._cluster.delete(target)
            if target.kind == "Secret":
                self._tokens.forget(job.key)
        if todo.secret is not None:
            await self._tokens.create(job, todo.secret)
        for wanted in todo.apply:
            kind, name = wanted["kind"], wanted["metadata"]["name"]
            log.info("action=apply kind=%s name=%s", kind, name)
            await self._apply(job, wanted, force=world.child(kind, name) is not None)
        for event in todo.events:
            log.info("action=event kind=%s reason=%s note=%r", event.action, event.reason, event.note)
            await self._cluster.record(job, event)
        await self._drivers.follow(job.key, todo.follow, self._tokens.token(job))
        self._drivers.give(job.key, todo.orders)

    async def _apply(self, job: Job, wanted: Manifest, force: bool) -> None:
        try:
            self._keep(await self._cluster.apply(wanted, force))
        except ClusterError as error:
            # A conflict passes by itself. The author has to see every other error, also 500, which wrong types cause.
            if error.status and not isinstance(error, ConflictError):
                self._refused[job.key] = str(error)
            raise
        self._refused.pop(job.key, None)

    def _keep(self, raw: Manifest) -> None:
        if self._cache.put(raw) is not Freshness.STALE:
            self._watches.expect(raw)

    async def _forget(self, key: Key) -> None:
        if self._reservations is not None:
            self._reservations.forget(key)
        await self._drivers.follow(key, None, "")
        self._progress_due_at.pop(key, None)
        self._refused.pop(key, None)
        self._tokens.forget(key)
        self._pod_events.forget(key)
        self._metrics.waits(key, None)
