"""Following objects: a list, a watch, and what is done when either ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import cast

import pytest

from rljob_operator.cluster import reflector
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.cluster.reflector import PAGE, Kept, Reflector
from rljob_operator.identity import Manifest
from support.waiting import becomes_true


def thing(uid: str, version: str = "1") -> Manifest:
    return {"metadata": {"uid": uid, "resourceVersion": version}}


def event(kind: str, uid: str, version: str) -> Manifest:
    return {"type": kind, "object": thing(uid, version)}


class Server:
    """An API server whose lists and watches are written down beforehand; after them it is silent."""

    def __init__(
        self, lists: Sequence[Sequence[str] | ClusterError], watches: Sequence[Sequence[Manifest | ClusterError]]
    ) -> None:
        self._lists, self._watches = list(lists), list(watches)
        self.asked: list[str] = []
        self.closed = 0

    async def lists(self, where: str, query: Sequence[tuple[str, str]], limit: int) -> AsyncIterator[Manifest]:
        assert (where, list(query), limit) == ("api/v1/pods", [("fieldSelector", "alive")], PAGE)
        self.asked.append("list")
        found = self._lists.pop(0)
        if isinstance(found, ClusterError):
            raise found
        for page, uid in enumerate(found):
            yield {"metadata": {"resourceVersion": f"10{page}"}, "items": [thing(uid)]}
        if not found:
            yield {"metadata": {"resourceVersion": "100"}, "items": []}

    async def events(
        self, where: str, query: Sequence[tuple[str, str]], version: str
    ) -> AsyncGenerator[Manifest, None]:
        assert (where, list(query)) == ("api/v1/pods", [("fieldSelector", "alive")])
        self.asked.append(f"watch {version}")
        try:
            if not self._watches:
                await asyncio.Event().wait()
            for each in self._watches.pop(0):
                if isinstance(each, ClusterError):
                    raise each
                yield each
        finally:
            self.closed += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "RETRY_S", 0.0)
    monkeypatch.setattr(reflector, "PAUSE_S", 0.0)


def followed(server: Server, requests: int) -> tuple[list[str], Reflector]:
    """Follow until so many requests were made; return what was put and removed."""
    changes: list[str] = []

    async def scenario() -> Reflector:
        found = Reflector(
            cast(Cluster, server),
            "api/v1/pods",
            [("fieldSelector", "alive")],
            Kept(
                lambda raw: changes.append(f"+{raw['metadata']['uid']}"),
                lambda uid: changes.append(f"-{uid}"),
            ),
        )
        assert found.heard_at is None
        task = asyncio.create_task(found.follow())
        await becomes_true(lambda: len(server.asked) >= requests)
        task.cancel()
        return found

    return changes, asyncio.run(scenario())


def test_a_list_comes_first_and_the_watch_goes_on_from_its_first_page() -> None:
    server = Server([["a", "b"]], [])
    changes, found = followed(server, 2)
    assert changes == ["+a", "+b"]
    assert server.asked == ["list", "watch 100"]
    assert found.heard_at is not None


def test_changes_are_passed_on_and_a_bookmark_is_none() -> None:
    watch = [event("ADDED", "b", "101"), event("MODIFIED", "a", "102"), event("DELETED", "b", "103")]
    server = Server([["a"]], [[*watch, event("BOOKMARK", "", "110")]])
    changes, _ = followed(server, 3)
    assert changes == ["+a", "+b", "+a", "-b"]
    assert server.asked == ["list", "watch 100", "watch 110"]


@pytest.mark.parametrize(
    "end", [{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}, ClusterError("WATCH: broken", 0)]
)
def test_what_is_gone_meanwhile_is_removed_when_a_watch_has_failed(end: Manifest | ClusterError) -> None:
    server = Server(
        [["a", "b"], ["b", "d"], ["d"]], [[event("ADDED", "c", "101"), end], [event("DELETED", "b", "120"), end]]
    )
    changes, _ = followed(server, 6)
    assert changes[:3] == ["+a", "+b", "+c"]
    assert sorted(changes[3:]) == sorted(["+b", "+d", "-a", "-c", "-b", "+d"])
    assert server.asked == ["list", "watch 100", "list", "watch 100", "list", "watch 100"]
    assert server.closed == 3


def test_a_list_that_fails_is_tried_again_and_until_then_nothing_is_known() -> None:
    server = Server([ClusterError("GET: 503", 503), ["a"]], [])
    changes, _ = followed(server, 3)
    assert changes == ["+a"]
    assert server.asked == ["list", "list", "watch 100"]


def test_before_the_first_list_is_whole_nothing_was_heard() -> None:
    server = Server([ClusterError("GET: 503", 503)] * 100, [])
    _, found = followed(server, 3)
    assert found.heard_at is None


class Picky:
    """Sees all but one object."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        if raw["metadata"]["uid"] == "bad":
            raise KeyError("spec")
        self.changes.append(f"{'-' if is_gone else '+'}{raw['metadata']['uid']}")

    def listed(self, uids: Collection[str], version: str) -> None:
        self.changes.append(f"{sorted(uids)} {version}")

    def failed(self, error: ClusterError) -> None:
        self.changes.append(f"failed {error.status}")


def seen_by(sink: Picky, server: Server, requests: int) -> Reflector:
    async def scenario() -> Reflector:
        found = Reflector(cast(Cluster, server), "api/v1/pods", [("fieldSelector", "alive")], sink)
        task = asyncio.create_task(found.follow())
        await becomes_true(lambda: len(server.asked) >= requests)
        task.cancel()
        return found

    return asyncio.run(scenario())


def test_an_object_that_cannot_be_read_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sink = Picky()
    watch = [event("ADDED", "bad", "101"), event("DELETED", "a", "102")]
    found = seen_by(sink, Server([["a", "bad", "c"]], [watch]), 3)
    assert sink.changes == ["+a", "+c", "['a', 'bad', 'c'] 100", "-a"]
    assert found.unreadable == 2
    assert "outcome=skipped: KeyError: 'spec'" in caplog.text


def test_an_answer_of_another_shape_is_a_failure_and_no_end(caplog: pytest.LogCaptureFixture) -> None:
    sink = Picky()
    server = Server([["a"], ["a"]], [[{"type": "ADDED", "object": {}}]])
    seen_by(sink, server, 4)
    assert server.asked == ["list", "watch 100", "list", "watch 100"]
    assert sink.changes == ["+a", "['a'] 100", "failed 0", "+a", "['a'] 100"]
    assert "an answer of another shape: KeyError" in caplog.text
