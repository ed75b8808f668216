"""Paths and errors of requests to the API server; what the installation's checks ask. Integration tests send them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.cluster import Cluster, ClusterError, ConflictError, GoneError, _error, path
from rljob_operator.events import Event
from rljob_operator.identity import Manifest
from rljob_operator.installation import RIGHTS, answers
from rljob_operator.world import job_of
from support.operator.operator_world import raw_job


class Recorded(Cluster):
    """Notes what it would send."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), "operator-0")
        self.sent: list[tuple[str, str]] = []

    async def request(self, method: str, where: str, *_: Any, **__: Any) -> Manifest:
        self.sent.append((method, where))
        return {}


class Granted:
    """An API server that knows all kinds, and grants everything but some rights in some namespaces."""

    def __init__(self, *refused: tuple[str, str, str, str]) -> None:
        self.refused = refused

    async def request(self, method: str, where: str, query: Sequence[Any] = (), body: Manifest | None = None) -> Any:
        if body is None:
            return {"items": []}
        asked = body["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return {"status": {"allowed": (asked["namespace"], asked["group"], name, asked["verb"]) not in self.refused}}

    async def read_lease(self, namespace: str, name: str) -> Manifest:
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"spec": {"holderIdentity": f"{namespace}/{name}", "renewTime": renewed}}


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


rights = st.sampled_from([(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs])


@settings(max_examples=30)
@given(st.sampled_from(["a", "b"]), rights)
def test_a_missing_right_is_named_in_its_namespace_alone(namespace: str, right: tuple[str, str, str]) -> None:
    group, resource, verb = right
    cluster = cast(Cluster, Granted((namespace, *right)))

    async def found() -> list[str]:
        return [str(each) async for each in answers(cluster, ("a", "b"), "ops", "rljob", ())]

    said = asyncio.run(found())
    shown = f"{verb} {resource}{'.' + group if group else ''}"
    assert [line for line in said if line.startswith("FAILED")] == [
        f"FAILED  rights are missing in namespace {namespace}: {shown}; `helm upgrade` restores the chart's rules"
    ]
    assert said[-1] == "ok      ops/rljob leads"
    (other,) = {"a", "b"} - {namespace}
    assert f"ok      all rights are there in namespace {other}" in said
