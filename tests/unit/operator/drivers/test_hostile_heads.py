"""A head belongs to a tenant: whatever it answers, the operator reads little of it and follows none of it."""

import asyncio
import json
import logging
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from rljob_api.control import EngineState, EngineStatus, Status
from rljob_operator.drivers import driver_api
from rljob_operator.drivers.driver_api import LONGEST_ANSWER, LONGEST_OUTPUT, Control, DriverUnreachableError, RayJobs
from rljob_operator.drivers.drivers import Watcher
from rljob_operator.drivers.sender import Sender
from rljob_operator.plan import Follow, Orders
from rljob_operator.runtime import logs
from rljob_operator.world.driver_news import RayAnswer
from rljob_operator.world.world import DriverState
from support.trainer import virtual_time

TOKEN = "CONTROL-TOKEN-OF-THE-JOB"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """Answer every request by `handler`; yield the URL."""
    application = web.Application(client_max_size=10**9)
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answered(content: bytes) -> AsyncIterator[str]:
    """Answer every connection by these bytes; yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def looked_at(handler: Handler) -> RayAnswer:
    """Return what the operator makes of Ray's answer."""

    async def scenario() -> RayAnswer:
        async with served(handler) as url, driver_api.open_session() as session:
            return await RayJobs(session, url, TOKEN).look("sums-1")

    return asyncio.run(scenario())


def says(content: object) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=content if isinstance(content, str) else json.dumps(content))

    return handler


def gzip_of(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(mebibytes)) + packer.flush()


def test_a_compressed_answer_is_not_unpacked() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=gzip_of(64), headers={"Content-Encoding": "gzip"})

    with pytest.raises(DriverUnreachableError, match="compressed"):
        looked_at(handler)


def test_an_endless_answer_is_read_to_the_limit() -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while sent < 200 * LONGEST_ANSWER:
                await answer.write(b" " * 2**16)
                sent += 2**16
        except ConnectionError:
            pass
        return answer

    with pytest.raises(DriverUnreachableError, match="more than"):
        looked_at(handler)
    assert sent < 20 * LONGEST_ANSWER


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("order", ["look", "submit", "stop", "status", "drain"])
def test_a_redirect_is_not_followed(status: int, order: str) -> None:
    seen: list[str] = []

    async def victim(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"status": "RUNNING", "message": "a secret of the victim"})

    async def scenario() -> str:
        async with served(victim) as elsewhere, driver_api.open_session() as session:

            async def redirect(_: web.Request) -> web.Response:
                return web.Response(status=status, headers={"Location": f"{elsewhere}/latest/meta-data"})

            async with served(redirect) as url:
                jobs, control = RayJobs(session, url, TOKEN), Control(session, url, TOKEN)
                calls: dict[str, Callable[[], Awaitable[object]]] = {
                    "look": lambda: jobs.look("a"),
                    "submit": lambda: jobs.submit("a", "exec true"),
                    "stop": lambda: jobs.stop("a"),
                    "status": lambda: control.status(None),
                    "drain": control.drain,
                }
                with pytest.raises(DriverUnreachableError) as refused:
                    await calls[order]()
                return str(refused.value)

    assert str(status) in asyncio.run(scenario())
    assert seen == []


def test_cookies_of_one_head_reach_no_other() -> None:
    got: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        got.append(request.headers.get("Cookie"))
        answer = web.json_response({"status": "RUNNING"})
        answer.set_cookie("who", "a")
        return answer

    async def scenario() -> None:
        async with served(handler) as url, driver_api.open_session() as session:
            for _ in range(2):
                await RayJobs(session, url.replace("127.0.0.1", "localhost"), TOKEN).look("a")

    asyncio.run(scenario())
    assert got == [None, None]


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        "5",
        "null",
        '["status"]',
        '{"status": ["FAILED"]}',
        '{"status": {"a": 1}}',
        '{"status": "MELTED"}',
        '{"status": "FAILED", "message": 5}',
        '{"status": "FAILED", "message": {"a": 1}}',
        '{"status": "FAILED", "driver_exit_code": "1"}',
        '{"status": "FAILED", "driver_exit_code": true}',
        '{"status": "FAILED", "driver_exit_code": 1.5}',
        '{"status": "FAILED", "driver_exit_code": {"a": 1}}',
        '{"status": "FAILED", "driver_exit_code": 1180591620717411303424}',
        '{"status": "RUNNING", "driver_exit_code": ' + "9" * 5_000 + "}",
    ],
)
def test_what_ray_would_not_say_is_no_answer_of_ray(answer: str) -> None:
    with pytest.raises(DriverUnreachableError, match="not Ray's"):
        looked_at(says(answer))


def test_of_a_long_message_the_first_line_and_the_end_are_kept() -> None:
    message = "Job entrypoint command failed with exit code 1, last available logs:\n" + "x" * 500_000 + "\nthe end"
    found = looked_at(says({"status": "FAILED", "message": message, "driver_exit_code": 1}))
    assert found.message.startswith("Job entrypoint command failed with exit code 1, last available logs:\n")
    assert found.message.endswith("\nthe end")
    assert len(found.message) < LONGEST_OUTPUT + 300


def test_half_of_an_emoji_at_the_end_of_a_log_can_be_written() -> None:
    found = looked_at(says('{"status": "FAILED", "message": "loss \\ud83d", "driver_exit_code": 1}'))
    assert found == RayAnswer(DriverState.FAILED, 1, "loss \\ud83d")
    found.message.encode()


@pytest.mark.parametrize("text", ["The resource does not exist", "Job sums-2 does not exist", "page does not exist"])
def test_a_404_of_a_proxy_does_not_say_that_the_driver_is_absent(text: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=404, text=text)

    with pytest.raises(DriverUnreachableError):
        looked_at(handler)


BROKEN = {
    "a header of 9 kB": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 9000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "no HTTP": b"SSH-2.0-x\r\n\r\n",
    "a bad status line": b"HTTP/1.1 abc\r\n\r\n",
    "a bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    "a wrong length": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
    "nothing": b"",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
    "the token itself": b"HTTP/1.1 500 No\r\nContent-Length: 60\r\n\r\nAuthorization: Bearer "
    + TOKEN.encode()
    + b" " * 60,
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_no_answer_brings_a_token_into_the_log(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        failed = asyncio.Event()
        async with answered(answer) as url, driver_api.open_session() as session:
            jobs, control = RayJobs(session, url, TOKEN), Control(session, url, TOKEN)
            sender = Sender("sums-1", jobs, control, lambda: 1e9, lambda *_: failed.set())
            sender.give(replace(Orders(), drain=True))
            sending = asyncio.create_task(sender.run())
            await failed.wait()
            sending.cancel()

    caplog.set_level(logging.DEBUG)
    asyncio.run(scenario())
    lines = [each for each in caplog.records if "action=order" in each.getMessage()]
    assert lines
    written = [logs.OurFields("%(message)s").format(each) for each in caplog.records]
    assert not any(TOKEN in line for line in written)


def test_the_log_hides_the_headers_of_a_library_s_error() -> None:
    try:
        raise RuntimeError(f"RequestInfo(headers=<CIMultiDict('Authorization': 'Bearer {TOKEN}')>)")
    except RuntimeError as error:
        record = logging.LogRecord("a", 40, "", 0, "failed: %r", (error,), (type(error), error, error.__traceback__))
    assert TOKEN not in logs.OurFields("%(message)s").format(record)


class HastyHead:
    """Ray and a driver that answer at once, each time with something new; both clients in one."""

    def __init__(self) -> None:
        self.polls = 0

    async def look(self, _: str) -> RayAnswer:
        return RayAnswer(DriverState.RUNNING)

    async def status(self, _: int | None) -> Status:
        self.polls += 1
        engine = EngineStatus(name="engine-0", state=list(EngineState)[self.polls % 2], since=float(self.polls))
        return Status(revision=self.polls, heartbeat=float(self.polls), engines=(engine,))


def test_a_driver_that_answers_at_once_is_polled_once_a_second() -> None:
    head, news = HastyHead(), []

    async def scenario() -> None:
        ray, driver = cast(RayJobs, head), cast(Control, head)
        follow = Follow("sums-1", 1, "ml", "sums")
        watcher = Watcher(follow, ray, driver, lambda: 1e9, news.append, lambda *_: None)
        watching = asyncio.create_task(watcher.run())
        await asyncio.sleep(60.0)
        watching.cancel()

    virtual_time.run(scenario())
    assert 55 <= head.polls <= 61
    assert len(news) <= 62


def random_answer(draw: random.Random) -> bytes:
    """Return what a head may send: HTTP or not, JSON or not, large or small."""

    def value(depth: int) -> Any:
        kind = draw.randrange(9 if depth else 6)
        if kind == 6:
            return [value(depth - 1) for _ in range(draw.randrange(5))]
        if kind >= 7:
            names = ("status", "message", "driver_exit_code", "revision", "attempt", "state", "engines", "progress")
            return {draw.choice(names): value(depth - 1) for _ in range(draw.randrange(6))}
        choices = (
            None,
            True,
            draw.randrange(-5, 2**40),
            draw.random() * 1e20,
            "RUNNING",
            "\x1b[2J" * draw.randrange(20),
        )
        return choices[kind]

    body = json.dumps(value(4)).encode()
    match draw.randrange(8):
        case 0:
            body = b"[" * draw.randrange(200_000)
        case 1:
            body = b"{" * draw.randrange(100) + body
        case 2:
            body = gzip_of(draw.randrange(1, 20))
            return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        case 3:
            body = draw.randbytes(draw.randrange(3_000))
        case 4 if draw.random() < 0.1:
            body = b" " * draw.randrange(50 * 2**20)
    status = draw.choice([200, 200, 200, 204, 302, 307, 401, 403, 404, 500, 999])
    length = len(body) + draw.choice([0, 0, 0, 0, 1, -1])
    where = b"Location: http://127.0.0.1:1/\r\n" if status in (302, 307) else b""
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n" % (status, where, max(0, length)) + body


async def outcome(url: str, session: aiohttp.ClientSession) -> None:
    for call in (RayJobs(session, url, TOKEN).look("a"), Control(session, url, TOKEN).status(None)):
        try:
            await call
        except DriverUnreachableError as error:
            assert len(str(error)) < 5_000


def test_random_answers_are_read_or_refused() -> None:
    async def scenario(draw: random.Random) -> None:
        async with driver_api.open_session() as session:
            for _ in range(150):
                async with answered(random_answer(draw)) as url:
                    await outcome(url, session)

    asyncio.run(scenario(random.Random(7)))
