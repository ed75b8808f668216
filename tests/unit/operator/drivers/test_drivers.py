"""The watchers of all jobs: what wakes a reconcile, and that heads which never answer hold up no other job."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from rljob_operator.cache.cache import Cache, Key
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.driver_api import Control, RayJobs
from rljob_operator.drivers.drivers import Drivers, Watcher
from rljob_operator.drivers.sender import Order, Submit
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Follow, Orders
from rljob_operator.process import Operator
from rljob_operator.reconcile import Reconciler
from rljob_operator.world.driver_news import News
from rljob_operator.world.world import DriverState
from support.operator.fake_cluster import FakeCluster, pod
from support.operator.fake_head import trains
from support.operator.operator_world import DEFAULTS, NOW, raw_job
from support.waiting import becomes_true

FOLLOW = Follow("sums-attempt-1", 1, "ml", "sums-driver")
SILENT = 20
WORKERS = 8


class Answer:
    """What a head says."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self.content = self
        self._text = text

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._text.encode()


class Heads:
    """An HTTP session with all heads, which know no driver yet. Some accept a connection and never answer."""

    def __init__(self, is_silent: Callable[[str, str], bool]) -> None:
        """`is_silent` says of a method and a URL whether they are never answered."""
        self._is_silent = is_silent
        self.asked: list[str] = []
        self.submitted: list[str] = []

    def request(self, method: str, url: str, **_: Any) -> "Heads.Request":
        return Heads.Request(self, method, url)

    class Request:
        def __init__(self, heads: "Heads", method: str, url: str) -> None:
            self._heads, self._method, self._url = heads, method, url

        async def __aenter__(self) -> Answer:
            heads, method, url = self._heads, self._method, self._url
            heads.asked.append(f"{method} {url}")
            if heads._is_silent(method, url):
                await asyncio.Event().wait()
            if method == "POST":
                heads.submitted.append(url)
                return Answer(200, "{}")
            return Answer(404, f"Job {url.rpartition('/')[2]} does not exist")

        async def __aexit__(self, *_: object) -> None:
            return None


class ManyJobs(FakeCluster):
    """An API server with several jobs, whose answers reach the cache at once."""

    def __init__(self, cache: Cache) -> None:
        super().__init__({})
        self._cache = cache

    async def write_status(self, job: Any, status: Any) -> Manifest:
        self.raw = self._cache.job(job.key) or {}
        return await super().write_status(job, status)

    async def create_secret(self, wanted: Manifest) -> Manifest:
        self.secret = None
        return await super().create_secret(wanted)


def test_twenty_heads_that_never_answer_an_order_do_not_delay_the_reconcile_of_another_job():
    """More of them than workers: an order within a reconcile would hold its worker until the request times out."""

    async def scenario() -> None:
        clock = lambda: NOW  # noqa: E731
        cache, queue, watches = Cache(), WorkQueue(clock), WatchLiveness(clock)
        heads = Heads(lambda method, url: method == "POST" and "silent" in url)
        drivers = Drivers(
            cast(Any, heads),
            lambda namespace, service, port: f"http://{service}",
            clock,
            lambda key, news: queue.add(key),
            lambda order, is_accepted: None,
        )
        metrics = Metrics(cache, queue, watches, Requests(), "ml/rljob")
        cluster = cast(Cluster, ManyJobs(cache))
        reconciler = Reconciler(cluster, cache, drivers, watches, metrics, DEFAULTS, Keys.of(b"k" * 32), clock)
        unused: Any = None
        operator = Operator(unused, cluster, cache, queue, watches, drivers, metrics, reconciler, unused)
        names = [*(f"silent-{number}" for number in range(SILENT)), "healthy"]
        for number, name in enumerate(names):
            queue.add(there_with_ready_pods(cache, name, number))
        workers = [asyncio.create_task(operator.work()) for _ in range(WORKERS)]
        try:
            while not heads.submitted:
                await asyncio.sleep(0)
            while sum("POST" in each for each in heads.asked) < SILENT + 1:
                await asyncio.sleep(0)
            assert set(heads.submitted) == {"http://healthy-00020-driver/api/jobs/"}
        finally:
            for worker in workers:
                worker.cancel()
            await drivers.close()

    asyncio.run(scenario())


def there_with_ready_pods(cache: Cache, name: str, number: int) -> Key:
    """Put a job with its ready pods into the cache, and return its key."""
    raw = raw_job(name)
    uid = f"{number:05d}c00-0000-4000-8000-000000000000"
    raw["metadata"] |= {"uid": uid, "resourceVersion": "1"}
    cache.put(raw)
    for group in ("headgroup", "trainer", "rollout"):
        each = pod(f"{name}-{group}", group, is_head=group == "headgroup")
        each["metadata"]["labels"] |= {"rljob.dev/job": name, "ray.io/cluster": f"{name}-{number:05d}-1"}
        cache.put(each)
    return f"ml/{name}"


class Trains:
    """An HTTP session with a head whose driver reports once, and then ends."""

    def __init__(self) -> None:
        self.of_ray = 0
        self.reports = 0

    def request(self, method: str, url: str, **_: Any) -> "Trains":
        self._url = url
        return self

    async def __aenter__(self) -> Answer:
        if self._url.startswith("http://ray"):
            self.of_ray += 1
            return Answer(200, '{"status": "RUNNING"}' if self.reports < 2 else '{"status": "SUCCEEDED"}')
        self.reports += 1
        if self.reports > 1:
            return Answer(503, "no driver listens")
        return Answer(200, trains(1, 2).model_dump_json(by_alias=True))

    async def __aexit__(self, *_: object) -> None:
        return None


def watcher(heads: Heads, news: list[News], answered: list[tuple[Order, bool]]) -> Watcher:
    session: Any = heads
    return Watcher(
        FOLLOW,
        RayJobs(session, "http://ray", "token"),
        Control(session, "http://driver", "a token"),
        lambda: NOW,
        news.append,
        lambda order, is_accepted: answered.append((order, is_accepted)),
    )


def test_a_watcher_begins_with_what_it_follows():
    async def scenario() -> None:
        driver = watcher(Heads(lambda *_: False), [], []).driver
        assert (driver.submission_id, driver.since) == ("sums-attempt-1", NOW)

    asyncio.run(scenario())


def test_ray_is_asked_at_once_when_a_driver_that_has_answered_no_longer_does(monkeypatch):
    monkeypatch.setattr("rljob_operator.drivers.drivers.LOOK_S", 3600.0)

    async def scenario() -> None:
        watched = watcher(cast(Any, Trains()), [], [])
        task = asyncio.create_task(watched.run())
        await becomes_true(lambda: watched.driver.state is DriverState.SUCCEEDED)
        task.cancel()

    asyncio.run(scenario())


def test_an_accepted_order_wakes_the_reconcile_and_lets_ray_be_asked_at_once():
    async def scenario() -> None:
        heads, news, answered = Heads(lambda *_: False), list[News](), list[tuple[Order, bool]]()
        watched = watcher(heads, news, answered)
        task = asyncio.create_task(watched.run())
        while watched.driver.state is not DriverState.ABSENT:
            await asyncio.sleep(0)
        news.clear()
        asked = len(heads.asked)
        watched.give(Orders(submit="exec driver"))
        while len(heads.asked) < asked + 2:
            await asyncio.sleep(0)
        task.cancel()
        assert answered[0] == (Submit("exec driver"), True)
        assert news == [News.CHANGE]
        assert heads.asked[asked:] == ["POST http://ray/api/jobs/", "GET http://ray/api/jobs/sums-attempt-1"]

    asyncio.run(scenario())
