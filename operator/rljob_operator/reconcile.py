"""Reconciles a job with its cluster: read the world, plan, carry the plan out.

read ─► plan ─┬──────────────────────────► execution
              └─ raises ─► fallback_plan ─►
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from rljob_api.foreign_text import said
from rljob_api.reading.job_status import dumped
from rljob_operator.cache.cache import Cache, Key, key_of
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.diagnoses import Diagnoses
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.execution import Execution
from rljob_operator.execution.keys import Keys
from rljob_operator.execution.releases import OtherReleases
from rljob_operator.execution.tokens import Tokens
from rljob_operator.fallback import Ending, ending_of, fallback_plan
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Plan, admitted, plan, progress_s
from rljob_operator.reservations import Reservations
from rljob_operator.watches.pod_events import PodEvents
from rljob_operator.world.world import ControlToken, Defaults, Job, Observed, World, bare_job, job_of

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
        diagnoses: Diagnoses | None = None,
    ) -> None:
        """`clock` returns unix seconds. Without reservations no job waits for others; without `diagnoses`, the loop
        waits while evidence of failures is read."""
        self._diagnoses = diagnoses
        self._reservations = reservations
        self._cluster = cluster
        self._cache = cache
        self._drivers = drivers
        self._watches = watches
        self._metrics = metrics
        self._defaults = defaults
        self._clock = clock
        self._tokens = Tokens(cluster, keys, clock)
        self._execution = Execution(cluster, cache, drivers, watches, metrics, self._tokens, clock)
        self._endings: dict[Key, Ending] = {}
        self._pod_events = PodEvents(cluster, clock)
        self._releases = OtherReleases(cluster, clock)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile a job; return when to do so again at the latest [s].

        Raises ClusterError. Nothing is lost then: the next reconcile reads the world again.
        """
        try:
            return await self._reconcile(key)
        except Exception:  # any error of this job: the others must not wait for it
            if self._reservations is not None:
                self._reservations.skip(key)
            raise

    async def _reconcile(self, key: Key) -> float | None:
        stored = self._cache.job(key)
        if stored is None:
            await self._forget(key)
            return None
        raw = self._execution.statuses.known(key, stored)
        try:
            job = job_of(raw)
            world, unread = await self._read_world(job)
            todo = self._planned(job, raw, world)
        except Exception as error:  # any error: the job's pods are not held for ever because of it
            await self._do_the_least(raw, stored, error)
            raise
        self._endings.pop(key, None)
        if todo.diagnose is not None and self._diagnoses is not None:
            self._diagnoses.ask(key, todo.attempt, todo.diagnose)
            return None  # the diagnosis calls for another reconcile, soon
        if todo.status is not None and todo.status.attempt > job.status.get("attempt", 0):
            self._cache.begins({**raw, "status": dumped(todo.status)})
        self._metrics.waits(key, todo.waiting.blocker if todo.waiting else None)
        await self._execution.carry_out(job, stored, world.observed, todo)
        if unread is not None:
            raise unread
        return todo.requeue_after_s

    def _planned(self, job: Job, raw: Manifest, world: World) -> Plan:
        """Return the plan; raise what planning raises."""
        known = admitted(job, world)
        if self._reservations is not None:
            # Nothing is awaited between the decision that is read here and the plan.
            world = replace(world, queue_decision=self._reservations.decision(job, raw, world, known))
        nodes = self._reservations.nodes if self._reservations is not None else None
        todo = plan(job, world, self._clock(), known, nodes)
        if todo.left_out is not None:
            log.warning("action=plan outcome=failed the driver's report is left out: %s", todo.left_out)
        return todo

    async def _do_the_least(self, raw: Manifest, stored: Manifest, error: Exception) -> None:
        """Do what a job relies on that cannot be planned."""
        job, key, now = bare_job(raw), key_of(raw), self._clock()
        if job.is_deleting or not job.is_ours or job.is_left_to(self._defaults.release) is not None:
            return
        observed = Observed(
            children=self._cache.children(job), pods=self._cache.pods(job), driver=self._drivers.driver(key)
        )
        decision = self._reservations.known_decision(key) if self._reservations is not None else None
        ending = ending_of(raw, observed.driver, decision, self._endings.get(key), now)
        if ending is None:
            self._endings.pop(key, None)
        else:
            self._endings[key] = ending
        todo = fallback_plan(raw, observed, ending, said(error), now)
        try:
            await self._execution.carry_out(job, stored, observed, todo)
        except ClusterError as refused:
            log.warning("action=fall-back outcome=failed will try again: %s", refused)

    def progress_due_s(self, key: Key) -> float:
        """Return how long mere progress of a job can wait, because it was written recently [s]."""
        return max(0.0, self._progress_due_at(key) - self._clock())

    def _progress_due_at(self, key: Key) -> float:
        waiting = self._reservations.waiting if self._reservations is not None else 0
        pace_s = progress_s(self._drivers.followed + waiting)
        written_at = self._execution.pace(key).written_at
        return written_at + pace_s if written_at else 0.0

    async def _read_world(self, job: Job) -> tuple[World, ClusterError | None]:
        """Return the world, and what could not be read: nothing then waits for it."""
        pods, driver = self._cache.pods(job), self._drivers.driver(job.key)
        other = job.is_left_to(self._defaults.release)
        tool_pods, children = self._cache.tool_pods(job), self._cache.children(job)
        has_secret, unread = True, None
        try:
            has_secret = await self._tokens.has_secret(job, children, (*pods, *tool_pods), driver)
        except ClusterError as error:
            unread = error
        observed = Observed(
            children=children,
            pods=pods,
            gone_pods=self._cache.gone_pods(job),
            workloads=self._cache.workloads(job),
            tool_pods=tool_pods,
            pod_events=await self._pod_events.of(job.key, job.namespace, (*pods, *tool_pods)),
            driver=driver,
            refused=self._execution.refused(job.key),
            is_token_sure=self._tokens.is_sure(job),
            diagnosed=self._diagnoses.found(job.key) if self._diagnoses is not None else None,
            runs=self._cache.runs,
            is_other_release_gone=other is not None and await self._releases.is_gone(other),
        )
        token = ControlToken(
            self._tokens.token(job), self._tokens.key_of_secret(job), self._tokens.key, has_secret=has_secret
        )
        pace = replace(self._execution.pace(job.key), progress_due_at=self._progress_due_at(job.key))
        return World(observed, token, self._defaults, pace=pace), unread

    async def _forget(self, key: Key) -> None:
        if self._reservations is not None:
            self._reservations.forget(key)
        await self._drivers.follow(key, None, "")
        if self._diagnoses is not None:
            self._diagnoses.forget(key)
        self._execution.forget(key)
        self._endings.pop(key, None)
        self._tokens.forget(key)
        self._pod_events.forget(key)
        self._metrics.waits(key, None)
