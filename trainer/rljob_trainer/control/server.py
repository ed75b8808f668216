"""The server of the control protocol (`rljob_api.control`), in the driver's background loop.

It translates between HTTP and two values, the StatusStore and the OrderBook, and knows nothing else of the driver.
Where it listens stands in `control.json` in the run's directory, readable only for the user who runs it.
"""

import asyncio
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from rljob_api.control import (
    ADDRESS_FILE,
    DRAIN,
    ENGINE,
    EVICT,
    LONGEST_WAIT_S,
    METRICS,
    SCALE,
    STATUS,
    TOKEN_VARIABLE,
    DecidedBy,
    EngineOrder,
    Eviction,
    Message,
    OrderResult,
    Refusal,
    Scale,
    eviction_token,
)
from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.control.orders import GenerationError, OrderBook, ScaleError, UnknownEngineError
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.private_files import write_whole

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Wait = Callable[[asyncio.Event, float], Awaitable[None]]
"""returns when the event is set, or after this number of seconds"""


async def changed_within(changed: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, at the latest after `timeout_s` [s]."""
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), timeout_s)


class TokenError(RunError, RuntimeError):
    """No token is set, so no request could be authorised."""

    exit = Exit.FAILED


class Attendance:
    """Measures the time since the status was last polled. A long-poll that waits counts as polling."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._waiting = 0

    @property
    def absent_s(self) -> float:
        """Time since the last poll [s]; 0 while one waits."""
        return 0.0 if self._waiting else self._clock() - self._last

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count a poll inside the context."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._last = self._clock()


class ControlServer:
    """Serves the protocol between `start` and `close`; both run in the loop that serves."""

    def __init__(
        self,
        status_store: StatusStore,
        orders: OrderBook,
        metrics: Callable[[], tuple[str, bytes]],
        token: str,
        wait: Wait = changed_within,
    ) -> None:
        """`metrics` returns a content type and the text; `token` is what callers must send."""
        if not token:
            raise TokenError(f"environment variable {TOKEN_VARIABLE} must hold the token of the control protocol")
        self.attendance = Attendance()
        self._status_store = status_store
        self._orders = orders
        self._metrics = metrics
        self._token = token
        self._wait = wait
        self._address_file: Path | None = None
        self._polls: set[asyncio.Event] = set()
        # A poll whose client is gone must not count as attendance.
        self._runner = web.AppRunner(self._application(), handler_cancellation=True, access_log=None)

    async def start(self, directory: Path, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, write `control.json` into the directory, and return the URL; port 0 means any free one."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, shutdown_timeout=1.0)
        await site.start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        url = f"http://{bound_host}:{bound_port}"
        self._address_file = directory / ADDRESS_FILE
        write_whole(self._address_file, json.dumps({"url": url, "pid": os.getpid()}).encode())
        return url

    async def close(self) -> None:
        """Stop listening and remove `control.json`."""
        if self._address_file:
            self._address_file.unlink(missing_ok=True)
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[_errors_as_json, self._only_with_token])
        application.on_shutdown.append(self._answer_polls)
        application.add_routes(
            [
                web.get(STATUS, self._status),
                web.get(METRICS, self._show_metrics),
                web.put(ENGINE, self._engine),
                web.put(SCALE, self._scale),
                web.post(DRAIN, self._drain),
                web.post(EVICT, self._evict),
            ]
        )
        return application

    @web.middleware
    async def _only_with_token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "")
        tokens = [self._token, *([eviction_token(self._token)] if request.path == EVICT else [])]
        if not any(hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()) for token in tokens):
            return _refused(401, Refusal(field="Authorization", value="", rule="must be `Bearer` and the run's token"))
        return await handler(request)

    async def _status(self, request: web.Request) -> web.Response:
        with self.attendance.asking():
            if "since" in request.query:
                await self._changed_from(int(_number(request, "since")), _number(request, "wait"))
            return _answered(self._status_store.status)

    async def _changed_from(self, revision: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._polls.add(changed)
        try:
            with self._status_store.watching(lambda: loop.call_soon_threadsafe(changed.set)):
                # Different, not greater: revisions start again with each attempt.
                if self._status_store.status.revision == revision:
                    await self._wait(changed, min(wait_s, LONGEST_WAIT_S))
        finally:
            self._polls.remove(changed)

    async def _answer_polls(self, _: web.Application) -> None:
        """Answer waiting polls, so that none of them delays the end of the process."""
        for changed in self._polls:
            changed.set()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        content_type, body = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _engine(self, request: web.Request) -> web.Response:
        try:
            order = EngineOrder.model_validate_json(await request.read())
            accepted = self._orders.engine(request.match_info["name"], order, by=DecidedBy.SUPERVISOR)
        except ValidationError as error:
            return _refused(400, _about(error))
        except UnknownEngineError as error:
            return _refused(404, error.args[0])
        except GenerationError as error:
            return _refused(409, error.args[0])
        return _answered(OrderResult(outcome="Accepted" if accepted else "Unchanged"), 202 if accepted else 200)

    async def _scale(self, request: web.Request) -> web.Response:
        try:
            accepted = self._orders.scale(Scale.model_validate_json(await request.read()))
        except ValidationError as error:
            return _refused(400, _about(error))
        except (ScaleError, GenerationError) as error:
            return _refused(409, error.args[0])
        return _answered(OrderResult(outcome="Accepted" if accepted else "Unchanged"), 202 if accepted else 200)

    async def _drain(self, request: web.Request) -> web.Response:
        if self._orders.requested:
            return _answered(OrderResult(outcome="Unchanged"))
        self._orders.drain()
        return _answered(OrderResult(outcome="Accepted"), 202)

    async def _evict(self, request: web.Request) -> web.Response:
        try:
            return _answered(self._orders.evict(Eviction.model_validate_json(await request.read())))
        except ValidationError as error:
            return _refused(400, _about(error))


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ParameterError as error:
        return _refused(400, error.args[0])
    except web.HTTPError as error:
        asked = f"{request.method} {request.path}"
        return _refused(error.status, Refusal(field="path", value=asked, rule=error.reason))


class ParameterError(ValueError):
    """A query parameter cannot be read; the argument is the Refusal."""


def _number(request: web.Request, name: str) -> float:
    text = request.query.get(name, "0")
    if not text.isdecimal():
        raise ParameterError(Refusal(field=name, value=text, rule="must be a whole number, 0 or more"))
    return float(text)


def _about(error: ValidationError) -> Refusal:
    first = error.errors()[0]
    return Refusal(field=".".join(map(str, first["loc"])), value=str(first["input"]), rule=first["msg"])


def _answered(message: Message, status: int = 200) -> web.Response:
    return web.Response(text=message.model_dump_json(by_alias=True), status=status, content_type="application/json")


def _refused(status: int, refusal: Refusal) -> web.Response:
    return _answered(refusal, status)
