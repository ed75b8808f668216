"""What the operator's process sets for itself."""

import asyncio
import base64
import gc
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_operator import process
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import ClusterError, ConflictError
from rljob_operator.cluster.requests import Requests
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.process import Operator, lead
from rljob_operator.runtime.garbage import collect_young_garbage_only
from rljob_operator.world.world import Defaults
from support.operator.listing_cluster import ClusterWithoutOthers, operator_of
from support.operator.operator_world import raw_job
from support.waiting import others_run

SMALLEST_HEAP = 300_000
"""containers: fewer than these fill the young generations too seldom"""


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def closed() -> None:
    """There is nothing to end."""


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.mark.usefixtures("thresholds")
def test_what_is_kept_is_not_walked_through_again_and_again():
    # Python walks through everything once a quarter of the heap is new, and other tests may have left a large heap.
    gc.collect()
    young = max(SMALLEST_HEAP, len(gc.get_objects()))
    before = full_collections()
    by_default = [[number] for number in range(young)]
    found = full_collections() - before

    collect_young_garbage_only()
    before = full_collections()
    kept = [[number] for number in range(young)]

    assert found > 0
    assert full_collections() == before
    assert len(kept) == len(by_default)


class NewCluster(ClusterWithoutOthers):
    """An API server with one job, on which no operator has run."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: dict[tuple[str, str], Manifest] = {}

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        assert kind == "Secret"
        return self.secrets.get((namespace, name))

    async def create(self, wanted: Manifest) -> Manifest:
        data = {name: base64.b64encode(each.encode()).decode() for name, each in wanted["stringData"].items()}
        secret = {"metadata": wanted["metadata"], "data": data}
        self.secrets[wanted["metadata"]["namespace"], wanted["metadata"]["name"]] = secret
        return secret


class Leader:
    """A replica that has just taken the Lease. It stops when it has reconciled a job."""

    def __init__(self, cluster: NewCluster) -> None:
        settings: Any = SimpleNamespace(
            namespaces=(), defaults=Defaults(), lease_namespace="ops", key_secret="rljob-key", workers=2, sweep_s=60.0
        )
        unused: Any = None
        cache, queue, watches = Cache(), WorkQueue(lambda: 0.0), WatchLiveness(lambda: 0.0)
        metrics = Metrics(cache, queue, watches, Requests(), "ml/rljob")
        self.stop = asyncio.Event()
        self.keys = Keys()
        self.reconciled: list[tuple[str, str]] = []
        """each job with the key at that time"""
        self.renews = False
        """the Lease"""
        self.renewed_at_end: bool | None = None
        """when the requests to drivers were ended"""
        me: Any = self
        joined: Any = cluster
        self.operator = Operator(settings, joined, cache, queue, watches, me, metrics, me, unused, None, self.keys)

    async def reconcile(self, job: str) -> float | None:
        self.reconciled.append((job, self.keys.current))
        self.stop.set()
        return None

    async def close(self) -> None:
        self.renewed_at_end = self.renews

    async def hold(self) -> None:
        self.renews = True
        try:
            await asyncio.Event().wait()
        finally:
            self.renews = False

    async def watch(self, operator: Operator, stop: asyncio.Event) -> None:
        await stop.wait()

    def run(self) -> str | None:
        election: Any = self
        return asyncio.run(lead(self.operator, election, self.stop, self.watch))


@pytest.mark.usefixtures("thresholds")
def test_the_first_leader_has_made_the_key_before_it_reconciles_the_jobs_that_there_are():
    cluster = NewCluster()
    leader = Leader(cluster)
    assert leader.run() is None
    assert list(cluster.secrets) == [("ops", "rljob-key")]
    assert leader.reconciled == [("ml/sums", leader.keys.current)] and leader.keys.current


@pytest.mark.usefixtures("thresholds")
def test_a_later_leader_has_the_key_of_the_first():
    cluster = NewCluster()
    first, second = Leader(cluster), Leader(cluster)
    first.run()
    second.run()
    assert second.reconciled == first.reconciled


@pytest.mark.usefixtures("thresholds")
def test_a_leader_that_stops_has_ended_its_requests_before_it_stops_renewing_the_lease():
    leader = Leader(NewCluster())
    leader.run()
    assert leader.renewed_at_end and not leader.renews


async def ends(*_: Any) -> None:
    return


async def waits(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize(
    ("work", "name"), [("work", "worker-0"), ("resync_for_ever", "resync"), ("sweep_for_ever", "sweep"), ("", "queue")]
)
def test_a_background_task_that_ends_ends_the_leader_by_its_name(monkeypatch: pytest.MonkeyPatch, work: str, name: str):
    leader = Leader(NewCluster())
    parts: dict[str, Any] = {"reconciler": SimpleNamespace(reconcile=waits, close=closed)}
    if work:
        monkeypatch.setattr(Operator, work, ends)
    else:
        parts["reservations"] = SimpleNamespace(run=ends)
    leader.operator = replace(leader.operator, **parts)
    assert leader.run() == name


@pytest.mark.usefixtures("thresholds")
def test_a_leader_that_stops_waits_for_a_worker_no_longer_than_it_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "STOP_S", 0.0)
    leader = Leader(NewCluster())
    ended: list[str] = []

    async def reconcile(key: str) -> None:
        leader.stop.set()
        try:
            await waits()
        except asyncio.CancelledError:
            await waits()  # a request that takes long to end
        finally:
            ended.append(key)

    async def close() -> None:
        assert not ended

    parts: Any = SimpleNamespace(reconcile=reconcile, close=close)
    leader.operator = replace(leader.operator, reconciler=parts, drivers=parts)
    assert leader.run() is None


@pytest.mark.usefixtures("thresholds")
def test_every_worker_takes_a_job():
    leader = Leader(NewCluster())
    at_work: list[str] = []

    async def reconcile(key: str) -> None:
        at_work.append(key)
        if len(at_work) == 2:
            leader.stop.set()
        await waits()

    parts: Any = SimpleNamespace(reconcile=reconcile, close=closed)
    leader.operator = replace(leader.operator, reconciler=parts)
    leader.operator.queue.add("ml/b")
    leader.run()
    assert set(at_work) == {"ml/b", "ml/sums"}


class Worker:
    """An operator whose worker takes the one job; a reconcile ends as the test says."""

    def __init__(self, *ends: Exception | float | None) -> None:
        self.now, self.ends, self.jobs = 0.0, list(ends), list[str]()
        cache, queue, watches = Cache(), WorkQueue(lambda: self.now), WatchLiveness(lambda: 0.0)
        self.metrics = Metrics(cache, queue, watches, Requests(), "ml/rljob")
        me: Any = self
        unused: Any = None
        self.operator = Operator(unused, unused, cache, queue, watches, unused, self.metrics, me, unused)
        queue.add("ml/sums")

    async def reconcile(self, key: str) -> float | None:
        self.jobs.append(f"{key} at {self.now}")
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def works(self, *times: float) -> list[str]:
        """Let the worker work at these times, and return what it has reconciled, and when."""

        async def scenario() -> None:
            working = asyncio.create_task(self.operator.work())
            for self.now in times:
                self.operator.queue.add(f"ml/later-{self.now}", 1e9)  # a worker looks at the clock when one is queued
                await others_run()
            working.cancel()

        asyncio.run(scenario())
        return self.jobs

    def count(self, series: str) -> float:
        found = re.search(rf"^{re.escape(series)} (.*)$", self.metrics.text().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])


def test_a_job_is_reconciled_again_when_the_reconcile_says_so():
    assert Worker(5.0, None).works(0.0, 4.0, 5.0, 9.0) == ["ml/sums at 0.0", "ml/sums at 5.0"]
    assert Worker(None).works(0.0, 9.0) == ["ml/sums at 0.0"]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ConflictError("the object has been modified", 409), "ConflictError"),
        (ClusterError("no answer", 0), "ClusterError"),
        (KeyError("a bug"), "KeyError"),
    ],
)
def test_a_reconcile_that_fails_is_counted_and_tried_again_after_a_pause(error: Exception, name: str):
    worker = Worker(error, None)
    assert worker.works(0.0, 0.4, 0.5, 9.0) == ["ml/sums at 0.0", "ml/sums at 0.5"]
    assert worker.count(f'rljob_operator_reconcile_errors_total{{error="{name}"}}') == 1.0
    assert worker.count("rljob_operator_reconcile_seconds_count") == 2.0


def job_event(version: int, steps: int) -> Manifest:
    raw = raw_job(training={"steps": steps})
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}


def queued(operator: Operator) -> list[str]:
    """Return the jobs that are due now, each taken from the queue and done."""
    found = []
    while operator.queue.waiting_s():
        found.append(asyncio.run(operator.queue.get()))
        operator.queue.done(found[-1], None)
    return found


def test_an_event_queues_its_job_when_the_object_has_changed_or_is_gone():
    operator = operator_of(ClusterWithoutOthers())
    seen = []
    for version, steps, is_gone in [
        (5, 9, False),
        (5, 9, False),
        (6, 9, False),
        (4, 8, False),
        (7, 8, False),
        (7, 8, True),
    ]:
        operator.seen(job_event(version, steps), is_gone)
        seen.append((queued(operator), operator.cache.jobs()))
    there = ("ml/sums",)
    unchanged = [([], there)] * 3
    assert seen == [(["ml/sums"], there), *unchanged, (["ml/sums"], there), (["ml/sums"], ())]


def test_an_event_of_an_object_of_others_is_passed_over():
    operator = operator_of(ClusterWithoutOthers())
    operator.seen({"kind": "RayCluster", "metadata": {"name": "a", "namespace": "ml", "uid": "u"}}, False)
    assert queued(operator) == []


@pytest.mark.parametrize(("is_set", "done"), [(False, True), (True, False)])
def test_a_replica_that_is_stopped_waits_for_the_lease_no_longer(is_set: bool, done: bool):
    async def scenario() -> bool:
        stop, held = asyncio.Event(), asyncio.Event()
        (stop if is_set else held).set()
        return await process._unless(stop, held.wait())

    assert asyncio.run(scenario()) is done


def test_a_failing_job_waits_for_its_back_off_unless_its_author_changes_it():
    now = [0.0]
    operator = replace(operator_of(ClusterWithoutOthers()), queue=WorkQueue(lambda: now[0]))
    operator.seen(job_event(5, 9), False)
    for _ in range(5):
        now[0] += 100.0
        asyncio.run(operator.queue.get())
        operator.queue.failed("ml/sums")
    report = job_event(6, 9)
    operator.seen({**report, "status": {"phase": "Training"}}, False)
    now[0] += 0.6
    assert queued(operator) == []
    edit = job_event(7, 8)
    operator.seen({**edit, "metadata": {**edit["metadata"], "generation": 2}}, False)
    now[0] += 0.5
    assert queued(operator) == ["ml/sums"]
