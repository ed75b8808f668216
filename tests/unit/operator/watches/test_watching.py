"""What the operator does with what its watches show: cache, queue, and what is expected of each place."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import DEAD_AFTER_S, WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import Cluster, ClusterError, GoneError
from rljob_operator.cluster.reflector import PAGE, Reflector, named
from rljob_operator.identity import Manifest
from rljob_operator.watches.watching import FORGET_S, Inbox, Place, Watched, follow, places
from support.operator.operator_world import raw_job

FORBIDDEN = ClusterError("GET rljobs: 403 Forbidden", 403)
BROKEN = ClusterError("GET rljobs: 500 etcdserver: request timed out", 500)


@dataclass
class Desk:
    """An inbox, and what it is made of."""

    now: float = 0.0
    skipped: int = 0

    def __post_init__(self) -> None:
        self.cache, self.queue, self.watches = Cache(), WorkQueue(self.clock), WatchLiveness(self.clock)
        self.inbox = Inbox(self.cache, self.queue, self.watches, self.skip)

    def skip(self) -> None:
        self.skipped += 1

    def clock(self) -> float:
        return self.now

    def watched(self, kind: str = "RLJob", namespace: str | None = "ml") -> Watched:
        return Watched(Place(kind, namespace), self.inbox, self.clock)

    def due(self) -> list[str]:
        found = []
        while self.queue.waiting_s():
            found.append(asyncio.run(self.queue.get()))
            self.queue.done(found[-1], None)
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def listed_item() -> Manifest:
    """Return a job as a list has it: without its kind."""
    return {key: value for key, value in raw_job().items() if key not in ("apiVersion", "kind")}


def test_an_item_of_a_list_gets_the_kind_that_it_was_asked_for_by(desk):
    desk.watched().seen(listed_item(), is_gone=False)
    found = desk.cache.job("ml/sums")
    assert found is not None
    assert (found["kind"], found["apiVersion"], found["spec"]) == ("RLJob", "rljob.dev/v1alpha1", raw_job()["spec"])
    assert desk.due() == ["ml/sums"]


def test_a_change_is_looked_at_and_its_echo_is_not(desk):
    for _ in range(2):
        desk.watched().seen(listed_item(), is_gone=False)
    assert desk.due() == ["ml/sums"]
    desk.watched().seen(listed_item(), is_gone=True)
    assert desk.due() == ["ml/sums"]
    assert desk.cache.jobs() == ()


def test_rayclusters_of_others_are_not_kept(desk):
    metadata = {"name": "mine", "namespace": "ml", "uid": "1", "resourceVersion": "1"}
    desk.watched("RayCluster").seen({"metadata": metadata}, is_gone=False)
    assert (desk.cache.jobs(), desk.due(), desk.skipped) == ((), [], 0)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": "x"}},
        {"metadata": {"name": "x", "namespace": "ml", "labels": 5}},
        7,
    ],
)
def test_an_object_that_cannot_be_read_is_counted_and_all_others_are_seen(desk, raw: Any, caplog):
    desk.inbox.take(raw, False, "RLJob")
    desk.watched().seen(listed_item(), is_gone=False)
    assert desk.skipped == 1
    assert f"name={named(raw)} outcome=skipped" in caplog.text
    assert desk.due() == ["ml/sums"]


def test_rayclusters_are_watched_without_a_label():
    """One whose label is removed would look as if it were gone."""
    assert Place("RayCluster", None).query == []
    assert Place("Pod", None).query == [("labelSelector", "rljob.dev/job")]


def test_there_is_a_watch_for_each_kind_in_each_namespace(desk):
    assert list(places(("RLJob", "Pod"), ())) == [Place("RLJob", None), Place("Pod", None)]
    wanted = places(("RLJob", "Pod"), ("a", "b"))
    found = follow(cast(Cluster, None), desk.inbox, wanted, desk.clock)
    assert [each._where for each in found] == [
        "apis/rljob.dev/v1alpha1/namespaces/a/rljobs",
        "apis/rljob.dev/v1alpha1/namespaces/b/rljobs",
        "api/v1/namespaces/a/pods",
        "api/v1/namespaces/b/pods",
    ]


def test_a_list_that_begins_a_watch_ends_what_is_expected_of_its_objects(desk):
    """No event comes of what was before the watch began."""
    desk.watches.expect(raw_job())
    watched = desk.watched()
    desk.now = DEAD_AFTER_S + 1
    assert not desk.watches.is_alive
    watched.seen(listed_item(), is_gone=False)
    assert desk.watches.is_alive
    newer = {**raw_job(), "metadata": {**raw_job()["metadata"], "resourceVersion": "5"}}
    desk.watches.expect(newer)
    watched.listed([], "9")
    desk.now += DEAD_AFTER_S + 1
    assert desk.watches.is_alive
    assert desk.cache.jobs() == ()


@pytest.mark.parametrize("error", [FORBIDDEN, BROKEN])
@pytest.mark.parametrize("namespace", ["ml", None])
def test_nothing_is_expected_of_a_place_that_cannot_be_read(desk, error, namespace):
    watched = desk.watched(namespace=namespace)
    desk.watches.expect(raw_job())
    watched.failed(error)
    desk.watches.expect(raw_job())
    desk.now = DEAD_AFTER_S + 1
    assert (desk.watches.is_alive, desk.watches.lost) == (True, 1)
    watched.listed(["x"], "9")
    desk.watches.expect(raw_job())
    desk.now += DEAD_AFTER_S + 1
    assert (desk.watches.is_alive, desk.watches.lost) == (False, 0), "liveness proves again that events arrive"


def test_what_is_expected_of_other_places_stays_expected(desk):
    desk.watches.expect(raw_job())
    desk.watched("Pod").failed(FORBIDDEN)
    desk.watched(namespace="others").failed(FORBIDDEN)
    desk.now = DEAD_AFTER_S + 1
    assert not desk.watches.is_alive


def test_jobs_of_a_namespace_that_was_never_read_whole_are_not_known(desk):
    """Without its pods, a job that trains would look as if it had lost them."""
    desk.watched().listed([], "1")
    pods = desk.watched("Pod")
    pods.failed(FORBIDDEN)
    assert (desk.inbox.is_known("ml"), desk.inbox.is_known("others")) == (False, True)
    desk.watched().seen(listed_item(), is_gone=False)
    desk.due()
    pods.listed([], "2")
    assert desk.inbox.is_known("ml")
    assert desk.due() == ["ml/sums"]
    pods.failed(FORBIDDEN)
    assert desk.inbox.is_known("ml"), "what was known once is used"


def test_kinds_of_projects_that_are_not_installed_hide_nothing(desk):
    desk.watched("Workload", None).failed(GoneError("GET workloads: 404", 404))
    assert desk.inbox.is_known("ml")
    desk.watched("Workload", None).failed(FORBIDDEN)
    assert not desk.inbox.is_known("ml")


def test_a_namespace_whose_jobs_may_not_be_read_for_long_holds_nothing_until_it_comes_back(desk):
    watched = desk.watched()
    watched.seen(listed_item(), is_gone=False)
    desk.due()
    watched.failed(FORBIDDEN)
    desk.now = FORGET_S - 1
    watched.failed(FORBIDDEN)
    assert desk.cache.jobs() == ("ml/sums",)
    desk.now = FORGET_S
    watched.failed(FORBIDDEN)
    assert (desk.cache.jobs(), desk.due()) == ((), ["ml/sums"])
    watched.seen(listed_item(), is_gone=False)
    assert (desk.cache.jobs(), desk.due()) == (("ml/sums",), ["ml/sums"])


@pytest.mark.parametrize(
    ("kind", "namespace", "error"), [("Pod", "ml", FORBIDDEN), ("RLJob", None, FORBIDDEN), ("RLJob", "ml", BROKEN)]
)
def test_nothing_else_makes_a_namespace_forgotten(desk, kind, namespace, error):
    desk.watched().seen(listed_item(), is_gone=False)
    watched = desk.watched(kind, namespace)
    for desk.now in (0.0, 1e6):
        watched.failed(error)
    assert desk.cache.jobs() == ("ml/sums",)


def test_an_interrupted_refusal_begins_anew(desk):
    watched = desk.watched()
    watched.seen(listed_item(), is_gone=False)
    for desk.now, error in ((0.0, FORBIDDEN), (FORGET_S - 1, BROKEN), (FORGET_S, FORBIDDEN)):
        watched.failed(error)
    assert desk.cache.jobs() == ("ml/sums",)


def test_a_page_of_the_operator_s_watches_is_large():
    (found,) = follow(cast(Cluster, None), Desk().inbox, [Place("Pod", None)], lambda: 0.0)
    assert isinstance(found, Reflector) and found._page > PAGE
