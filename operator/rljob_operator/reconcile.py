"""Makes a job and its cluster the same: read the world, plan, carry the plan out."""

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from rljob_operator import desired
from rljob_operator.cache import Cache, Key, Seen
from rljob_operator.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.desired import TOKEN_KEY
from rljob_operator.drivers import Drivers
from rljob_operator.identity import Manifest, job_name
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Plan, plan, progress_s
from rljob_operator.pulse import Pulse
from rljob_operator.world import Defaults, Job, World, job_of

log = logging.getLogger(__name__)


class Reconciler:
    """Looks at one job at a time and does what is due; asked by the queue, which asks for a job once at a time."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        drivers: Drivers,
        pulse: Pulse,
        metrics: Metrics,
        defaults: Defaults,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._cache = cache
        self._drivers = drivers
        self._pulse = pulse
        self._metrics = metrics
        self._defaults = defaults
        self._clock = clock
        self._tokens: dict[Key, tuple[str, str]] = {}
        self._progress_due_at: dict[Key, float] = {}
        self._refused: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Do what is due for a job; return when to look again at the latest [s]. Raises ClusterError and
        DriverUnreachableError; nothing is lost then, for the next look begins with the world as it is.
        """
        raw = self._cache.job(key)
        if raw is None:
            await self._forget(key)
            return None
        job = job_of(raw)
        world = await self._read_world(job)
        todo = plan(job, world, self._clock())
        await self._carry_out(job, world, todo)
        return todo.requeue_after_s

    def progress_due_s(self, key: Key) -> float:
        """Return how long mere progress of a job need not be looked at: it was told lately [s]."""
        return max(0.0, self._progress_due_at.get(key, 0.0) - self._clock())

    async def _read_world(self, job: Job) -> World:
        return World(
            children=self._cache.children(job),
            pods=self._cache.pods(job),
            driver=self._drivers.driver(job.key),
            # Before its first attempt a job has none; what an earlier look may have left is found when it is made.
            has_secret=bool(job.status.get("attempts")) and await self._token(job) is not None,
            fresh_token=secrets.token_urlsafe(32),
            defaults=self._defaults,
            refused=self._refused.get(job.key),
            progress_due_at=self._progress_due_at.get(job.key, 0.0),
        )

    async def _carry_out(self, job: Job, world: World, todo: Plan) -> None:
        if todo.status is not None:
            self._keep(await self._cluster.write_status(job, todo.status))
            self._progress_due_at[job.key] = self._clock() + progress_s(self._drivers.followed)
            self._metrics.told(job.status, todo.status)
        for target in todo.delete:
            log.info("action=delete kind=%s name=%s", target.kind, target.name)
            await self._cluster.delete(target)
        if todo.secret is not None:
            await self._create_secret(job, todo.secret)
        for wanted in todo.apply:
            kind, name = wanted["kind"], wanted["metadata"]["name"]
            log.info("action=apply kind=%s name=%s", kind, name)
            await self._apply(job, wanted, force=world.child(kind, name) is not None)
        for event in todo.events:
            log.info("action=tell kind=%s reason=%s note=%r", event.action, event.reason, event.note)
            await self._cluster.tell(job, event)
        token = await self._token(job) if todo.follow else None
        await self._drivers.follow(job.key, todo.follow, token or "")
        told = await self._drivers.obey(job.key, todo.orders)
        self._metrics.submissions.inc(told.submit is not None)
        self._metrics.engine_restarts.inc(len(told.engines))

    async def _apply(self, job: Job, wanted: Manifest, force: bool) -> None:
        try:
            self._keep(await self._cluster.apply(wanted, force))
        except ClusterError as error:
            # A conflict passes by itself. Anything else the job's author has to know, wrong types too, which are a 500.
            if error.status and not isinstance(error, ConflictError):
                self._refused[job.key] = str(error)
            raise
        self._refused.pop(job.key, None)

    def _keep(self, raw: Manifest) -> None:
        if self._cache.put(raw) is not Seen.OLD:
            self._pulse.expect(raw)

    async def _token(self, job: Job) -> str | None:
        """Return the control token, if the job has one yet."""
        uid, token = self._tokens.get(job.key, ("", ""))
        if uid == job.uid:
            return token
        if "completionTime" in job.status:
            return None  # nobody will be asked any more
        secret = await self._cluster.read_secret(job.namespace, job_name(job.name, job.uid))
        return None if secret is None else self._remember(job, secret)

    def _remember(self, job: Job, secret: Manifest) -> str:
        token = desired.decoded(secret["data"][TOKEN_KEY])
        self._tokens[job.key] = job.uid, token
        return token

    async def _create_secret(self, job: Job, secret: Manifest) -> None:
        log.info("action=create kind=Secret name=%s", secret["metadata"]["name"])
        with suppress(ConflictError):  # it is there already, with the token that counts
            self._remember(job, await self._cluster.create_secret(secret))

    async def _forget(self, key: Key) -> None:
        await self._drivers.follow(key, None, "")
        self._progress_due_at.pop(key, None)
        self._refused.pop(key, None)
        self._tokens.pop(key, None)
