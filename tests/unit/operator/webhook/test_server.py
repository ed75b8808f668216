"""What the webhook's server answers: to reviews of the API server, to probes, and to Prometheus."""

import asyncio
import json
import ssl
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from rljob_operator.identity import Manifest
from rljob_operator.webhook.answer import Answer
from rljob_operator.webhook.keeping import Kept, renewed
from rljob_operator.webhook.metrics import Metrics
from rljob_operator.webhook.server import PATH, Server

REVIEW = {"request": {"uid": "u", "namespace": "ml", "name": "sums"}}


@pytest.fixture(scope="module")
def kept() -> Kept:
    return renewed(None, ("127.0.0.1",), datetime.now(UTC))


def judge(request: Manifest) -> Answer:
    if request.get("name") == "odd":
        raise RuntimeError("it cannot be judged")
    return Answer("no", outcome="Never")


async def asked(kept: Kept | None, path: str, body: bytes | None = None) -> tuple[int, str, str]:
    """Return status, content type and body of an answer; a body is posted to the reviews."""
    server = Server(judge, Metrics())
    if kept is not None:
        server.use(kept.server)
    reviews, pages = await server.start("127.0.0.1", 0, 0)
    trusted = ssl.create_default_context(cadata=kept.authority.certificate) if kept is not None else None
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{pages}{path}" if body is None else f"https://127.0.0.1:{reviews}{path}"
            kind: dict[str, Any] = {"data": body, "ssl": trusted} if body is not None else {}
            async with session.request("GET" if body is None else "POST", url, **kind) as found:
                return found.status, found.headers["Content-Type"], await found.text()
    finally:
        await server.close()


@pytest.mark.parametrize(("has_one", "status", "text"), [(False, 503, "no certificate yet\n"), (True, 200, "ok\n")])
def test_it_is_ready_once_it_has_a_certificate(kept: Kept, has_one: bool, status: int, text: str):
    found = asyncio.run(asked(kept if has_one else None, "/healthz"))
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
    assert asyncio.run(asked(kept, PATH, body))[::2] == (400, "the body is no AdmissionReview\n")


def test_a_review_that_cannot_be_judged_is_an_error_of_the_server(kept: Kept):
    body = json.dumps({"request": {"name": "odd"}}).encode()
    found = asyncio.run(asked(kept, PATH, body))
    assert found[::2] == (500, "the review has failed; see the log of the webhook\n")
