"""Clients of `agent_sessions.py`, in processes of their own: each plays sessions, with one request after the other.

A session asks the same questions each time, as tokens from the engines or as messages from a gateway. Nothing is
waited for between two turns.

Axes: T tokens.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain

import aiohttp
import orjson

from rljob_trainer.engines.client import EngineError, RouterClient, TokenRequest, open_session

TEMPLATE = (
    "{% for message in messages %}{{ '3 ' if message.role == 'assistant' else '2 ' }}{{ message.content }} <end> "
    "{% endfor %}{% if add_generation_prompt %}3 {% endif %}"
)
"""chat template of a tokenizer whose tokens are numbers; token 1 ends a turn"""
END, USER, MODEL = 1, 2, 3
FIRST_WORD = 4


@dataclass(frozen=True, slots=True)
class Course:
    """What all sessions have in common."""

    turns: int
    question: int
    """tokens of a message, without the three that the template adds"""
    answer: int
    """tokens"""
    vocabulary: int
    deadline_s: float
    """of a request [s]"""

    @property
    def tokens(self) -> int:
        """Context that a session needs: SGLang wants some more than it uses."""
        return self.turns * (self.question + self.answer + 4) + 16


@dataclass(frozen=True, slots=True)
class Played:
    """One session to play."""

    number: int
    """decides its questions"""
    name: str
    """for the router, which may keep a session at one engine"""
    url: str
    """of the router, or of the session at its gateway"""
    key: str = ""
    """of the session; empty: the router is asked, in tokens"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, or the error that ended the session."""

    began: float
    """on a clock that all processes of the machine share [s]"""
    ended: float
    """[s]"""
    tokens: int
    """of the answer"""
    error: str = ""


class Players:
    """The processes."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        for _ in range(processes):
            self._pool.submit(_ready)

    def play(self, sessions: Sequence[Played], course: Course) -> list[Turn]:
        """Play all sessions at once, and return all turns."""
        parts = [sessions[number :: self._processes] for number in range(self._processes)]
        return list(chain.from_iterable(self._pool.map(_played, parts, [course] * self._processes)))

    def close(self) -> None:
        """End them."""
        self._pool.shutdown(cancel_futures=True)


def _ready() -> None:
    """Do nothing: the process that does it has imported what it needs."""


def _played(sessions: Sequence[Played], course: Course) -> list[Turn]:
    return asyncio.run(_all(sessions, course))


async def _all(sessions: Sequence[Played], course: Course) -> list[Turn]:
    async with open_session() as http:
        return list(chain.from_iterable(await asyncio.gather(*(_one(http, each, course) for each in sessions))))


async def _one(http: aiohttp.ClientSession, played: Played, course: Course) -> list[Turn]:
    rng = random.Random(played.number)
    speaker = Messages(http, played, course) if played.key else Tokens(http, played, course)
    turns: list[Turn] = []
    for _ in range(course.turns):
        question = [rng.randrange(FIRST_WORD, course.vocabulary) for _ in range(course.question)]
        began = time.monotonic()
        try:
            tokens = await speaker.ask(question)
        except (EngineError, aiohttp.ClientError, TimeoutError, OSError) as error:
            return [*turns, Turn(began, time.monotonic(), 0, f"{type(error).__name__}: {error}")]
        turns.append(Turn(began, time.monotonic(), tokens))
    return turns


class Tokens:
    """A session whose client writes the prompts itself, and asks the router."""

    def __init__(self, http: aiohttp.ClientSession, played: Played, course: Course) -> None:
        self._router, self._played, self._course = RouterClient(http, played.url), played, course
        self._tokens_T: tuple[int, ...] = ()

    async def ask(self, question: Sequence[int]) -> int:
        """Return how many tokens the answer has. Raises EngineError."""
        before = (END,) if self._tokens_T and self._tokens_T[-1] != END else ()
        self._tokens_T += (*before, USER, *question, END, MODEL)
        asked = TokenRequest(
            self._tokens_T,
            1,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_new_tokens=self._course.answer,
            session=self._played.name,
        )
        (said,) = await self._router.generate(asked, self._course.deadline_s)
        self._tokens_T += said.tokens_T
        return len(said.tokens_T)


class Messages:
    """A session whose client writes messages, as SDKs do, and asks the gateway."""

    def __init__(self, http: aiohttp.ClientSession, played: Played, course: Course) -> None:
        self._http, self._url, self._course = http, f"{played.url}/chat/completions", course
        self._headers = {"Authorization": f"Bearer {played.key}", "Content-Type": "application/json"}
        self._messages: list[dict[str, str]] = []

    async def ask(self, question: Sequence[int]) -> int:
        """Return how many tokens the answer has. Raises ClientError and TimeoutError."""
        self._messages.append({"role": "user", "content": " ".join(map(str, question))})
        body = {"model": "policy", "messages": self._messages, "max_tokens": self._course.answer}
        timeout = aiohttp.ClientTimeout(total=self._course.deadline_s)
        async with self._http.post(self._url, data=orjson.dumps(body), headers=self._headers, timeout=timeout) as reply:
            content = await reply.read()
            if reply.status != 200:
                raise aiohttp.ClientError(f"{reply.status} {content[:200]!r}")
        answer = orjson.loads(content)
        self._messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return int(answer["usage"]["completion_tokens"])
