"""The gateway's HTTP: `/sessions/ID/v1` for agents, `/sessions`, `/gate` and `/health` for the driver."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from aiohttp import web

from rljob_trainer.gateway import anthropic_messages
from rljob_trainer.gateway.answers import Completion, refusal, whole
from rljob_trainer.gateway.anthropic_messages import MessageEvents, message, messages_request
from rljob_trainer.gateway.chat import FORBIDDEN, Gateway, Part, Session
from rljob_trainer.gateway.chat_events import ChatEvents
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.pieces import Piece
from rljob_trainer.gateway.record import as_json, opening
from rljob_trainer.gateway.requests import MOST_BYTES, ChatRequest, chat_request
from rljob_trainer.gateway.responses import ResponseEvents, history, response, response_name, responses_request

WRITE_S = 60.0
"""that a client may take to read what was written to it [s]"""
log = logging.getLogger(__name__)

MODEL = "model"
HERE = "/v1/chat/completions, /v1/responses, /v1/messages and /v1/models are here"
ADMIN = web.AppKey("admin", str)
GATEWAY = web.AppKey("gateway", Gateway)


class Events(Protocol):
    """A stream in the form that its client knows."""

    def begin(self) -> Iterable[bytes]:
        """Return what it begins with."""

    def piece(self, index: int, piece: Piece) -> Iterable[bytes]:
        """Return the events of a piece of an answer."""

    def end(self, completion: Completion) -> Iterable[bytes]:
        """Return what it ends with."""

    def failed(self, error: RequestError) -> Iterable[bytes]:
        """Return what it ends with if it cannot go on."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(gateway: Gateway, admin_key: str) -> web.Application:
    """Return the server's application."""
    app = web.Application(middlewares=[_errors], client_max_size=MOST_BYTES)
    app[GATEWAY], app[ADMIN] = gateway, admin_key
    app.router.add_get("/health", _health)
    app.router.add_post("/gate", _gate)
    app.router.add_post("/sessions", _open)
    app.router.add_get("/sessions/{session}", _record)
    app.router.add_delete("/sessions/{session}", _close)
    app.router.add_post("/sessions/{session}/v1/chat/completions", _complete)
    app.router.add_post("/sessions/{session}/v1/responses", _respond)
    app.router.add_post("/sessions/{session}/v1/messages", _message)
    app.router.add_get("/sessions/{session}/v1/models", _models)
    app.router.add_get("/sessions/{session}/v1/models/{model}", _model)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error the form that the client knows."""
    try:
        return await handler(request)
    except RequestError as error:
        refused = error
    except web.HTTPRequestEntityTooLarge:
        refused = RequestError(f"the body is larger than {MOST_BYTES} bytes", status=413)
    except web.HTTPException as error:
        refused = RequestError(f"{request.path} is not here; {HERE}", status=error.status)
    log.info("action=refuse status=%d reason=%s", refused.status, refused)
    form = anthropic_messages.refusal if request.path.endswith("/messages") else refusal
    return _json(form(refused), refused.status)


async def _health(request: web.Request) -> web.Response:
    _require_driver(request)
    return _json({"sessions": request.app[GATEWAY].num_sessions})


async def _gate(request: web.Request) -> web.Response:
    _require_driver(request)
    asked = await _body(request)
    return _json({"is_empty": await request.app[GATEWAY].admit(asked["admits"], asked["wait_s"])})


async def _open(request: web.Request) -> web.Response:
    _require_driver(request)
    session = request.app[GATEWAY].open(opening(await _body(request)))
    return _json({"name": session.name, "key": session.key})


async def _record(request: web.Request) -> web.Response:
    """Answer what a session is. It is closed by another request: this answer may not arrive."""
    _require_driver(request)
    return _json(as_json(request.app[GATEWAY].record(request.match_info["session"])))


async def _close(request: web.Request) -> web.Response:
    _require_driver(request)
    return _json({"turns": len(request.app[GATEWAY].close(request.match_info["session"]).turns)})


async def _complete(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = chat_request(await _body(request))
    if asked.stream:
        return await _stream(request, session, asked, lambda begun: ChatEvents(begun, asked))
    completion = await request.app[GATEWAY].complete(session, asked)
    return await _sent(request, session, completion, whole(completion, asked))


async def _respond(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = responses_request(await _body(request), session.stored)

    def keep(completion: Completion) -> None:
        if asked.is_stored:
            session.store(response_name(completion), asked.previous, history(asked, completion))

    if asked.chat.stream:
        return await _stream(request, session, asked.chat, lambda begun: ResponseEvents(begun, asked), keep)
    completion = await request.app[GATEWAY].complete(session, asked.chat)
    keep(completion)
    return await _sent(request, session, completion, response(completion, asked))


async def _message(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = messages_request(await _body(request))
    if asked.stream:
        return await _stream(request, session, asked, MessageEvents)
    completion = await request.app[GATEWAY].complete(session, asked)
    return await _sent(request, session, completion, message(completion))


async def _sent(
    request: web.Request, session: Session, completion: Completion, content: dict[str, Any]
) -> web.StreamResponse:
    """Write an answer, and note whether its client has it."""
    answer = _json(content)
    try:
        await answer.prepare(request)
        await answer.write_eof()
    except ConnectionError:
        log.info("action=hold_back request=%s", completion.name)
        session.held_back(completion.name)
    else:
        session.left(completion.name)
    return answer


async def _stream(
    request: web.Request,
    session: Session,
    asked: ChatRequest,
    form: Callable[[Completion], Events],
    keep: Callable[[Completion], None] = lambda completion: None,
) -> web.StreamResponse:
    """Write the pieces of answers as they come; `keep` takes the whole answer before the client has its end."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    async with aclosing(request.app[GATEWAY].stream(session, asked)) as said:
        begun = await anext(said)
        assert isinstance(begun, Completion)
        events = form(begun)
        try:
            await answer.prepare(request)
            await _write(answer, events.begin())
            async for each in said:
                if isinstance(each, Part):
                    await _write(answer, events.piece(each.index, each.piece))
                else:
                    keep(each)
                    await _write(answer, events.end(each))
        except RequestError as error:
            log.info("action=end_stream reason=%s", error)
            await _write(answer, events.failed(error))
        except (ConnectionError, TimeoutError) as error:
            log.info("action=cut_off reason=%s", type(error).__name__)
            session.left(begun.name)
            return answer
    await answer.write_eof()
    session.left(begun.name)
    return answer


async def _write(answer: web.StreamResponse, written: Iterable[bytes]) -> None:
    """Write events. Raises ConnectionError and TimeoutError where the client has gone away, or does not read."""
    if content := b"".join(written):
        async with asyncio.timeout(WRITE_S):
            await answer.write(content)


async def _models(request: web.Request) -> web.Response:
    _session(request)
    return _json({"object": "list", "data": [_description(MODEL)]})


async def _model(request: web.Request) -> web.Response:
    _session(request)
    return _json(_description(request.match_info["model"]))


def _description(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rljob"}


def _session(request: web.Request) -> Session:
    return request.app[GATEWAY].session(request.match_info["session"], _key(request))


def _require_driver(request: web.Request) -> None:
    if not hmac.compare_digest(request.app[ADMIN].encode(), _key(request).encode()):
        raise RequestError("the key is not the driver's", status=FORBIDDEN)


def _key(request: web.Request) -> str:
    given = request.headers
    return given.get("Authorization", "").removeprefix("Bearer ") or given.get("X-Api-Key", "")


async def _body(request: web.Request) -> Any:
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
