"""Sessions at the real router: all turns of one go to the same engine, and to another one when that is taken out."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rljob_api.sections import RouterPolicy
from rljob_trainer.engines.client import TokenRequest, open_session
from rljob_trainer.engines.router import Router, RouterSettings
from support.http_in_thread import served_in_thread

ASKED = TokenRequest((1, 2, 3), 1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=2)
SESSIONS = tuple(f"session-{number}" for number in range(24))
TURNS = 4


def engine(name: str) -> web.Application:
    """Return an engine that says its name, whole or as a stream."""

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        facts = {"output_token_logprobs": [[-0.5, 4, None]], "weight_version": f"0@{name}", "cached_tokens": 2}
        answer = {"text": "", "meta_info": {**facts, "finish_reason": {"type": "length"}}}
        if not body.get("stream"):
            return web.json_response(answer)
        events = b"data: " + json.dumps(answer).encode() + b"\n\ndata: [DONE]\n\n"
        return web.Response(body=events, content_type="text/event-stream")

    async def known(request: web.Request) -> web.Response:
        return web.json_response({"model_path": "tiny", "served_model_name": "tiny", "tp_size": 1, "dp_size": 1})

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_get("/{path:.*}", known)
    return app


@pytest.fixture
def urls() -> Iterator[tuple[str, ...]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(served_in_thread(engine(name))) for name in ("engine-0", "engine-1"))


async def engines_of(router: Router, sessions: Sequence[str]) -> dict[str, str]:
    """Ask a turn of each session, all at once, every other one as a stream; return which engine has answered."""
    assert router.client is not None
    client = router.client

    async def one(number: int, session: str) -> str:
        asked = replace(ASKED, session=session)
        if number % 2:
            return [part async for part in client.stream(asked, 60)][-1].engine
        (answer,) = await client.generate(asked, 60)
        assert answer.cached == 2
        return answer.engine

    return dict(zip(sessions, await asyncio.gather(*(one(*each) for each in enumerate(sessions))), strict=True))


def test_a_session_stays_at_its_engine_until_that_is_taken_out(urls: tuple[str, ...], tmp_path: Path) -> None:
    settings = RouterSettings(RouterPolicy.CACHE_AWARE, 60.0, 1.0, 5.0, keeps_sessions=True)

    async def scene(session: aiohttp.ClientSession) -> None:
        router = Router(settings, tmp_path / "router.log", session, "127.0.0.1", "a key")
        await router.start()
        try:
            for url in urls:
                await router.add(url)
            first = await engines_of(router, SESSIONS)
            assert min(Counter(first.values()).values()) >= len(SESSIONS) // 4, first
            assert set(first.values()) == {"engine-0", "engine-1"}
            for _ in range(TURNS - 1):
                assert await engines_of(router, SESSIONS) == first

            await router.remove(urls[0])
            assert set((await engines_of(router, SESSIONS)).values()) == {"engine-1"}
            await router.add(urls[0])
            later = await engines_of(router, [f"later-{number}" for number in range(len(SESSIONS))])
            assert set(later.values()) == {"engine-0", "engine-1"}
            again = await engines_of(router, SESSIONS)
            assert await engines_of(router, SESSIONS) == again
            moved = [name for name in SESSIONS if first[name] == "engine-1"]
            assert {again[name] for name in moved} == {"engine-1"}
        finally:
            await router.stop()

    async def begun() -> None:
        async with open_session() as session:
            await scene(session)

    asyncio.run(begun())
