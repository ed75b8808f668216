"""What the webhook's server answers: to reviews of the API server, to probes, and to Prometheus."""

import asyncio
import json
import multiprocessing
import os
import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rljob_operator.identity import Manifest
from rljob_operator.webhook.certificate_renewal import Kept, renewed
from rljob_operator.webhook.connections import Connections
from rljob_operator.webhook.metrics import Metrics
from rljob_operator.webhook.review.answer import Answer
from rljob_operator.webhook.server import Server
from rljob_operator.webhook.worker_processes import Limits, TooMuchError, Worker, Workers
from support.waiting import becomes_true

PATH = "/" + "p" * 43
REVIEW = {"request": {"uid": "u", "namespace": "ml", "name": "sums"}}


@pytest.fixture(scope="module")
def kept() -> Kept:
    return renewed(None, ("127.0.0.1",), datetime.now(UTC))


def judge(request: Manifest) -> Answer:
    match request.get("name"):
        case "odd":
            raise RuntimeError("it cannot be judged")
        case "endless":
            while True:
                pass
        case "endless and idle":
            threading.Event().wait()
        case "large":
            bytearray(2 * LIMITS.more_bytes)
        case "deep":
            judge(request)
    return Answer("no", outcome="Never")


LIMITS = Limits(cpu_s=1, wait_s=60.0)


async def asked(
    kept: Kept | None, path: str, body: bytes | None = None, knows: str | None = PATH
) -> tuple[int, str, str]:
    """Return status, content type and body of an answer; a body is posted to the reviews."""
    server = Server(judge, Metrics(), LIMITS)
    if kept is not None:
        server.use(kept.server)
    if knows is not None:
        server.use_path(knows)
    reviews, pages = await server.start("127.0.0.1", 0, 0)
    trusted = ssl.create_default_context(cadata=kept.authority.certificate) if kept is not None else None
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{pages}{path}" if body is None else f"https://127.0.0.1:{reviews}{path}"
            kind: dict[str, Any] = {"data": body, "ssl": trusted} if body is not None else {}
            async with session.request("GET" if body is None else "POST", url, **kind) as found:
                return found.status, found.headers.get("Content-Type", ""), await found.text()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("has_one", "path", "status", "text"),
    [
        (False, PATH, 503, "no certificate yet\n"),
        (True, None, 503, "no path yet\n"),
        (True, PATH, 200, "ok\n"),
    ],
)
def test_it_is_ready_once_it_has_a_certificate_and_a_path(
    kept: Kept, has_one: bool, path: str | None, status: int, text: str
):
    found = asyncio.run(asked(kept if has_one else None, "/healthz", knows=path))
    assert (found[0], found[2]) == (status, text)


def test_its_metrics_are_in_the_format_of_prometheus(kept: Kept):
    status, kind, text = asyncio.run(asked(kept, "/metrics"))
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'rljob_webhook_reviews_total{reason="Never"} 0.0' in text


def test_a_review_is_answered_with_what_was_judged(kept: Kept):
    status, kind, text = asyncio.run(asked(kept, PATH, json.dumps(REVIEW).encode()))
    response = json.loads(text)["response"]
    assert (status, kind.partition(";")[0]) == (200, "application/json")
    assert (response["uid"], response["allowed"], response["status"]["message"]) == ("u", False, "no")


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}"])
def test_what_is_no_review_is_a_bad_request(kept: Kept, body: bytes):
    assert asyncio.run(asked(kept, PATH, body))[::2] == (400, "the body is not an AdmissionReview\n")


def test_a_review_that_cannot_be_judged_is_an_error_of_the_server(kept: Kept):
    body = json.dumps({"request": {"uid": "u", "name": "odd"}}).encode()
    found = asyncio.run(asked(kept, PATH, body))
    assert found[::2] == (500, "the review has failed; see the log of the webhook\n")


@pytest.mark.parametrize("path", ["/", "/validate", PATH + "p", PATH[:-1], PATH + "/", PATH + "%20", "/healthz"])
def test_who_does_not_know_the_path_learns_nothing(kept: Kept, path: str):
    found = asyncio.run(asked(kept, path, json.dumps(REVIEW).encode()))
    assert (found[0], found[2]) == (404, "")


def test_nothing_is_answered_before_there_is_a_path(kept: Kept):
    assert asyncio.run(asked(kept, PATH, json.dumps(REVIEW).encode(), knows=None))[0] == 404


def test_the_path_before_is_answered_until_the_next():
    server = Server(judge, Metrics())
    for path in ("/a", "/b", "/b", "/a", "/c"):
        server.use_path(path)
    assert [each for each in "abc" if server._is_known(f"/{each}")] == ["b", "c"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("endless", "the manifest cannot be checked: it takes longer than 1 s to check; make it smaller"),
        ("large", "the manifest cannot be checked: it takes more than 96 MiB of memory to check; make it smaller"),
    ],
)
def test_a_manifest_that_takes_too_much_is_refused_with_the_cause(kept: Kept, name: str, said: str):
    body = json.dumps({"kind": "AdmissionReview", "request": {"uid": "u-1", "name": name}}).encode()
    status, _, text = asyncio.run(asked(kept, PATH, body))
    response = json.loads(text)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u-1", False)
    assert response["status"]["message"] == said


def test_a_child_that_worked_all_the_time_on_a_busy_machine_has_taken_too_much(kept: Kept):
    async def scenario() -> str:
        worker = Worker(lambda _: bytes(str(judge({"name": "endless"})), "utf-8"), Limits())
        work = asyncio.create_task(worker.asked(b"x"))
        await becomes_true(lambda: worker._cpu_s() > 0.6)
        work.cancel()
        with pytest.raises(TooMuchError) as caught:
            await work
        worker.end()
        return str(caught.value)

    assert asyncio.run(scenario()) == "it takes longer than 1 s to check"


def test_a_child_does_the_work_of_a_moment_and_is_replaced():
    async def scenario() -> None:
        workers = Workers(lambda given: b"%d" % os.getpid() + given)
        first = [await workers.run(b"x" * size) for size in (1, 2_000_000, 0)]
        assert len({each.rstrip(b"x") for each in first}) == 1
        assert [each.count(b"x") for each in first] == [1, 2_000_000, 0]
        await becomes_true(lambda: not multiprocessing.active_children())
        assert (await workers.run(b"")) != first[-1]
        workers.close()
        assert multiprocessing.active_children() == []

    asyncio.run(scenario())


def test_a_child_holds_no_connection_of_the_webhook():
    async def scenario() -> bytes:
        with socket.create_server(("127.0.0.1", 0)):
            workers = Workers(lambda _: str(len(list(Path("/proc/self/fd").iterdir()))).encode())
            found = await workers.run(b"")
            workers.close()
            return found

    assert asyncio.run(scenario()) == b"5"  # the usual three, its own socket, and the directory


def test_a_review_that_recurses_is_left_to_the_failure_policy(kept: Kept):
    body = json.dumps({"request": {"uid": "u", "name": "deep"}}).encode()
    assert asyncio.run(asked(kept, PATH, body))[0] == 500


def test_a_child_that_hangs_is_replaced_and_probes_are_answered_beside_it(kept: Kept):
    async def scenario() -> None:
        server = Server(judge, Metrics(), Limits(wait_s=3.0))
        server.use(kept.server)
        server.use_path(PATH)
        port, pages = await server.start("127.0.0.1", 0, 0)
        trusted = ssl.create_default_context(cadata=kept.authority.certificate)
        url = f"https://127.0.0.1:{port}{PATH}"
        idle = json.dumps({"request": {"uid": "u", "name": "endless and idle"}}).encode()
        async with aiohttp.ClientSession() as session:
            hanging = [asyncio.create_task(session.post(url, data=idle, ssl=trusted)) for _ in range(4)]
            await becomes_true(lambda: any(multiprocessing.active_children()))
            async with session.get(f"http://127.0.0.1:{pages}/healthz") as probe:
                assert probe.status == 200
            assert not any(each.done() for each in hanging)
            assert {(await each).status for each in hanging} == {503}
            async with session.post(url, data=json.dumps(REVIEW), ssl=trusted) as good:
                assert good.status == 200
        await server.close()
        assert multiprocessing.active_children() == []

    asyncio.run(scenario())


class Handler:
    """A connection that is open until it is aborted."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.is_open = True

    def abort(self) -> None:
        self.is_open, self.transport = False, None


def test_the_connections_that_have_not_proven_themselves_make_room():
    async def scenario() -> None:
        connections: Any = Connections(Handler, most=3, silent_s=1000.0)  # type: ignore[arg-type]
        server, *silent = [connections.accept() for _ in range(3)]
        connections.prove(server)
        more = [connections.accept() for _ in range(4)]
        assert server.is_open
        assert not any(each.is_open for each in silent)
        assert [each.is_open for each in more] == [False, False, True, True]
        connections.close()

    asyncio.run(scenario())


def test_a_connection_that_stays_silent_is_closed(kept: Kept):
    async def scenario() -> None:
        connections: Any = Connections(Handler, silent_s=0.0)  # type: ignore[arg-type]
        silent = connections.accept()
        await becomes_true(lambda: not silent.is_open)

    asyncio.run(scenario())
