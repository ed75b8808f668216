"""The lists of everything: what is found, what is forgotten, and what cannot be listed."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api.status import ToolPodOwner
from rljob_operator import process
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import ClusterError, GoneError, Page
from rljob_operator.cluster.requests import Requests
from rljob_operator.metrics import Metrics
from rljob_operator.process import Operator
from rljob_operator.world.world import Defaults
from support.operator.listing_cluster import ClusterWithoutOthers, operator_of
from support.operator.operator_world import raw_job


class EmptyCluster:
    """An API server that has nothing any more."""

    async def pages(self, kind: str, namespaces: Any) -> Any:
        return
        yield


def test_everything_is_listed_again_every_five_minutes(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(process.asyncio, "sleep", sleep)
    cache, queue = Cache(), WorkQueue(lambda: 0.0)
    cache.put(raw_job())
    settings: Any = SimpleNamespace(namespaces=(), defaults=Defaults())
    cluster: Any = EmptyCluster()
    unused: Any = None
    watches = WatchLiveness(lambda: 0.0)
    metrics = Metrics(cache, queue, watches, Requests(), "ml/rljob")
    operator = Operator(settings, cluster, cache, queue, watches, unused, metrics, unused, unused)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(operator.resync_for_ever())
    assert pauses == [300.0, 300.0, 300.0]
    assert cache.jobs() == ()
    assert asyncio.run(queue.get()) == "ml/sums", "its finalizer and what belongs to it are looked at"


def test_without_the_crds_of_other_projects_the_operator_runs_and_says_so(caplog: pytest.LogCaptureFixture):
    operator = operator_of(ClusterWithoutOthers())
    asyncio.run(operator.resync())
    assert operator.cache.jobs() == ("ml/sums",)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == [
        "action=list kind=Workload outcome=unserved",
        "action=list kind=Sandbox outcome=unserved",
    ]


def test_a_list_without_kuberay_s_crd_fails_after_all_others():
    with pytest.raises(GoneError):
        asyncio.run(operator_of(ClusterWithoutOthers("RayCluster")).resync())


@pytest.mark.parametrize(
    ("defaults", "watched"),
    [
        (Defaults(), set()),
        (Defaults(has_kueue=True), {"Workload"}),
        (Defaults(tool_pod_owner=ToolPodOwner.SANDBOX), {"Sandbox"}),
    ],
)
def test_kinds_of_other_projects_are_watched_only_where_the_operator_works_with_them(defaults, watched):
    operator = operator_of(ClusterWithoutOthers(), defaults)
    assert {"Workload", "Sandbox"} & set(operator.kinds) == watched


def test_a_list_withdraws_what_is_expected_of_objects_that_are_gone():
    """No event reports what was gone before the watch began: /healthz failed for ever."""
    now = [0.0]
    operator = operator_of(EmptyCluster())
    operator = replace(operator, watches=WatchLiveness(lambda: now[0]))
    operator.cache.put(raw_job())
    operator.watches.expect(raw_job())
    now[0] = 1e6
    assert not operator.watches.is_alive
    asyncio.run(operator.resync())
    assert operator.watches.is_alive


class WithoutPods:
    """An API server that refuses to list pods in one of the namespaces, and has a job in each."""

    def __init__(self) -> None:
        self.refused = True

    async def pages(self, kind: str, namespaces: Any) -> Any:
        (namespace,) = namespaces
        if kind == "Pod" and namespace == "b" and self.refused:
            raise ClusterError("GET pods: 403 Forbidden", 403)
        raw = raw_job()
        raw["metadata"].update(namespace=namespace, uid=f"of-{namespace}")
        yield Page((raw,) if kind == "RLJob" else (), "5")


def test_a_job_whose_pods_were_never_listed_is_left_alone_and_the_queue_does_not_wait_for_it():
    """It would look as if it had lost them."""
    cluster, reconciled, skipped = WithoutPods(), list[str](), list[str]()

    async def reconcile(key: str) -> None:
        reconciled.append(key)

    parts: Any = SimpleNamespace(reconcile=reconcile, skip=skipped.append)
    settings: Any = SimpleNamespace(namespaces=("a", "b"), defaults=Defaults())
    operator = replace(operator_of(cluster), settings=settings, reconciler=parts, reservations=parts)

    async def looks() -> list[str]:
        await operator.resync()
        for key in operator.cache.jobs():
            await operator._reconcile(key)
        return reconciled

    assert asyncio.run(looks()) == ["a/sums"]
    assert skipped == ["b/sums"]
    cluster.refused = False
    assert asyncio.run(looks()) == ["a/sums", "a/sums", "b/sums"]
