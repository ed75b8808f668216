"""The queue's loop: it waits for all jobs to be known, looks at capacity, and passes on what has changed."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.capacity.packing import Node, Nodes
from rljob_operator.capacity.quotas import Quota
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.cluster.requests import Requests
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.plan import admitted
from rljob_operator.queueing.ticket import Rules, Ticket
from rljob_operator.queueing.tickets import ticket_of
from rljob_operator.reservations import Reservations
from rljob_operator.watches.capacity_reader import CapacityReader, CapacityReading
from rljob_operator.world.claims import Claim
from rljob_operator.world.driver_news import News
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import World, job_of
from support.operator.fake_cluster import pod
from support.operator.operator_world import DEFAULTS, NOW, raw_job
from support.processor_time import measured
from support.waiting import becomes_true, others_run

GPUS = {
    "placement": "Colocated",
    "runtime": {"device": "Gpu"},
    "rollout": {"engines": 4},
    "training": {"gpusPerNode": 4},
}
QUOTA = {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
NODE = {
    "metadata": {"name": "n", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


class Lists:
    """An API server that has lists, and may refuse them."""

    def __init__(self, **found: Sequence[Manifest]) -> None:
        self.found = {"resourcequotas": [QUOTA], **found}
        self.refused: dict[str, int] = {}
        self.asked: list[str] = []
        self.happens: dict[str, asyncio.Queue[tuple[str, Manifest]]] = {}

    async def lists(self, where: str, query: Sequence[tuple[str, str]], page: int) -> Any:
        name = where.rpartition("/")[2]
        self.asked.append(where)
        if name in self.refused:
            raise ClusterError(f"GET {where}: refused", self.refused[name])
        found = [_with_uid(name, raw) for raw in self.found.get(name, ())]
        yield {"metadata": {"resourceVersion": "1"}, "items": found}

    async def events(self, where: str, query: Sequence[tuple[str, str]], version: str) -> Any:
        while True:
            kind, raw = await self.happens.setdefault(where, asyncio.Queue()).get()
            yield {"type": kind, "object": _with_uid(where.rpartition("/")[2], raw)}


def _with_uid(name: str, raw: Manifest) -> Manifest:
    metadata = raw["metadata"]
    return {**raw, "metadata": {"uid": f"{name}/{metadata['name']}", "resourceVersion": "1", **metadata}}


class Setting:
    """A cache with jobs, and a queue beside it."""

    def __init__(self, lists: Lists, *names: str, namespaces: Sequence[str] = ()) -> None:
        self.cache, self.now, self.changed, self.moved = Cache(), NOW, list[str](), list[str]()
        metrics = Metrics(self.cache, WorkQueue(lambda: 0.0), WatchLiveness(lambda: 0.0), Requests(), "ml/rljob")
        self.metrics = metrics
        reader = CapacityReader(cast(Cluster, lists), namespaces, ())
        self.queue = Reservations(self.cache, reader, Rules(), metrics, lambda: self.now, self._note)
        self.names = names
        for index, name in enumerate(names):
            self.cache.put(_job(name, index))

    def _note(self, key: str, news: News) -> None:
        (self.moved if news is News.PROGRESS else self.changed).append(key)

    def reconcile(self, name: str) -> QueueDecision | None:
        raw = self.cache.job(f"ml/{name}")
        assert raw is not None
        job, world = job_of(raw), World(defaults=DEFAULTS)
        return self.queue.decision(job, raw, world, admitted(job, world))

    def ticket(self, name: str) -> Ticket:
        """Return the ticket of a job that nobody has asked about yet."""
        job = job_of(_job(name, 0))
        found = admitted(job, World(defaults=DEFAULTS))
        assert not isinstance(found, Claim)
        return ticket_of(found, NOW, (), has_pods=False, granted=None)

    def standings(self) -> list[Standing | None]:
        found = [self.reconcile(name) for name in self.names]
        return [decision.standing if decision else None for decision in found]


def _job(name: str, index: int, **metadata: Any) -> Manifest:
    raw = raw_job(name, **GPUS)
    uid, at = f"{index:08d}-0000-4000-8000-000000000000", f"2026-11-24T00:00:{index:02d}Z"
    raw["metadata"] |= {"uid": uid, "creationTimestamp": at, "resourceVersion": str(index + 1), **metadata}
    return raw


def running(lists: Lists, *names: str, until: int = 1, namespaces: Sequence[str] = ()) -> Setting:
    """Return the setting after so many decisions have changed."""

    async def scenario() -> Setting:
        setting = Setting(lists, *names, namespaces=namespaces)
        setting.standings()
        task = asyncio.create_task(setting.queue.run())
        await becomes_true(lambda: len(setting.changed) >= until)
        task.cancel()
        return setting

    return asyncio.run(scenario())


def test_one_of_two_jobs_gets_the_quota_and_both_are_told():
    setting = running(Lists(nodes=[NODE]), "a", "b", until=2)
    assert setting.changed == ["ml/a", "ml/b"]
    assert setting.standings() == [Standing.RESERVED, Standing.QUEUED]
    assert setting.queue.waiting == 1


def test_pods_of_others_take_room_and_those_of_the_queue_are_not_counted_twice():
    spec = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}], "nodeName": "n"}
    other = {"metadata": {"name": "x", "namespace": "ml"}, "spec": spec, "status": {"phase": "Running"}}
    mine = {**other, "metadata": {**other["metadata"], "labels": {"rljob.dev/job": "a"}}}
    assert running(Lists(nodes=[NODE], pods=[mine]), "a").standings() == [Standing.RESERVED]
    assert running(Lists(nodes=[NODE], pods=[other]), "a").standings() == [Standing.QUEUED]


def test_without_quotas_the_nodes_limit_and_pods_of_others_on_them_count():
    spec = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}], "nodeName": "n"}
    other = {"metadata": {"name": "x", "namespace": "others"}, "spec": spec, "status": {"phase": "Running"}}
    held, waits = Standing.RESERVED, Standing.QUEUED
    alone = running(Lists(resourcequotas=[], nodes=[NODE]), "a", "b", "c", until=3)
    beside = running(Lists(resourcequotas=[], nodes=[NODE], pods=[other]), "a", "b", "c", until=3)
    assert (alone.standings(), beside.standings()) == ([held, held, waits], [held, waits, waits])


def test_what_may_not_be_read_limits_nobody():
    lists = Lists()
    lists.refused = {"nodes": 403, "priorityclasses": 403, "limitranges": 403}
    assert running(lists, "a").standings() == [Standing.RESERVED]


def test_where_only_some_namespaces_are_seen_nodes_and_classes_are_not_asked_for():
    lists = Lists(nodes=[])
    assert running(lists, "a", namespaces=("ml",)).standings() == [Standing.RESERVED]
    assert {where.rpartition("/")[0] for where in lists.asked} == {"api/v1/namespaces/ml"}


@pytest.mark.parametrize(("first", "later"), [("b", "a"), ("a", "b")], ids=["the older later", "the newer later"])
def test_nothing_is_given_away_before_every_job_is_known_that_there_was_at_the_start(first: str, later: str):
    async def scenario() -> None:
        lists = Lists(nodes=[NODE])
        setting = Setting(lists, "a", "b")
        setting.reconcile(first)
        task = asyncio.create_task(setting.queue.run())
        await others_run()
        assert lists.asked == []
        setting.reconcile(later)
        await becomes_true(lambda: "ml/a" in setting.changed)
        task.cancel()
        assert setting.standings() == [Standing.RESERVED, Standing.QUEUED]

    asyncio.run(scenario())


def test_a_job_that_only_moves_up_can_wait_for_its_new_position():
    async def scenario() -> None:
        setting = Setting(Lists(nodes=[NODE]), "a", "b", "c")
        setting.standings()
        task = asyncio.create_task(setting.queue.run())
        await becomes_true(lambda: setting.changed == ["ml/a", "ml/b", "ml/c"])
        raw = setting.cache.job("ml/a")
        assert raw is not None
        setting.cache.remove(raw)
        setting.queue.forget("ml/a")
        await becomes_true(lambda: setting.changed[3:] == ["ml/b"])
        assert setting.moved == ["ml/c"]
        task.cancel()

    asyncio.run(scenario())


def after_others(*others: Manifest) -> tuple[Setting, list[str]]:
    """Return the setting in which `b` waits while other jobs that have come since the start are not known yet, and
    what was asked of the API server before `b` was decided on.
    """
    lists = Lists(nodes=[NODE])

    async def scenario() -> Setting:
        setting = Setting(lists)
        task = asyncio.create_task(setting.queue.run())
        await others_run()
        for raw in (*others, _job("b", 5)):
            setting.cache.put(raw)
        setting.reconcile("b")
        await others_run()
        task.cancel()
        return setting

    return asyncio.run(scenario()), lists.asked


def test_a_stream_of_new_jobs_does_not_stop_the_queue():
    setting, asked = after_others(_job("same-second", 5), _job("newer", 6))
    assert setting.queue.is_complete
    assert asked


def test_an_older_job_that_is_not_known_yet_stops_the_queue():
    setting, asked = after_others(_job("older", 4))
    assert (setting.queue.is_complete, asked) == (False, [])
    setting.reconcile("older")
    assert setting.queue.is_complete


def test_a_newer_job_that_may_hold_room_stops_the_queue_until_it_is_looked_at():
    setting, asked = after_others(_job("moved-here", 7) | {"status": {"phase": "Training"}})
    assert (setting.queue.is_complete, asked) == (False, [])
    setting.queue.skip("ml/moved-here")
    assert setting.queue.is_complete


def test_a_newer_job_whose_name_has_pods_stops_the_queue_until_it_is_looked_at():
    mine = pod("of-an-older-one", "workers")
    mine["metadata"]["labels"]["rljob.dev/job"] = "again"
    setting, asked = after_others(_job("again", 7), mine)
    assert (setting.queue.is_complete, asked) == (False, [])
    setting.reconcile("again")
    assert setting.queue.is_complete


def test_a_job_of_kueue_has_no_decision_here():
    setting = Setting(Lists(), "a")
    setting.cache.put(_job("k", 7, labels={"kueue.x-k8s.io/queue-name": "q"}))
    assert setting.reconcile("k") is None


def test_a_job_of_another_controller_has_no_decision_here():
    setting = Setting(Lists(), "a")
    raw = _job("k", 7)
    raw["spec"]["managedBy"] = "example.com/dispatcher"
    setting.cache.put(raw)
    assert setting.reconcile("k") is None


def test_a_refused_job_has_no_decision_and_does_not_stop_the_queue():
    async def scenario() -> None:
        setting = Setting(Lists(nodes=[NODE]), "a")
        bad = _job("bad", 7)
        bad["spec"]["training"]["steps"] = -1
        setting.cache.put(bad)
        assert setting.reconcile("bad") is None
        setting.reconcile("a")
        task = asyncio.create_task(setting.queue.run())
        await becomes_true(lambda: "ml/a" in setting.changed)
        task.cancel()

    asyncio.run(scenario())


def test_a_job_that_is_gone_frees_its_room():
    async def scenario() -> None:
        setting = Setting(Lists(nodes=[NODE]), "a", "b")
        setting.standings()
        task = asyncio.create_task(setting.queue.run())
        await becomes_true(lambda: len(setting.changed) == 2)
        raw = setting.cache.job("ml/a")
        assert raw is not None
        setting.cache.remove(raw)
        setting.queue.forget("ml/a")
        await becomes_true(lambda: setting.changed.count("ml/b") == 2)
        task.cancel()
        assert setting.reconcile("b") is not None
        assert setting.reconcile("b").is_reserved  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_a_look_that_fails_is_repeated(monkeypatch):
    monkeypatch.setattr("rljob_operator.reservations.RETRY_S", 0.001)
    monkeypatch.setattr("rljob_operator.cluster.reflector.RETRY_S", 0.001)

    async def scenario() -> None:
        lists = Lists(nodes=[NODE])
        lists.refused = {"pods": 500}
        setting = Setting(lists, "a")
        setting.standings()
        task = asyncio.create_task(setting.queue.run())
        await becomes_true(lambda: "api/v1/pods" in lists.asked)
        lists.refused = {}
        await becomes_true(lambda: setting.changed == ["ml/a"])
        task.cancel()

    asyncio.run(scenario())


def test_pods_of_others_that_come_and_go_are_seen_without_another_list():
    spec = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}], "nodeName": "n"}
    other = {"metadata": {"name": "x", "namespace": "ml"}, "spec": spec, "status": {"phase": "Running"}}

    async def scenario() -> None:
        lists = Lists(nodes=[NODE])
        reader = CapacityReader(cast(Cluster, lists), (), ())

        async def used() -> int:
            quota = (await reader.read(lambda _: False)).seen.quotas["ml"][0]
            return quota.used.get("requests.nvidia.com/gpu", 0) // 1000

        assert await used() == 0
        asked = list(lists.asked)
        for kind, expected in (("ADDED", 4), ("MODIFIED", 4), ("DELETED", 0)):
            lists.happens.setdefault("api/v1/pods", asyncio.Queue()).put_nowait((kind, other))
            await others_run()
            assert await used() == expected
        assert lists.asked == asked
        await reader.close()

    asyncio.run(scenario())


class WithoutRights(Lists):
    """An API server that refuses everything in one namespace: it was deleted, and the operator's Role with it."""

    async def lists(self, where: str, query: Sequence[tuple[str, str]], page: int) -> Any:
        if "/namespaces/gone/" in where:
            raise ClusterError(f"GET {where}: 403 Forbidden", 403)
        async for found in super().lists(where, query, page):
            yield found


def test_a_namespace_without_rights_does_not_stop_the_queue_of_the_others():
    setting = running(WithoutRights(), "a", "b", until=2, namespaces=("gone", "ml"))
    assert setting.standings() == [Standing.RESERVED, Standing.QUEUED]


def test_pods_of_a_cluster_that_may_not_be_read_are_not_taken_for_none():
    lists = Lists(nodes=[NODE])
    lists.refused = {"pods": 403}
    with pytest.raises(ClusterError):
        asyncio.run(CapacityReader(cast(Cluster, lists), (), None).read(lambda _: True))


class LargeReader:
    """Sees 3,000 namespaces with quotas, and 1,000 full nodes."""

    def __init__(self) -> None:
        four = Quota("gpus", {"requests.nvidia.com/gpu": 4000}, {})
        full = {"nvidia.com/gpu": 8000}
        there = Nodes(Node(f"n{i}", {"pods": 110_000, **full}, used=full) for i in range(1000))
        self.look = CapacityReading(Snapshot({f"team-{i}": (four,) for i in range(3000)}, {}, there, None))

    async def read(self, is_other: object) -> CapacityReading:
        return self.look


def test_a_pass_over_thousands_of_jobs_and_namespaces_never_stops_the_loop(caplog):
    """Measured is the time of the loop's own thread: other work on this machine does not count."""
    setting = Setting(Lists())
    rules = Rules()
    queue = Reservations(
        setting.cache, cast(CapacityReader, LargeReader()), rules, setting.metrics, lambda: NOW, lambda key, news: None
    )
    template = setting.ticket("a")
    for number in range(5000):
        key = f"team-{number % 3000}/job-{number}"
        each = replace(template, key=key, namespace=key.partition("/")[0], created=NOW + number)
        queue._ledger.put(each, is_shown=False)
    caplog.set_level("WARNING")

    at: list[float] = []

    async def scenario() -> None:
        passing, loop = asyncio.create_task(queue._pass()), asyncio.get_running_loop()

        def tick() -> None:
            at.append(time.thread_time())
            if not passing.done():
                loop.call_soon(tick)

        tick()
        await passing

    with measured() as spent:
        asyncio.run(scenario())
    assert queue.waiting == 4999  # one of them is lent nodes
    assert max(later - earlier for earlier, later in pairwise(at)) < 0.25 * spent.slowness
