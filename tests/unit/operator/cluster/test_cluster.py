"""Paths and errors of requests to the API server. Integration tests send them."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from rljob_api.status import Status
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError, GoneError, TooLargeError, _error, path
from rljob_operator.identity import Manifest
from rljob_operator.status.events import Event
from rljob_operator.world.world import job_of
from support.operator.operator_world import raw_job
from support.operator.small_api_server import SmallApiServer


class Recorded(Cluster):
    """Notes what it would send."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), "operator-0")
        self.sent: list[tuple[str, str]] = []

    async def request(self, method: str, where: str, *_: Any, **__: Any) -> Manifest:
        self.sent.append((method, where))
        return {}


@pytest.mark.parametrize(
    ("status", "kind"), [(404, GoneError), (409, ConflictError), (403, ClusterError), (500, ClusterError)]
)
def test_an_error_names_the_request_the_status_and_the_server_s_message(status: int, kind: type[ClusterError]) -> None:
    found = _error("GET", "api/v1/pods", status, b'{"message": "no such pod"}')
    assert (type(found), found.status, str(found)) == (kind, status, f"GET api/v1/pods: {status} no such pod")


@pytest.mark.parametrize("content", [b"a proxy's page", b"[]", b'"text"', b"{}"])
def test_an_answer_that_is_no_status_is_shown_as_it_is(content: bytes) -> None:
    assert str(_error("GET", "x", 502, content)) == f"GET x: 502 {content.decode()}"


def test_an_object_is_in_its_namespace() -> None:
    leases = "apis/coordination.k8s.io/v1"
    assert path("Lease", "ml", "a") == f"{leases}/namespaces/ml/leases/a"
    assert (path("Lease", "ml"), path("Lease", None)) == (f"{leases}/namespaces/ml/leases", f"{leases}/leases")


def test_events_and_leases_are_written_in_their_namespace() -> None:
    cluster, leases = Recorded(), "apis/coordination.k8s.io/v1/namespaces/ops/leases"
    lease: Manifest = {"metadata": {"namespace": "ops", "name": "rljob"}}
    read: Manifest = {"metadata": {**lease["metadata"], "resourceVersion": "7"}}

    async def scenario() -> None:
        await cluster.record(job_of(raw_job()), Event("Normal", "Began", "Start", "attempt 1"))
        await cluster.write_lease(lease)
        await cluster.write_lease(read)

    asyncio.run(scenario())
    assert cluster.sent == [
        ("POST", "apis/events.k8s.io/v1/namespaces/ml/events"),
        ("POST", leases),
        ("PUT", f"{leases}/rljob"),
    ]


class EventsThat(Cluster):
    """Takes events as an API server does, or refuses each."""

    def __init__(self, refusal: ClusterError | None = None) -> None:
        super().__init__(cast(Any, None), "operator-0")
        self.refusal = refusal
        self.bodies: list[Manifest] = []

    async def request(self, method: str, where: str, query: Any = (), body: Any = None, *_: Any) -> Manifest:
        if self.refusal is not None:
            raise self.refusal
        self.bodies.append(body)
        return {}


@pytest.mark.parametrize("char", ["x", "é", "━", "😀", "\ud800"])
def test_an_event_is_cut_to_the_bytes_that_an_api_server_takes(char: str) -> None:
    cluster = EventsThat()
    asyncio.run(cluster.record(job_of(raw_job()), Event("Warning", "Sound", "Reason" * 30, f"a{char * 2000}")))
    (body,) = cluster.bodies
    assert 1020 < len(body["note"].encode()) <= 1024
    assert len(body["reason"].encode()) == 128
    assert set(body["note"][1:]) <= {char, "?"}, "no character is cut in two"


def test_an_event_that_is_refused_is_logged_and_its_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    refused = ClusterError("POST events: 422 note: Too long: may not be more than 1024 bytes", 422)
    asyncio.run(EventsThat(refused).record(job_of(raw_job()), Event("Normal", "Begin", "Began", "attempt 1")))
    assert "may not be more than 1024 bytes" in caplog.text


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 abc\r\n\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_an_api_server_that_answers_no_http_does_not_bring_the_operator_s_token_into_an_error(
    answer: bytes, tmp_path: Path
) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def scenario() -> str:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            cluster = await Cluster.connect(str(kubeconfig(tmp_path, url)), "operator")
            try:
                with pytest.raises(ClusterError) as failed:
                    await cluster.request("GET", "api/v1/pods")
                return str(failed.value)
            finally:
                await cluster.close()

    said = asyncio.run(scenario())
    assert said.startswith("GET api/v1/pods: ")
    assert TOKEN not in said


TOKEN = "TOKEN-OF-THE-OPERATOR"


def kubeconfig(directory: Path, url: str) -> Path:
    """Write a kubeconfig whose user has the token."""
    file = directory / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [context],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
            }
        )
    )
    return file


class LargeItems(Cluster):
    """An API server with objects of so many bytes, of which a page may have 100."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(cast(Any, None), "operator-0")
        self.sizes = sizes
        self.limits: list[int] = []

    async def request(self, method: str, where: str, query: Any = (), *_: Any) -> Manifest:
        asked = dict(query)
        limit, begin = int(asked["limit"]), int(asked["continue"] or 0)
        self.limits.append(limit)
        page = self.sizes[begin : begin + limit]
        if sum(page) > 100 and limit > 1:
            raise TooLargeError("more than 100 bytes", 0)
        if page == (1000,):
            raise TooLargeError("more than 100 bytes", 0)
        end = begin + limit
        return {"items": list(page), "metadata": {"continue": str(end) if end < len(self.sizes) else ""}}


def items_of(cluster: Cluster, limit: int) -> list[Any]:
    async def scenario() -> list[Any]:
        return [item async for page in cluster.lists("x", [], limit) for item in page["items"]]

    return asyncio.run(scenario())


def test_a_list_of_large_objects_has_small_pages_and_misses_none() -> None:
    sizes = [*([1] * 30), *([60] * 5), 500, *([1] * 200)]
    cluster = LargeItems(*sizes)
    assert items_of(cluster, 64) == sizes
    assert max(cluster.limits[-3:]) > 20, "pages grow again"


def test_an_object_that_is_larger_than_any_fails_its_list() -> None:
    with pytest.raises(TooLargeError):
        items_of(LargeItems(1, 1000), 4)


@pytest.mark.parametrize(("limit", "fails"), [(None, False), ("1", False), ("2", True)])
def test_only_a_page_of_several_objects_is_refused_for_its_size(tmp_path: Path, limit: str | None, fails: bool) -> None:
    raw = {"kind": "Pod", "metadata": {"name": "a", "namespace": "ml", "annotations": {"large": "x" * 2_500_000}}}
    api = SmallApiServer(raw)
    query = [("limit", limit)] if limit is not None else []

    async def scenario() -> Manifest:
        async with api.serving(tmp_path) as kubeconfig:
            cluster = await Cluster.connect(str(kubeconfig), "operator-0")
            try:
                return await cluster.request("GET", "api/v1/namespaces/ml/pods", query)
            finally:
                await cluster.close()

    if fails:
        with pytest.raises(TooLargeError):
            asyncio.run(scenario())
    else:
        assert len(asyncio.run(scenario())["items"]) == 1


class OlderCrd(Cluster):
    """An API server that refuses a field which a newer CRD had."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), "operator-0")
        self.written: list[Manifest] = []

    async def request(self, method: str, where: str, query: Any = (), body: Any = None, *_: Any) -> Manifest:
        self.written.append(body["status"])
        if "goodput" in body["status"]:
            raise ClusterError(f"PATCH {where}: 422 .status.goodput: field not declared in schema", 422)
        return dict(body)


def test_a_status_is_written_without_what_the_api_server_does_not_take_any_more() -> None:
    cluster = OlderCrd()
    job = job_of({**raw_job(), "status": {"goodput": {"seconds": 3}}})
    asyncio.run(cluster.write_status(job, Status(attempt=1)))
    assert ["goodput" in each for each in cluster.written] == [True, False]
    assert cluster.written[1]["attempt"] == 1


def test_a_status_that_is_refused_for_what_this_version_writes_is_refused() -> None:
    with pytest.raises(ClusterError):
        asyncio.run(RefusesAll().write_status(job_of(raw_job()), Status(attempt=1)))


class RefusesAll(Cluster):
    def __init__(self) -> None:
        super().__init__(cast(Any, None), "operator-0")

    async def request(self, *_: Any) -> Manifest:
        raise ClusterError("PATCH: 422 invalid", 422)


class ManyEvents(Cluster):
    """An API server with 2,000 events about a pod."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), "operator-0")

    async def request(self, method: str, where: str, query: Any = (), *_: Any) -> Manifest:
        asked = dict(query)
        assert asked["fieldSelector"] == "regarding.kind=Pod,regarding.name=a"
        begin, limit = int(asked["continue"] or 0), int(asked["limit"])
        return {"items": list(range(begin, begin + limit)), "metadata": {"continue": str(begin + limit)}}


def test_of_the_events_about_a_pod_the_first_hundreds_are_read() -> None:
    found: Any = asyncio.run(ManyEvents().pod_events("ml", "a"))
    assert found == list(range(len(found)))
    assert 500 <= len(found) < 1000
