"""Whatever the objects of one job are, another job is given room and reconciled."""

import asyncio
import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.control import EngineState
from rljob_api.status import Status
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.process import Operator
from rljob_operator.queueing.ticket import Rules
from rljob_operator.reconcile import Reconciler
from rljob_operator.reservations import Reservations
from rljob_operator.watches.capacity_reader import CapacityReader
from rljob_operator.world.world import Job
from support.operator.fake_cluster import FakeCluster, FakeDrivers, pod
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, raw_job, running

UID = "eeeee000-0000-4000-8000-000000000000"
EVIL, GOOD = "ml/sums", "good/trains"
"""the names of the first one's objects are those of the usual job"""


NODE = {
    "metadata": {"name": "n", "uid": "of-n", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


class Town(FakeCluster):
    """An API server with one node, that takes every write."""

    def __init__(self) -> None:
        super().__init__(raw_job())
        self.statuses: dict[str, Manifest] = {}

    async def write_status(self, job: Job, status: Status) -> Manifest:
        self.statuses[job.key] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        raw = raw_job(job.name)
        raw["metadata"].update(namespace=job.namespace, uid=job.uid)
        return self._versioned({**raw, "status": self.statuses[job.key]})

    async def lists(self, where: str, query: Sequence[tuple[str, str]], limit: int) -> Any:
        yield {"metadata": {"resourceVersion": "5"}, "items": [NODE] if where.endswith("/nodes") else ()}

    async def events(self, where: str, query: Sequence[tuple[str, str]], version: str) -> Any:
        await asyncio.Event().wait()
        yield {}

    async def pod_events(self, namespace: str, name: str) -> Sequence[Manifest]:
        return ()

    async def read_lease(self, namespace: str, name: str) -> None:
        return None


class City:
    """An operator with its queue, over what its watches have shown."""

    def __init__(self) -> None:
        def clock() -> float:
            return NOW

        self.town, self.cache, self.queue = Town(), Cache(), WorkQueue(lambda: 0.0)
        watches, cluster = WatchLiveness(clock), cast(Cluster, self.town)
        self.metrics = Metrics(self.cache, self.queue, watches, Requests(), DEFAULTS.release)
        drivers = FakeDrivers()
        self.reader = CapacityReader(cluster, (), ())
        self.reservations = Reservations(self.cache, self.reader, Rules(), self.metrics, clock, lambda key, news: None)
        reconciler = Reconciler(
            cluster,
            self.cache,
            cast(Drivers, drivers),
            watches,
            self.metrics,
            DEFAULTS,
            Keys.of(b"k" * 32),
            clock,
            self.reservations,
        )
        unused: Any = None
        self.operator = Operator(
            unused,
            cluster,
            self.cache,
            self.queue,
            watches,
            unused,
            self.metrics,
            reconciler,
            unused,
            self.reservations,
        )

    async def settles(self) -> None:
        """Reconcile every job, give room, and reconcile every job again."""
        for _ in range(2):
            for key in self.cache.jobs():
                await self.operator._reconcile(key)
            assert self.reservations.is_complete, "the queue waits for nobody"
            await self.reservations._pass()


def good() -> Manifest:
    raw = raw_job("trains")
    raw["metadata"].update(namespace="good", uid="00000000-0000-4000-8000-000000000000", resourceVersion="7")
    return raw


def of_evil() -> tuple[Manifest, ...]:
    """Return a job that trains, and one object of each kind that belongs to it."""
    around = Surroundings(raw_job()).to_running()
    around.runs(running(EngineState.DEAD))
    around.step()
    meta = {"namespace": "ml", "resourceVersion": "3"}
    owner = [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "sums-7f3a1-1", "uid": "c", "controller": True}]
    condition = {"type": "QuotaReserved", "status": "True", "reason": "A", "message": "", "lastTransitionTime": AT}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {**meta, "name": "w", "uid": "w"},
    }
    workload["metadata"]["ownerReferences"] = owner
    workload |= {"spec": {"active": True}, "status": {"conditions": [condition], "admissionChecks": []}}
    tools = {"name": "t", "uid": "t", "labels": {"rljob.dev/job": "sums", "rljob.dev/tools": "sums-7f3a1-1"}}
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}}
    head = pod("a-head", "headgroup", is_head=True, containerStatuses=[{"name": "ray-head", **waiting}])
    children = [{**each, "metadata": {"resourceVersion": "3", **each["metadata"]}} for each in around.observed.children]
    return (
        {**around.raw, "metadata": {**around.raw["metadata"], "resourceVersion": "5", "creationTimestamp": AT}},
        *children,
        head,
        pod("a-trainer", "trainer"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, **tools}, "status": {"phase": "Running"}},
        workload,
    )


AT = "2026-11-27T12:00:00Z"
OBJECTS = json.dumps(of_evil())


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in an object, but for what an API server itself writes."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        if key in ("apiVersion", "kind", "uid", "namespace", "resourceVersion") and len(place) < 2 + 1:
            continue
        yield (*place, key)
        yield from places(each, (*place, key))


PLACES = [place for place in places(json.loads(OBJECTS)) if len(place) > 1 and place[-1] != "metadata"]
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]
ODD = st.recursive(
    st.sampled_from([None, True, 0, -1, 2**70, 0.5, "", "x", "sums", "9" * 40, "\u2028", AT, "0001-01-01T00:00:00Z"])
    | st.just(DEEP),
    lambda each: (
        st.lists(each, max_size=2) | st.dictionaries(st.sampled_from(["name", "spec", "kind"]), each, max_size=2)
    ),
    max_leaves=4,
)
EDIT = st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "drop", "twice"]), ODD)
EDITS = st.lists(EDIT, min_size=1, max_size=5)


def edited(edits: Sequence[tuple[tuple[Any, ...], str, Any]]) -> list[Manifest]:
    found: list[Manifest] = json.loads(OBJECTS)
    for place, how, value in edits:
        holder: Any = found
        try:
            for part in place[:-1]:
                holder = holder[part]
            match how:
                case "set":
                    holder[place[-1]] = copy.deepcopy(value) if value is not DEEP else value
                case "drop":
                    del holder[place[-1]]
                case _:
                    holder[place[-1]] = [holder[place[-1]]] * 2
        except (LookupError, TypeError):
            continue  # an earlier edit has replaced what it was in
    return found


def reconciled(objects: Sequence[Manifest]) -> City:
    async def scenario() -> City:
        city = City()
        for raw in (*objects, good()):
            city.operator.seen(raw, is_gone=False)
        await city.settles()
        await city.reader.close()
        return city

    return asyncio.run(scenario())


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(EDITS, st.booleans())
def test_whatever_the_objects_of_one_job_are_another_is_given_room(edits: Any, has_status: bool):
    objects = edited(edits)
    if not has_status:
        objects[0].pop("status", None)
    city = reconciled(objects)
    assert city.town.statuses[GOOD]["phase"] == "Provisioning"
    assert ("RayCluster", False) in city.town.applied
    assert b'rljob="trains"' in city.metrics.text()


def test_the_objects_as_they_should_be_are_followed():
    city = reconciled(json.loads(OBJECTS))
    assert EVIL in city.cache.jobs()
    assert city.town.statuses[GOOD]["phase"] == "Provisioning"
    assert b'rljob_operator_reconcile_errors_total{error="ClusterError"} 0.0' in city.metrics.text()


@pytest.mark.parametrize("kind", ["RLJob", "RayCluster", "ConfigMap", "Service", "NetworkPolicy", "Pod", "Workload"])
@pytest.mark.parametrize("part", ["spec", "status", "metadata"])
def test_an_object_without_a_part_or_with_another_in_its_place_costs_no_other_job(kind: str, part: str):
    for value in (None, [5], {"conditions": 5}):
        objects = json.loads(OBJECTS)
        for raw in objects:
            if raw["kind"] == kind:
                raw[part] = value
        assert reconciled(objects).town.statuses[GOOD]["phase"] == "Provisioning"
