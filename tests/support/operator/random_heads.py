"""A server that answers for Ray and for drivers, as it likes: random, and the same for each seed."""

import asyncio
import gzip
import json
import random
import threading
from typing import Any

from aiohttp import web

from rljob_api.control import STATUS
from support.operator.operator_world import running

PIECE = b" " * 2**16
RAY = {"status": "RUNNING", "message": "", "driver_exit_code": None}
STATES = ("PENDING", "RUNNING", "RUNNING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED", "MELTED", "")
LARGE = 50 * 2**20
"""the largest answers [bytes]"""


class RandomHeads:
    """Counts its answers; `enough` is set when there were so many."""

    def __init__(self, seed: int, wanted: int) -> None:
        self._draw = random.Random(seed)
        self._wanted = wanted
        self.answers = 0
        self.kinds: dict[str, int] = {}
        self.enough = threading.Event()

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.answers += 1
        if self.answers >= self._wanted:
            self.enough.set()
        kinds = {
            self._like_the_truth: 50,
            self._json: 15,
            self._deep: 5,
            self._bytes: 8,
            self._gzip: 5,
            self._redirect: 5,
            self._refusal: 8,
            self._long_message: 2,
            self._endless: 1,
            self._drip: 1,
        }
        ((chosen),) = self._draw.choices(list(kinds), list(kinds.values()))
        self.kinds[chosen.__name__] = self.kinds.get(chosen.__name__, 0) + 1
        try:
            return await chosen(request)
        except ConnectionError:  # the operator has read enough
            return web.Response()

    async def _like_the_truth(self, request: web.Request) -> web.StreamResponse:
        if request.path != STATUS:
            answer: Any = {**RAY, "status": self._draw.choice(STATES)}
        else:
            answer = json.loads(running(step=self._draw.randrange(10)).model_dump_json(by_alias=True))
            answer["revision"] = self._draw.randrange(10**6)
            answer["attempt"] = 1
        for _ in range(self._draw.choice((0, 0, 1, 3))):
            self._spoil(answer)
        return web.Response(text=json.dumps(answer))

    def _spoil(self, value: Any) -> None:
        """Change one value somewhere inside."""
        while True:
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            if not keys:
                return
            key = self._draw.choice(keys)
            if not isinstance(value[key], dict | list) or not value[key] or self._draw.random() < 0.1:
                value[key] = self._value(2)
                return
            value = value[key]

    def _value(self, depth: int) -> Any:
        draw = self._draw
        match draw.randrange(9 if depth else 7):
            case 7:
                return [self._value(depth - 1) for _ in range(draw.randrange(5))]
            case 8:
                names = ("status", "message", "engines", "revision", "progress", "attempt", "x" * draw.randrange(200))
                return {draw.choice(names): self._value(depth - 1) for _ in range(draw.randrange(6))}
            case kind:
                text = "".join(map(chr, (draw.randrange(0x20, 0xD7FF) for _ in range(draw.randrange(100)))))
                numbers = draw.randrange(-(2**70), 2**70), draw.random() * 1e300, float("nan"), 3
                return (None, True, draw.choice(numbers), text, "\x1b[2J\ud800", -1, 10 ** draw.randrange(30))[kind]

    async def _json(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=json.dumps(self._value(5)))

    async def _deep(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=self._draw.choice("[{") * self._draw.randrange(200_000))

    async def _bytes(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._draw.randbytes(self._draw.randrange(5_000)))

    async def _gzip(self, _: web.Request) -> web.StreamResponse:
        body = gzip.compress(bytes(self._draw.randrange(2**20)), 1)
        return web.Response(body=body, headers={"Content-Encoding": self._draw.choice(("gzip", "deflate", "br", "x"))})

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        status = self._draw.choice((301, 302, 303, 307, 308))
        return web.Response(
            status=status, headers={"Location": self._draw.choice(("/", str(request.url), "http://[::"))}
        )

    async def _refusal(self, _: web.Request) -> web.StreamResponse:
        status = self._draw.choice((204, 400, 401, 403, 404, 409, 429, 500, 503, 599))
        return web.Response(status=status, text="x does not exist " * self._draw.randrange(1_000))

    async def _long_message(self, _: web.Request) -> web.StreamResponse:
        text = self._draw.choice(("x", "\n", "\u20ac", "\x00", "Traceback\n")) * 100_000
        return web.Response(text=json.dumps({**RAY, "status": "FAILED", "message": text}))

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(self._draw.randrange(LARGE) // len(PIECE)):
            await answer.write(PIECE)
        return answer

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(self._draw.randrange(1, 30)):
            await answer.write(b" ")
            await asyncio.sleep(0.1)
        return answer
