"""Gateways that are killed at points of a plan: between two events of a session's file, or while an engine answers.

Each process of a gateway takes the next point. It kills itself before it writes the n-th event of its life, whichever
it is: a request, the turns of an answer, the answer that has left. The engine kills it after some tokens of the n-th
request, also before the first.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from rljob_trainer.data.tokenizer import load_tokenizer
from support.trainer.tiny_models import END_OF_TURN

PLUGIN = """
import json, os, signal, sys

if "rljob_trainer.gateway.process" in sys.orig_argv:
    plan, current = {plan!r}, {current!r}
    with open(plan) as file:
        points = json.load(file)
    point = points.pop(0) if points else {{"by": "nobody"}}
    for path, content in ((plan, points), (current, {{**point, "pid": os.getpid()}})):
        with open(path + ".new", "w") as file:
            json.dump(content, file)
        os.replace(path + ".new", path)
    if point["by"] == "file":
        left = [point["number"]]

        def hook(event, arguments):
            if event == "open" and "rljob-sessions-" in str(arguments[0]) and arguments[2] & os.O_APPEND:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
"""


Point = dict[str, Any]


def at_event(number: int) -> Point:
    """Return the point before the n-th event of a process."""
    return {"by": "file", "number": number}


def at_token(request: int, after: int) -> Point:
    """Return the point after some tokens of the n-th request of a process."""
    return {"by": "engine", "number": request, "after": after}


def drawn(number: int, seed: int) -> list[Point]:
    """Return points of both kinds in turn."""
    random_ = random.Random(seed)
    return [
        at_event(random_.randint(1, 24)) if index % 2 else at_token(random_.randint(1, 6), random_.randint(0, 3))
        for index in range(number)
    ]


@dataclass(frozen=True)
class Plan:
    """The points at which gateways die, in files that their processes read."""

    directory: Path

    def write(self, points: Sequence[Point]) -> None:
        """Have gateways die at these points, one after the other."""
        self._plan.write_text(json.dumps(points))
        code = PLUGIN.format(plan=str(self._plan), current=str(self._current))
        (self.directory / "sitecustomize.py").write_text(code)

    @property
    def left(self) -> int:
        """Points that no process has taken yet."""
        return len(json.loads(self._plan.read_text()))

    @property
    def current(self) -> dict[str, Any]:
        """The point of the newest process, and its pid."""
        return dict(json.loads(self._current.read_text()))

    @property
    def _plan(self) -> Path:
        return self.directory / "plan.json"

    @property
    def _current(self) -> Path:
        return self.directory / "current.json"


def logprobs(number: int, tokens: Sequence[int]) -> list[float]:
    """Return those of an answer: they say which one it is."""
    return [-0.001 * number - 0.5 * index for index in range(len(tokens))]


@dataclass
class NumberingEngine:
    """Says another number in each answer, and kills gateways as the plan says."""

    model: Path
    plan: Plan
    answers: int = 0
    kills: int = 0
    asked: dict[int, int] = field(default_factory=dict)
    """requests of each gateway, by its pid"""

    async def serve(self) -> str:
        self.tokenizer = load_tokenizer(self.model)
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.runner.cleanup()

    def tokens(self, number: int) -> list[int]:
        """Return the tokens of an answer."""
        end = self.tokenizer.convert_tokens_to_ids(END_OF_TURN)
        return [*self.tokenizer.encode(f"It is {number}.", add_special_tokens=False), end]

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.answers += 1
        number, dies_after = self.answers, self._dies_after()
        tokens = self.tokens(number)
        parts = [self._part(number, tokens[:end], end == len(tokens)) for end in range(1, len(tokens) + 1)]
        if not body.get("stream"):
            self._kill_if(dies_after is not None)
            return web.json_response(parts[-1])
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for at, part in enumerate(parts):
            self._kill_if(at == dies_after)
            await answer.write(b"data: " + json.dumps(part).encode() + b"\n\n")
            await asyncio.sleep(0.001)  # each part by itself
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def _part(self, number: int, tokens: list[int], is_last: bool) -> dict[str, Any]:
        said = [[logprob, token, None] for logprob, token in zip(logprobs(number, tokens), tokens, strict=True)]
        facts = {"output_token_logprobs": said, "weight_version": "0@engine-0"}
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return {"text": text, "meta_info": {**facts, "finish_reason": {"type": "stop"} if is_last else None}}

    def _dies_after(self) -> int | None:
        """Return after how many tokens of this answer its gateway is killed; None: it is not."""
        point = self.plan.current
        count = self.asked[point["pid"]] = self.asked.get(point["pid"], 0) + 1
        return point["after"] if point["by"] == "engine" and point["number"] == count else None

    def _kill_if(self, dies: bool) -> None:
        if dies:
            os.kill(self.plan.current["pid"], signal.SIGKILL)
            self.kills += 1
