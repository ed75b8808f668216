"""The gateway's HTTP: `/sessions/ID/v1` for agents, `/sessions` and `/health` for the driver."""

import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
from aiohttp import web

from rljob_trainer.gateway import anthropic_messages
from rljob_trainer.gateway.answers import events, refusal, whole
from rljob_trainer.gateway.anthropic_messages import message, message_events, messages_request
from rljob_trainer.gateway.chat import FORBIDDEN, Gateway, Session
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.record import as_json, opening
from rljob_trainer.gateway.requests import MOST_BYTES, chat_request
from rljob_trainer.gateway.responses import history, response, response_events, response_name, responses_request

log = logging.getLogger(__name__)

MODEL = "model"
HERE = "/v1/chat/completions, /v1/responses, /v1/messages and /v1/models are here"
ADMIN = web.AppKey("admin", str)
GATEWAY = web.AppKey("gateway", Gateway)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(gateway: Gateway, admin_key: str) -> web.Application:
    """Return the server's application."""
    app = web.Application(middlewares=[_errors], client_max_size=MOST_BYTES)
    app[GATEWAY], app[ADMIN] = gateway, admin_key
    app.router.add_get("/health", _health)
    app.router.add_post("/sessions", _open)
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


async def _open(request: web.Request) -> web.Response:
    _require_driver(request)
    session = request.app[GATEWAY].open(opening(await _body(request)))
    return _json({"name": session.name, "key": session.key})


async def _close(request: web.Request) -> web.Response:
    _require_driver(request)
    return _json(as_json(request.app[GATEWAY].close(request.match_info["session"])))


async def _complete(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = chat_request(await _body(request))
    completion = await request.app[GATEWAY].complete(session, asked)
    if asked.stream:
        return await _stream(request, events(completion, asked))
    return _json(whole(completion, asked))


async def _respond(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = responses_request(await _body(request), session.stored)
    completion = await request.app[GATEWAY].complete(session, asked.chat)
    if asked.is_stored:
        session.stored[response_name(completion)] = history(asked, completion)
    if asked.chat.stream:
        return await _stream(request, response_events(completion, asked))
    return _json(response(completion, asked))


async def _message(request: web.Request) -> web.StreamResponse:
    session = _session(request)
    asked = messages_request(await _body(request))
    completion = await request.app[GATEWAY].complete(session, asked)
    if asked.stream:
        return await _stream(request, message_events(completion))
    return _json(message(completion))


async def _stream(request: web.Request, written: Iterable[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await answer.prepare(request)
    for event in written:
        await answer.write(event)
    await answer.write_eof()
    return answer


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
