"""What an engine's answers become, over HTTP."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_trainer.engines.client import EngineError, EngineRefusedError, RouterClient, TokenRequest, open_session

REQUEST = TokenRequest((1, 2), 1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=10)


def asked(status: int, message: str) -> EngineError:
    """Return what asking a server raises that answers so."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=status)

    async def scene() -> EngineError:
        application = web.Application()
        application.router.add_post("/generate", answer)
        async with TestServer(application) as server, open_session() as session:
            with pytest.raises(EngineError) as raised:
                await RouterClient(session, str(server.make_url("")).rstrip("/")).generate(REQUEST, 5.0)
        return raised.value

    return asyncio.run(scene())


def test_a_request_that_was_aborted_before_its_first_token_may_be_sent_again() -> None:
    error = asked(400, "Request 5ad9f3 was aborted")
    assert not isinstance(error, EngineRefusedError)


@pytest.mark.parametrize(("status", "message"), [(400, "The input is too long"), (422, "n: not an integer")])
def test_a_request_that_is_wrong_may_not(status: int, message: str) -> None:
    assert isinstance(asked(status, message), EngineRefusedError)
