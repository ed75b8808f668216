"""A stream of SGLang's /generate, as its server writes it, and as the router passes it on."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_api.sections import RouterPolicy
from rljob_trainer.engines.client import (
    Continuation,
    EngineError,
    EngineRefusedError,
    EngineUnreachableError,
    RouterClient,
    TokenRequest,
    open_session,
)
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.router import RouterSettings, router_argv
from rljob_trainer.processes.ports import free_ports
from support.http_in_thread import served_in_thread
from support.waiting import until

ASKED = TokenRequest((1, 2), 1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=10)
OUTPUT = [[-0.25, 4, None], [None, 9, None], [-0.5, 7, None]]
HOST = "127.0.0.1"
WAIT_S = 60.0


def event(output: Sequence[Any], total: int | None, ended: Any = None) -> Any:
    counted = {} if total is None else {"output_token_logprobs_length": total}
    meta = {"output_token_logprobs": output, **counted, "weight_version": "7@engine-0", "finish_reason": ended}
    return {"text": "", "output_ids": [], "meta_info": meta}


LENGTH = {"type": "length", "length": 3}
NEW_ALONE = [event(OUTPUT[:1], 1), event(OUTPUT[1:], 3, LENGTH)]
ALL_SO_FAR = [event(OUTPUT[:1], 1), event(OUTPUT[:1], 1), event(OUTPUT[:2], 2), event(OUTPUT, 3, LENGTH)]
WITHOUT_NUMBER = [event(OUTPUT[:1], None), event(OUTPUT, None, LENGTH)]


@contextmanager
def engine(written: Sequence[Any], end: bytes = b"data: [DONE]\n\n", asked: list[Any] | None = None) -> Iterator[str]:
    """Serve a stream, in pieces that do not end where its events do, and what the router asks of an engine."""

    async def generate(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        (asked if asked is not None else []).append(body)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        whole = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in written) + end
        for at in range(0, len(whole), 50):
            await answer.write(whole[at : at + 50])
        return answer

    async def known(request: web.Request) -> web.Response:
        return web.json_response({"model_path": "tiny", "served_model_name": "tiny", "tp_size": 1, "dp_size": 1})

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_get("/{path:.*}", known)
    with served_in_thread(app) as url:
        yield url


async def parts(url: str, key: str = "") -> list[Continuation]:
    async with open_session() as session:
        return [part async for part in RouterClient(session, url, key).stream(ASKED, WAIT_S)]


@pytest.mark.parametrize(
    "written", [NEW_ALONE, ALL_SO_FAR, WITHOUT_NUMBER], ids=["new alone", "all so far", "without a number"]
)
def test_each_token_comes_once_with_its_log_probability(written: Sequence[Any]) -> None:
    asked: list[Any] = []
    with engine(written, asked=asked) as url:
        found = asyncio.run(parts(url))
    assert [token for part in found for token in part.tokens_T] == [4, 9, 7]
    first, none, last = (logprob for part in found for logprob in part.logprobs_T)
    assert (first, none != none, last) == (-0.25, True, -0.5)
    assert [part.finish_reason for part in found] == [""] * (len(found) - 1) + ["length"]
    assert {(part.version, part.engine) for part in found} == {(7, "engine-0")}
    assert (asked[0]["stream"], asked[0]["return_logprob"]) == (True, True)


def test_a_request_names_its_session_and_an_answer_what_was_cached() -> None:
    heard: list[Any] = []

    async def generate(request: web.Request) -> web.Response:
        heard.append(request.headers.get("X-SMG-Routing-Key"))
        answer = event(OUTPUT[:1], 1, LENGTH)
        answer["meta_info"]["cached_tokens"] = 5
        return web.json_response(answer)

    async def asked(url: str) -> list[Continuation]:
        async with open_session() as session:
            client, named = RouterClient(session, url), replace(ASKED, session="s1")
            (one,), (other,) = await client.generate(named, WAIT_S), await client.generate(ASKED, WAIT_S)
            return [one, other, *[part async for part in client.stream(named, WAIT_S)]]

    app = web.Application()
    app.router.add_post("/generate", generate)
    with served_in_thread(app) as url:
        found = asyncio.run(asked(url))
    assert heard == ["s1", None, "s1"]
    assert [each.cached for each in found] == [5, 5, 5]


REFUSED = {"type": "abort", "status_code": 400, "message": "the input is too long"}
ABORTED = {"type": "abort", "status_code": 400, "message": "Request 3f was aborted"}


@pytest.mark.parametrize(
    ("written", "end", "error", "message"),
    [
        (NEW_ALONE[:1], b"data: [DONE]\n\n", EngineUnreachableError, "ended without a reason"),
        (NEW_ALONE[:1], b"", EngineUnreachableError, "ended before its last event"),
        (NEW_ALONE[:1], b"data: {broken\n\n", EngineError, "an event that is not SGLang's"),
        ([{"error": {"message": "temperature", "code": 400}}], b"", EngineRefusedError, "400 temperature"),
        ([{"error": {"message": "no memory", "code": 503}}], b"", EngineError, "503 no memory"),
        ([event([], 0, REFUSED)], b"", EngineRefusedError, "too long"),
        ([event([], 0, ABORTED)], b"", EngineError, "was aborted"),
        ([event(OUTPUT[1:2], 2)], b"", EngineError, "has 1 of 2 new log-probabilities"),
    ],
    ids=[
        "no reason",
        "cut",
        "no JSON",
        "refused",
        "fault",
        "refused by the scheduler",
        "aborted",
        "a token is missing",
    ],
)
def test_a_stream_that_does_not_end_well_is_an_error(
    written: Sequence[Any], end: bytes, error: type[Exception], message: str
) -> None:
    with engine(written, end) as url, pytest.raises(error, match=message):
        asyncio.run(parts(url))


@contextmanager
def router(tmp_path: Path) -> Iterator[str]:
    """Run the real router."""
    port, metrics = free_ports(HOST)
    argv = router_argv(RouterSettings(RouterPolicy.ROUND_ROBIN, 30.0, 1.0, 5.0), HOST, port, metrics)
    with (tmp_path / "router.log").open("wb") as log:
        process = subprocess.Popen(argv, env={**os.environ, KEY_VARIABLE: "a key"}, stdout=log, stderr=log)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        process.kill()
        process.wait()


async def serving(router_url: str, engine_url: str | None) -> bool:
    """Return whether the router lists a healthy engine; name one to it first."""
    async with open_session() as session:
        client = RouterClient(session, router_url, "a key")
        if engine_url is not None:
            await client.add_worker(engine_url)
        try:
            return any(worker.healthy for worker in await client.workers())
        except EngineError:
            return False


async def alive(router_url: str) -> bool:
    async with open_session() as session:
        try:
            return await RouterClient(session, router_url, "a key").is_alive()
        except EngineError:
            return False


def test_the_router_passes_a_stream_on(tmp_path: Path) -> None:
    asked: list[Any] = []
    with engine(NEW_ALONE, asked=asked) as engine_url, router(tmp_path) as router_url:
        until(lambda: asyncio.run(alive(router_url)))
        asyncio.run(serving(router_url, engine_url))
        until(lambda: asyncio.run(serving(router_url, None)))
        found = asyncio.run(parts(router_url, "a key"))
    assert [part.tokens_T for part in found] == [(4,), (9, 7)]
    assert asked[-1]["stream"] is True
