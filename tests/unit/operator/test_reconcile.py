"""What the reconciler remembers between two looks at a job: refusals, the control token, the pace of progress."""

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_api.status import Status
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.keys import Keys
from rljob_operator.execution.tokens import Tokens
from rljob_operator.identity import KEY_ANNOTATION
from rljob_operator.job.admission import admission
from rljob_operator.metrics import Metrics
from rljob_operator.plan import progress_s
from rljob_operator.queueing.ticket import Rules
from rljob_operator.reconcile import Reconciler
from rljob_operator.reservations import Reservations
from rljob_operator.watches.capacity_reader import CapacityReader
from rljob_operator.world.world import Driver, DriverState, Job, Storage, job_of
from support.operator.fake_cluster import FakeCluster, FakeDrivers, pod
from support.operator.operator_world import DEFAULTS, NOW, raw_job, running

KEY = "ml/sums"
KEYS = Keys.of(b"k" * 32)


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


class House:
    """A reconciler and what it works with; the cluster's answers reach the cache as its watches would bring them."""

    def __init__(self) -> None:
        raw = raw_job()
        self.cluster, self.drivers, self.clock = FakeCluster(raw), FakeDrivers(), Clock()
        self.cache, self.watch = Cache(), WatchLiveness(self.clock)
        self.metrics = Metrics(self.cache, WorkQueue(self.clock), self.watch, Requests(), "ml/rljob")
        self.restart()
        self.cache.put(raw)

    def restart(self, queue: Reservations | None = None) -> None:
        """Another process takes over."""
        cluster, drivers = cast(Cluster, self.cluster), cast(Drivers, self.drivers)
        self.reconciler = Reconciler(
            cluster, self.cache, drivers, self.watch, self.metrics, DEFAULTS, KEYS, self.clock, queue
        )

    def reconcile(self) -> float | None:
        return asyncio.run(self.reconciler.reconcile(KEY))

    def to_running(self) -> None:
        """From the beginning to a driver that trains."""
        self.reconcile()
        for name, group in (("a-head", "headgroup"), ("a-trainer", "trainer"), ("a-rollout", "rollout")):
            self.cache.put(pod(name, group, is_head=group == "headgroup"))
        self.drivers.known = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.RUNNING, status=running())
        self.reconcile()

    def message(self, kind: str) -> str:
        conditions = self.cluster.raw["status"]["conditions"]
        return str(next(condition["message"] for condition in conditions if condition["type"] == kind))


@pytest.fixture
def house() -> House:
    return House()


def refuse(house: House, error: ClusterError) -> None:
    house.cluster.refusals["RayCluster"] = error
    with pytest.raises(type(error)):
        house.reconcile()


def test_the_queue_and_the_plan_ask_once_whether_a_job_is_admitted(house: House, monkeypatch):
    asked: list[str] = []

    def once(job: Job, *given: Any) -> Any:
        asked.append(job.name)
        return admission(job, *given)

    monkeypatch.setattr("rljob_operator.plan.admission", once)
    reader = CapacityReader(cast(Cluster, house.cluster), ("ml",), None)
    house.restart(Reservations(house.cache, reader, Rules(), house.metrics, house.clock, lambda key, news: None))
    house.reconcile()
    assert asked == ["sums"]


def test_progress_is_written_less_often_while_many_jobs_wait_in_the_queue(house: House):
    reader = CapacityReader(cast(Cluster, house.cluster), ("ml",), None)
    queue = Reservations(house.cache, reader, Rules(), house.metrics, house.clock, lambda key, news: None)
    queue.waiting = 1000
    house.to_running()
    house.cache.put(house.cluster.raw)
    house.restart(queue)
    house.reconcile()
    assert house.reconciler.progress_due_s(KEY) >= progress_s(1000)


def test_a_job_that_cannot_be_looked_at_does_not_stop_the_queue(house: House, monkeypatch):
    async def has_secret(*_: object) -> None:
        raise ClusterError("GET secrets/sums: 500", 500)

    house.reconcile()
    house.cache.put(house.cluster.raw)  # another process has begun it
    monkeypatch.setattr(Tokens, "has_secret", has_secret)
    reader = CapacityReader(cast(Cluster, house.cluster), ("ml",), None)
    queue = Reservations(house.cache, reader, Rules(), house.metrics, house.clock, lambda key, news: None)
    house.restart(queue)
    assert not queue.is_complete
    with pytest.raises(ClusterError):
        house.reconcile()
    assert queue.is_complete


def test_another_job_sees_a_run_that_begins_before_its_status_is_written(house: House, monkeypatch):
    seen = []

    async def write_status(job: Job, status: Status) -> dict:
        seen.extend(claim.has_begun for claims in house.cache.runs.values() for claim in claims.values())
        raise ConflictError("the job has changed", 409)

    shared = Storage({"persistentVolumeClaim": {"claimName": "runs"}})
    cluster, drivers = cast(Cluster, house.cluster), cast(Drivers, house.drivers)
    defaults = replace(DEFAULTS, storage=shared)
    watch, metrics = house.watch, house.metrics
    house.reconciler = Reconciler(cluster, house.cache, drivers, watch, metrics, defaults, KEYS, house.clock)
    monkeypatch.setattr(house.cluster, "write_status", write_status)
    with pytest.raises(ConflictError):
        house.reconcile()
    assert set(seen) == {True}


def test_a_new_job_gets_its_status_its_secret_and_its_children(house: House):
    assert house.reconcile() is not None
    assert house.cluster.applied == [
        ("ConfigMap", False),
        ("Service", False),
        ("NetworkPolicy", False),
        ("RayCluster", False),
    ]
    assert house.cluster.secret is not None
    assert house.cluster.raw["status"]["phase"] == "Provisioning"


def test_a_refused_child_is_a_message_until_the_api_server_accepts_it(house: House):
    refuse(house, ClusterError("PATCH rayclusters/x: 422 spec.volumes is wrong", 422))
    for _ in range(2):
        with pytest.raises(ClusterError):
            house.reconcile()
        house.clock.now += 1
    assert house.message("ClusterReady").endswith("422 spec.volumes is wrong")
    house.cluster.refusals.clear()
    for _ in range(2):
        house.reconcile()
        house.clock.now += 1
    assert house.message("ClusterReady") == "0 of 3 pods are ready"


@pytest.mark.parametrize(
    "error",
    [ConflictError("another field manager", 409), ClusterError("no answer", 0)],
    ids=["conflict", "no answer"],
)
def test_what_passes_by_itself_is_no_refusal(house: House, error: ClusterError):
    refuse(house, error)
    with pytest.raises(ClusterError):
        house.reconcile()
    assert house.message("ClusterReady") == "0 of 3 pods are ready"


def test_our_fields_win_in_a_child_that_is_ours_and_in_no_other(house: House):
    house.reconcile()
    raw = house.cluster.raw
    house.cluster.applied.clear()
    spec = {**raw["spec"], "recovery": {"healthFailures": 9}}
    house.cluster.raw = {**raw, "spec": spec, "metadata": {**raw["metadata"], "resourceVersion": "99"}}
    house.cache.put(house.cluster.raw)
    house.reconcile()
    assert house.cluster.applied == [("ConfigMap", True)]


def test_a_new_process_knows_the_token_and_reads_no_secret(house: House):
    house.to_running()
    house.reconcile()
    follow, token = house.drivers.follows[-1]
    assert follow is not None
    house.restart()
    house.reconcile()
    assert house.drivers.follows[-1] == (follow, token)
    assert base64.b64decode((house.cluster.secret or {})["data"]["token"]).decode() == token
    assert (house.cluster.secret_reads, house.cluster.deleted) == (0, [])


def test_the_driver_of_an_older_operator_is_asked_with_the_token_of_its_secret(house: House):
    house.to_running()
    (cluster,) = (child for child in house.cache.children(job_of(house.cluster.raw)) if child["kind"] == "RayCluster")
    key = cluster["metadata"]["annotations"].pop(KEY_ANNOTATION)
    older = json.loads(json.dumps(cluster).replace(f"sums-7f3a1-{key}", "sums-7f3a1"))
    house.cache.put({**older, "metadata": {**older["metadata"], "resourceVersion": "98"}})
    house.cluster.secret = {"metadata": {"name": "sums-7f3a1"}, "data": {"token": "a2VwdA=="}}
    house.cluster.applied.clear()
    house.restart()
    house.reconcile()
    house.reconcile()
    assert house.drivers.follows[-1][1] == "kept"
    assert (house.cluster.secret_reads, house.cluster.applied) == (1, [])


def test_the_token_of_a_deleted_job_is_not_used_for_its_successor(house: House):
    house.to_running()
    old, before = house.cluster.raw, house.drivers.follows[-1][1]
    house.cluster.secret = None
    house.cache.remove(old)
    successor = raw_job()
    successor["metadata"] |= {"uid": "7f3a1c00-0000-4000-8000-000000000001", "resourceVersion": "99"}
    house.cluster.raw = successor
    house.cache.put(successor)
    house.reconcile()
    assert house.drivers.follows[-1][1] not in ("", before)


def test_nobody_follows_the_driver_of_a_job_that_is_gone(house: House):
    house.to_running()
    house.cache.remove(house.cluster.raw)
    assert house.reconcile() is None
    assert house.drivers.follows[-1] == (None, "")
    assert house.reconciler.progress_due_s(KEY) == 0.0


def test_mere_progress_is_due_15_seconds_after_the_last_write(house: House):
    house.to_running()
    assert house.reconciler.progress_due_s(KEY) == 15.0
    house.clock.now += 20
    assert house.reconciler.progress_due_s(KEY) == 0.0


def test_what_is_written_has_to_come_back_as_an_event(house: House):
    house.reconcile()
    house.clock.now += 40
    assert house.watch.silent_s == 40.0


def test_events_are_recorded_and_exits_are_counted(house: House):
    house.to_running()
    assert house.drivers.known is not None
    house.drivers.known = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.SUCCEEDED, exit_code=0)
    house.reconcile()
    assert [event.reason for event in house.cluster.events] == ["PodsReady", "Running", "Completed"]
    assert [target.kind for target in house.cluster.deleted] == ["RayCluster", "ConfigMap"]
    assert b'rljob_operator_driver_exits_total{reason="Ok"} 1.0' in house.metrics.text()


def test_a_submission_is_ordered(house: House):
    house.to_running()
    house.drivers.known = Driver("sums-7f3a1-attempt-1", since=NOW, state=DriverState.FAILED, exit_code=4)
    house.reconcile()
    house.drivers.known = Driver("sums-7f3a1-attempt-2", since=NOW, state=DriverState.ABSENT)
    house.reconcile()
    assert "--attempt 2" in (house.drivers.orders[-1].submit or "")
