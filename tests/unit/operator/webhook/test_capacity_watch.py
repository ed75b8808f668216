"""What the webhook follows, and when it knows enough to judge."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import cast

import pytest

from rljob_operator.capacity.inventory import Kind
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest
from rljob_operator.webhook import capacity_watch
from rljob_operator.webhook.capacity_watch import CapacityWatch, paths
from support.waiting import becomes_true

KUEUE = "apis/kueue.x-k8s.io/v1beta2"


def test_all_namespaces_are_followed_by_one_path_each() -> None:
    assert list(paths((), has_kueue=False)) == [
        (Kind.QUOTAS, "api/v1/resourcequotas"),
        (Kind.LIMITS, "api/v1/limitranges"),
        (Kind.NODES, "api/v1/nodes"),
        (Kind.PODS, "api/v1/pods"),
    ]


def test_where_only_some_namespaces_are_seen_nodes_are_followed_all_the_same() -> None:
    found = [path for _, path in paths(("ml", "lab"), has_kueue=True)]
    assert found == [
        "api/v1/namespaces/ml/resourcequotas",
        "api/v1/namespaces/lab/resourcequotas",
        "api/v1/namespaces/ml/limitranges",
        "api/v1/namespaces/lab/limitranges",
        "api/v1/nodes",
        "api/v1/namespaces/ml/pods",
        "api/v1/namespaces/lab/pods",
        f"{KUEUE}/namespaces/ml/localqueues",
        f"{KUEUE}/namespaces/lab/localqueues",
        f"{KUEUE}/clusterqueues",
        f"{KUEUE}/cohorts",
    ]


class Server:
    """An API server with one quota; what it refuses, it refuses for ever."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.watched: set[str] = set()
        self.selected: dict[str, list[tuple[str, str]]] = {}

    async def lists(self, where: str, query: Sequence[tuple[str, str]], limit: int) -> AsyncIterator[Manifest]:
        if where in self._refused:
            self.watched.add(where)
            raise ClusterError(f"GET {where}: 403", 403)
        self.selected[where] = list(query)
        quota = {"metadata": {"uid": "q", "namespace": "ml", "name": "few"}, "spec": {"hard": {"pods": "2"}}}
        items = [quota] if where.endswith("resourcequotas") else []
        yield {"metadata": {"resourceVersion": "1"}, "items": items}

    async def events(
        self, where: str, query: Sequence[tuple[str, str]], version: str
    ) -> AsyncGenerator[Manifest, None]:
        self.watched.add(where)
        await asyncio.Event().wait()
        yield {}


def seen(server: Server) -> list[str] | None:
    """Return the names of the quotas of the namespace ml once all is watched; None: not all is known."""

    async def scenario() -> list[str] | None:
        found = CapacityWatch(cast(Cluster, server), (), None, False)
        assert found.seen is None
        task = asyncio.create_task(found.keep())
        await becomes_true(lambda: len(server.watched) == 4)
        known = found.seen
        task.cancel()
        return None if known is None else [quota.name for quota in known.of("ml").quotas]

    return asyncio.run(scenario())


def test_all_that_was_listed_is_seen_and_only_pods_that_have_not_ended_are_asked_for() -> None:
    server = Server()
    assert seen(server) == ["few"]
    assert server.selected["api/v1/pods"] == [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")]
    assert server.selected["api/v1/nodes"] == []


@pytest.mark.parametrize("missing", ["api/v1/pods", "api/v1/nodes", "api/v1/limitranges"])
def test_while_one_kind_is_not_known_nothing_is_judged(missing: str) -> None:
    assert seen(Server(missing)) is None


def test_what_was_last_heard_of_long_ago_is_not_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_watch, "OLD_S", 0.0)
    assert seen(Server()) is None
