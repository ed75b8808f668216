"""Carries plans out. Each write is tried by itself: one that is refused stops no other, and no order to a driver.

    follow ─► status ─► orders ─► deletions ─► Secret ─► children ─► events ─► the first error, if any, is raised

Following a driver needs nothing of the API server, so it comes first. Orders come after the status, which explains
their effects to the operator that comes next, but do not depend on it. Only these do:

* A driver is submitted, and what makes pods is made, for an attempt that is stored: another operator that does not
  know the attempt would begin it again beside this one.
* Deletions wait up to `PATIENCE_S` for a status that is not stored: an end that is not stored would be begun again.
* What makes pods is not made while another child is refused: pods without their NetworkPolicy would be open to others.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from rljob_operator.cache.cache import Cache, Freshness
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.children.tool_pods import OWNERS
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.statuses import PATIENCE_S, Statuses
from rljob_operator.execution.tokens import Tokens
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Plan, Target
from rljob_operator.world.pace import Pace
from rljob_operator.world.world import Job, Observed

log = logging.getLogger(__name__)

MAKES_PODS = ("RayCluster", *OWNERS)


class Execution:
    """Carries out the plans of all jobs."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        drivers: Drivers,
        watches: WatchLiveness,
        metrics: Metrics,
        tokens: Tokens,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns unix seconds."""
        self._cluster = cluster
        self._cache = cache
        self._drivers = drivers
        self._watches = watches
        self._metrics = metrics
        self._tokens = tokens
        self._clock = clock
        self._refused: dict[str, str] = {}
        self.statuses = Statuses(cluster, self._keep, clock)
        self._paces: dict[str, Pace] = {}

    def refused(self, key: str) -> str | None:
        """Return why the API server refused a child of a job; None: it refused none."""
        return self._refused.get(key)

    def pace(self, key: str) -> Pace:
        """Return when the status of a job was written lately."""
        return self._paces.get(key, Pace())

    def forget(self, key: str) -> None:
        """Forget a job."""
        self._refused.pop(key, None)
        self._paces.pop(key, None)
        self.statuses.forget(key)

    async def carry_out(self, job: Job, stored: Manifest, observed: Observed, todo: Plan) -> None:
        """Carry a plan out; `stored` is the job as the API server has it. Raises ClusterError after all was tried.

        Raises ConflictError before anything but following, if the job has changed since it was read.
        """
        await self._drivers.follow(job.key, todo.follow, self._tokens.token(job))
        written = await self.statuses.write(job, stored, todo.status)
        if written.stored is not stored:
            self._paces[job.key] = self.pace(job.key).after_write(self._clock())
        if todo.status is not None:
            self._metrics.count(job.status, todo.status)
        is_stored = todo.attempt in {each["number"] for each in written.stored.get("status", {}).get("attempts", ())}
        orders = todo.orders if is_stored else replace(todo.orders, submit=None)
        self._drivers.give(job.key, orders)
        errors = [written.error] if written.error is not None else []
        if written.error is None or self.statuses.unwritten_s(job.key) >= PATIENCE_S:
            for target in todo.delete:
                await _tried(self._delete(job, target), errors)
        await self._apply_all(job, observed, todo, is_stored, errors)
        for event in todo.events:
            log.info("action=event kind=%s reason=%s note=%r", event.action, event.reason, event.note)
            await _tried(self._cluster.record(job, event), errors)
        if errors:
            raise _together(errors)

    async def _delete(self, job: Job, target: Target) -> None:
        log.info("action=delete kind=%s name=%s", target.kind, target.name)
        await self._cluster.delete(target)
        if target.kind == "Secret":
            self._tokens.forget(job.key)

    async def _apply_all(
        self, job: Job, observed: Observed, todo: Plan, is_stored: bool, errors: list[ClusterError]
    ) -> None:
        """Make the Secret and the children; what makes pods comes last."""
        before = len(errors)
        if todo.secret is not None:
            await _tried(self._tokens.create(job, todo.secret), errors)
        others_failed = len(errors) > before
        refusals: list[ClusterError] = []
        for wanted in sorted(todo.apply, key=lambda each: each["kind"] in MAKES_PODS):
            kind, name = wanted["kind"], wanted["metadata"]["name"]
            is_there = observed.child(kind, name) is not None
            if kind in MAKES_PODS and not is_there and (others_failed or refusals or not is_stored):
                continue
            log.info("action=apply kind=%s name=%s", kind, name)
            await _tried(self._apply(wanted, force=is_there), refusals)
        errors += refusals
        # A conflict passes by itself. The author has to see every other error, also 500, which wrong types cause.
        shown = [each for each in refusals if each.status and not isinstance(each, ConflictError)]
        if shown:
            self._refused[job.key] = str(shown[0])
        elif todo.apply and not refusals:
            self._refused.pop(job.key, None)

    async def _apply(self, wanted: Manifest, force: bool) -> None:
        self._keep(await self._cluster.apply(wanted, force))

    def _keep(self, raw: Manifest) -> None:
        if self._cache.put(raw) is not Freshness.STALE:
            self._watches.expect(raw)


async def _tried(write: Awaitable[None], errors: list[ClusterError]) -> None:
    """Do a write; what is refused joins the errors."""
    try:
        await write
    except ClusterError as error:
        log.warning("action=write outcome=refused: %s", error)
        errors.append(error)


def _together(errors: list[ClusterError]) -> ClusterError:
    """Return the first error that does not pass by itself, with the number of the others."""
    first = next((each for each in errors if not isinstance(each, ConflictError)), errors[0])
    if len(errors) == 1:
        return first
    return type(first)(f"{first}; and {len(errors) - 1} more", first.status)
