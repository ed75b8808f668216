"""What the API server refuses stops neither following, orders and deadlines, nor what it does not refuse."""

import asyncio
import itertools
from typing import Any, cast

import pytest

from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_api.status import Status
from rljob_operator.attempts.escalation import SHORTEST_DRAIN_S, STOP_S
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.children import children
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.keys import Keys
from rljob_operator.execution.statuses import PATIENCE_S
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile import Reconciler
from rljob_operator.status.events import Event
from rljob_operator.world.world import Driver, DriverState, Job
from support.operator.fake_cluster import FakeCluster, FakeDrivers, pod
from support.operator.operator_world import DEFAULTS, NOW, raw_job, running

KEY = "ml/sums"
DENIED = ClusterError("PATCH networkpolicies/sums: 500 failed calling webhook: connection refused", 500)
UNKNOWN_VALUE = ClusterError('PATCH rljobs/sums/status: 422 recovery[0].action: Unsupported value: "SwapPod"', 422)
CHANGED = ConflictError("PATCH rljobs/sums/status: 409 the object has been modified", 409)


class RefusingCluster(FakeCluster):
    """Refuses statuses as it is told."""

    def __init__(self, raw: Manifest) -> None:
        super().__init__(raw)
        self.refusal: ClusterError | None = None
        self.takes_less = False
        """whether a status with nothing new in `recovery` is taken"""
        self.event_refusal: ClusterError | None = None

    async def write_status(self, job: Job, status: Status) -> Manifest:
        known = len(self.raw.get("status", {}).get("recovery", ()))
        if self.refusal is not None and not (self.takes_less and len(status.recovery) == known):
            raise self.refusal
        return await super().write_status(job, status)

    async def record(self, job: Job, event: Event) -> None:
        if self.event_refusal is not None:
            raise self.event_refusal
        await super().record(job, event)


class House:
    """An operator whose job trains."""

    def __init__(self, **sections: Any) -> None:
        raw = raw_job(**sections)
        self.now = NOW
        self.cluster, self.drivers, self.cache = RefusingCluster(raw), FakeDrivers(), Cache()
        self.watch = WatchLiveness(lambda: self.now)
        self.restart()
        self.cache.put(raw)

    def restart(self) -> None:
        """Another process takes over."""
        metrics = Metrics(self.cache, WorkQueue(lambda: self.now), self.watch, Requests(), "ml/rljob")
        self.reconciler = Reconciler(
            cast(Cluster, self.cluster),
            self.cache,
            cast(Drivers, self.drivers),
            self.watch,
            metrics,
            DEFAULTS,
            Keys.of(b"k" * 32),
            lambda: self.now,
        )

    def look(self, after_s: float = 0.0) -> ClusterError | None:
        """Reconcile after some time; return the error."""
        self.now += after_s
        try:
            asyncio.run(self.reconciler.reconcile(KEY))
        except ClusterError as error:
            return error
        return None

    def train(self) -> "House":
        self.look()
        for name, group in (("a-head", "headgroup"), ("a-trainer", "trainer"), ("a-rollout", "rollout")):
            self.cache.put(pod(name, group, is_head=group == "headgroup"))
        self.sees(DriverState.RUNNING, status=running())
        self.look()
        self.drivers.orders.clear()
        self.drivers.follows.clear()
        return self

    def sees(self, state: DriverState, attempt: int = 1, **known: Any) -> None:
        known = {"beat_at": self.now, **known}
        self.drivers.known = Driver(f"sums-7f3a1-attempt-{attempt}", since=NOW, state=state, **known)

    def edit(self, **spec: Any) -> None:
        metadata = {**self.cluster.raw["metadata"], "generation": 2, "resourceVersion": str(next(VERSIONS))}
        self.cluster.raw = {**self.cluster.raw, "spec": {**self.cluster.raw["spec"], **spec}, "metadata": metadata}
        self.cache.put(self.cluster.raw)
        self.cluster._versions = VERSIONS

    @property
    def deleted(self) -> list[str]:
        return [target.kind for target in self.cluster.deleted]

    @property
    def stored(self) -> Manifest:
        stored: Manifest = self.cluster.raw["status"]
        return stored


VERSIONS = itertools.count(1000)


@pytest.fixture
def house() -> House:
    return House().train()


def newer_policy(job: AdmittedJob, made: Any = children.network_policy) -> Manifest:
    """Return what a newer operator wants, with one more label."""
    wanted: Manifest = made(job)
    wanted["metadata"]["labels"]["rljob.dev/new"] = "x"
    return wanted


def test_a_refused_child_cuts_no_job_off(house: House, monkeypatch):
    monkeypatch.setattr(children, "network_policy", newer_policy)
    house.cluster.refusals["NetworkPolicy"] = DENIED
    house.restart()
    assert house.look() is DENIED
    assert house.drivers.follows[-1][0] is not None
    house.edit(suspend=True)
    house.look()
    assert house.drivers.orders[-1].drain
    house.sees(DriverState.FAILED, exit_code=Exit.PREEMPTED)
    house.look()
    assert "ended" in house.stored["attempts"][0]
    assert "RayCluster" in house.deleted


def test_a_refused_deletion_and_a_refused_event_stop_nothing_else(house: House):
    house.cluster.event_refusal = DENIED
    house.edit(suspend=True)
    house.sees(DriverState.FAILED, exit_code=Exit.PREEMPTED)
    error = house.look()
    assert error is not None
    assert error.status == 500
    assert house.deleted == ["RayCluster", "ConfigMap"]


def test_nothing_makes_pods_while_their_network_policy_is_refused():
    house = House()
    house.cluster.refusals["NetworkPolicy"] = DENIED
    assert house.look() is DENIED
    assert [kind for kind, _ in house.cluster.applied] == ["ConfigMap", "Service", "NetworkPolicy"]
    house.cluster.refusals.clear()
    assert house.look() is None
    assert house.cluster.applied[-1] == ("RayCluster", False)


@pytest.mark.parametrize("refusal", [UNKNOWN_VALUE, ClusterError("no answer", 0), DENIED], ids=["422", "0", "500"])
def test_a_refused_status_stops_no_order(house: House, refusal: ClusterError):
    house.cluster.refusal = refusal
    house.sees(DriverState.RUNNING, status=running(EngineState.DEAD, EngineState.DEAD))
    assert house.look(60) is refusal
    assert [order.engine for order in house.drivers.orders[-1].engines] == ["engine-0", "engine-1"]


def test_a_suspended_job_whose_status_is_refused_for_good_is_drained_stopped_and_freed(house: House):
    house.cluster.refusal = UNKNOWN_VALUE
    house.edit(suspend=True)
    house.sees(DriverState.RUNNING, status=running())
    house.look()
    assert house.drivers.orders[-1].drain
    house.look(SHORTEST_DRAIN_S)
    assert house.drivers.orders[-1].stop
    house.look(STOP_S)
    assert house.deleted == ["RayCluster", "ConfigMap"]
    assert "endingSince" not in house.stored["attempts"][0]


def test_the_active_deadline_holds_while_the_status_is_refused(house: House):
    house.cluster.refusal = UNKNOWN_VALUE
    house.edit(scheduling={"activeDeadlineSeconds": 3600})
    house.sees(DriverState.RUNNING, status=running())
    house.look(3601)
    assert house.drivers.orders[-1].stop
    house.look(STOP_S)
    house.look(1)
    assert "RayCluster" in house.deleted


def test_what_an_older_crd_takes_of_a_status_is_stored(house: House):
    house.cluster.refusal, house.cluster.takes_less = UNKNOWN_VALUE, True
    house.sees(DriverState.FAILED, exit_code=Exit.FAILED)
    assert house.look(60) is UNKNOWN_VALUE
    assert [attempt["number"] for attempt in house.stored["attempts"]] == [1, 2]
    assert "recovery" not in house.stored or house.stored["recovery"] == []
    house.cluster.refusal = None
    assert house.look(1) is None
    assert [step["action"] for step in house.stored["recovery"]] == ["RestartDriver"]


def test_no_driver_is_submitted_for_an_attempt_that_is_not_stored(house: House):
    house.cluster.refusal = DENIED
    house.sees(DriverState.FAILED, exit_code=Exit.FAILED)
    house.look(60)
    house.sees(DriverState.ABSENT, attempt=2)
    house.look(60)
    assert all(orders.submit is None for orders in house.drivers.orders)
    assert house.drivers.follows[-1][0].attempt == 2
    house.cluster.refusal = None
    house.look(60)
    house.look(60)
    assert "--attempt 2" in (house.drivers.orders[-1].submit or "")


def test_an_end_that_is_not_stored_deletes_nothing_for_a_minute(house: House):
    house.cluster.refusal = DENIED
    house.sees(DriverState.SUCCEEDED, exit_code=0)
    house.look()
    assert house.deleted == []
    house.look(PATIENCE_S)
    assert house.deleted == ["RayCluster", "ConfigMap"]


def test_a_status_that_somebody_else_has_written_counts(house: House):
    house.cluster.refusal = DENIED
    house.sees(DriverState.SUCCEEDED, exit_code=0)
    house.look()
    house.cluster.refusal = None
    house.sees(DriverState.RUNNING, status=running())
    house.cluster.raw = {**house.cluster.raw, "status": {**house.stored, "restarts": 7}}
    house.edit()
    house.look(PATIENCE_S)
    assert house.deleted == []
    assert house.stored["phase"] == "Training"


def test_a_job_that_has_changed_since_it_was_read_is_followed_and_nothing_else(house: House):
    house.cluster.refusal = CHANGED
    house.edit(suspend=True)
    assert house.look() is CHANGED
    assert len(house.drivers.follows) == 1
    assert (house.drivers.orders, house.deleted) == ([], [])


def test_nobody_keeps_a_job_by_changing_it_all_the_time(house: House):
    house.cluster.refusal = CHANGED
    house.edit(suspend=True)
    house.look()
    house.look(PATIENCE_S)
    assert house.drivers.orders[-1].drain


def test_a_secret_that_cannot_be_looked_for_stops_no_order(house: House, monkeypatch):
    async def has_secret(*_: object) -> None:
        raise DENIED

    monkeypatch.setattr("rljob_operator.execution.tokens.Tokens.has_secret", has_secret)
    house.edit(suspend=True)
    assert house.look() is DENIED
    assert house.drivers.orders[-1].drain
