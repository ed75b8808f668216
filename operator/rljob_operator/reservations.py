"""Runs the queue: collects tickets, refreshes capacity while a job waits, and makes passes.

reconcile ─► ticket ─► ledger ─► (something has changed) ─► look ─► pass ─► jobs with new decisions are reconciled
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rljob_operator.cache.cache import Cache, Key
from rljob_operator.capacity.packing import Node
from rljob_operator.cluster.cluster import ClusterError
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.metrics import Metrics
from rljob_operator.queueing.ledger import Ledger
from rljob_operator.queueing.schedule import schedule
from rljob_operator.queueing.ticket import Priority, Rules
from rljob_operator.queueing.tickets import is_queued_here, shows, ticket_of
from rljob_operator.watches.capacity_reader import LOOK_S, CapacityReader, CapacityReading
from rljob_operator.world.claims import Claim
from rljob_operator.world.driver_news import News
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import Job, World, seconds

log = logging.getLogger(__name__)

PASS_S = 0.2
"""shortest time between two passes: changes come in bursts [s]"""
SHARE = 10.0
"""length of the pause after a pass, in durations of the pass: it takes a tenth of a core at most"""
RETRY_S = 2.0
"""after a failed look [s]"""
BURST = 100
"""jobs that are told of new decisions before others may run: a few milliseconds"""


class Reservations:
    """The queue of this operator."""

    def __init__(
        self,
        cache: Cache,
        reader: CapacityReader,
        rules: Rules,
        metrics: Metrics,
        clock: Callable[[], float],
        changed: Callable[[Key, News], None],
    ) -> None:
        """`clock` returns unix seconds; `changed` takes each job about which the decision has changed."""
        self._cache, self._reader, self._metrics = cache, reader, metrics
        self._rules, self._clock, self._changed = rules, clock, changed
        self._ledger = Ledger()
        self._settled: set[Key] = set()
        """jobs without a ticket that were looked at: refused"""
        self._basis: dict[Key, tuple[object, bool]] = {}
        """what a job's ticket was made from, and whether the job is in this queue"""
        self._has_met_all = False
        """whether all jobs that there were at the start have been looked at"""
        self.waiting = 0
        """jobs that waited in the last pass"""
        self._dirty = asyncio.Event()
        self._reading: CapacityReading | None = None
        self._looked_at = 0.0

    def decision(self, job: Job, raw: Manifest, world: World, admitted: AdmittedJob | Claim) -> QueueDecision | None:
        """Take in a job, and return the decision about it; None: it is not in rljob's queue."""
        clusters = world.observed.rayclusters()
        has_pods = self._cache.has_pods(job.key) or bool(clusters)
        granted = self._ledger.granted(job.key)
        # Whether a job that does not run may have its directory depends on other jobs.
        runs = job.has_begun and "completionTime" not in job.status
        pods = (*world.observed.pods, *world.observed.tool_pods)
        versions = tuple(each["metadata"].get("resourceVersion") for each in clusters)
        basis = job.uid, job.resource_version, job.is_deleting, pods, has_pods, granted, versions
        known, is_here = self._basis.get(job.key, (None, False))
        if runs and known == basis and job.key in self._ledger:
            return self._ledger.decision(job.key) if is_here else None
        if isinstance(admitted, Claim) or job.is_deleting or not job.is_ours or world.is_anothers(job):
            self._settled.add(job.key)
            self._basis.pop(job.key, None)
            self._note(self._ledger.leave(job.key, has_pods))
            return None
        ticket = ticket_of(admitted, _created(raw), pods, has_pods, granted, clusters)
        is_shown = granted is not None and shows(admitted, granted)
        self._note(self._ledger.put(ticket, is_shown))
        self._basis[job.key] = basis, is_queued_here(admitted)
        return self._ledger.decision(job.key) if is_queued_here(admitted) else None

    def known_decision(self, key: Key) -> QueueDecision | None:
        """Return the decision about a job that cannot be planned, as it was last; None: it is not known."""
        return self._ledger.decision(key) if key in self._ledger and self._basis.get(key, (None, False))[1] else None

    @property
    def nodes(self) -> tuple[Node, ...] | None:
        """The nodes of the cluster at the last look; None: they were not looked at, or may not be."""
        return self._reading.seen.nodes if self._reading is not None else None

    def forget(self, key: Key) -> None:
        """A job is gone; its pods count until they are gone, too."""
        self._settled.discard(key)
        self._basis.pop(key, None)
        self._note(self._ledger.leave(key, self._cache.has_pods(key)))

    @property
    def is_complete(self) -> bool:
        """Return whether every job has been looked at that may hold room, or come before one that waits.

        After a start that is every job. Later ones hold nothing without a status or pods, and are the newest, so a
        stream of new jobs does not stop the queue.
        """
        unknown = [key for key in self._cache.jobs() if key not in self._ledger and key not in self._settled]
        newest = max((each.created for each in self._ledger.tickets.values() if each.waits), default=0.0)
        return not any(self._concerns(key, newest) for key in unknown)

    def _concerns(self, key: Key, newest: float) -> bool:
        """Return whether a job that is not known yet can change decisions of those created until `newest` [unix s]."""
        raw = self._cache.job(key)
        if raw is None:
            return False
        if not self._has_met_all or raw.get("status") or self._cache.has_pods(key):
            return True
        return _created(raw) < newest

    async def run(self) -> None:
        """Make passes for ever: after changes, and every few seconds while a job waits."""
        try:
            await self._pass_for_ever()
        finally:
            await self._reader.close()

    async def _pass_for_ever(self) -> None:
        while True:
            self._has_met_all = self._has_met_all or self.is_complete
            try:
                async with asyncio.timeout(LOOK_S if self._ledger.waits else None):
                    await self._dirty.wait()
            except TimeoutError:
                log.debug("action=look-again")
            self._dirty.clear()
            took_s = await self._pass() if self.is_complete and self._ledger.waits else 0.0
            await asyncio.sleep(max(PASS_S, took_s * SHARE))

    async def _pass(self) -> float:
        """Make a pass, and return how long that took [s]."""
        now = self._clock()
        if self._reading is None or now - self._looked_at >= LOOK_S:
            try:
                self._reading = await self._reader.read(self._ledger.__contains__)
            except ClusterError as error:
                log.warning("action=look-at-capacity outcome=failed will try again: %s", error)
                await asyncio.sleep(RETRY_S)
                self._dirty.set()
                return 0.0
            self._looked_at = now
        began = time.perf_counter()
        rules, asked = _with_classes(self._rules, self._reading.priority_classes), self._ledger.asked(now)
        with self._metrics.pass_seconds.time():
            # On values, and beside the loop: with thousands of jobs a pass takes seconds.
            found = await asyncio.to_thread(schedule, tuple(asked.values()), self._reading.seen, rules, now)
            changes = self._ledger.adopt(asked, found, now)
        took_s = time.perf_counter() - began
        self.waiting = sum(each.waits for each in self._ledger.tickets.values())
        if changes is None:
            self._dirty.set()
            return took_s
        for number, key in enumerate(changes.decided):
            await self._report(key, number)
        for number, key in enumerate(changes.moved):
            # Each job that starts moves all behind it: they must not delay it.
            self._changed(key, News.PROGRESS)
            if number % BURST == BURST - 1:
                await asyncio.sleep(0)
        return took_s

    async def _report(self, key: Key, number: int) -> None:
        """Have a job reconciled whose decision has changed; let others run after every few."""
        if key in self._ledger:  # it may be gone since the others were reported
            decision = self._ledger.decision(key)
            if decision.standing is Standing.PREEMPTED:
                self._metrics.preemptions.inc()
            log.info("action=queue queued=%s standing=%s position=%s", key, decision.standing, decision.position)
        self._changed(key, News.CHANGE)
        if number % BURST == BURST - 1:
            await asyncio.sleep(0)

    def skip(self, key: Key) -> None:
        """Do not wait for a job that cannot be looked at; until it can, its pods count as those of others."""
        if key not in self._ledger:
            self._settled.add(key)

    def _note(self, has_changed: bool) -> None:
        if has_changed:
            self._dirty.set()


def _created(raw: Manifest) -> float:
    return seconds(raw["metadata"].get("creationTimestamp", "1970-01-01T00:00:00Z"))


def _with_classes(rules: Rules, classes: Sequence[Manifest]) -> Rules:
    found = {each["metadata"]["name"]: _priority(each) for each in classes}
    default = next((_priority(each) for each in classes if each.get("globalDefault")), Priority())
    return replace(rules, priorities=found, default=default)


def _priority(raw: Manifest) -> Priority:
    return Priority(int(raw.get("value", 0)), raw.get("preemptionPolicy") != "Never")
