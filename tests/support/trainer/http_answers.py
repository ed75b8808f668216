"""Stands where an `aiohttp.ClientSession` does: remembers what was asked, and answers by path, without a socket."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rljob_trainer.engines.key import with_key

Answer = Any
"""a value: JSON with status 200; an exception, which the request raises; a `Reply`; or a function that returns one"""


@dataclass(frozen=True)
class Reply:
    status: int
    content: Any
    is_json: bool = True
    until: asyncio.Event | None = None
    """when it comes; None: at once"""


@dataclass(frozen=True)
class Asked:
    method: str
    url: str
    body: Any
    deadline_s: float


@dataclass
class HttpAnswers:
    answers: dict[str, Answer] = field(default_factory=dict)
    """by the end of the url, the longest that fits; `{}` for any other"""
    asked: list[Asked] = field(default_factory=list)

    key: str = ""
    """that each request needs"""

    def request(self, method: str, url: str, json: Any, headers: Mapping[str, str], timeout: Any) -> "_Exchange":
        self.asked.append(Asked(method, url, json, timeout.total))
        if headers != with_key(self.key):
            return _Exchange(Reply(401, {"error": "Unauthorized"}))
        end = max((end for end in self.answers if url.endswith(end)), key=len, default=None)
        found = {} if end is None else self.answers[end]
        return _Exchange(found() if callable(found) else found)

    def bodies(self, end: str) -> list[Any]:
        """Return what was asked of the urls that end so."""
        return [asked.body for asked in self.asked if asked.url.endswith(end)]


class _Exchange:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        reply = answer if isinstance(answer, Reply) else Reply(200, answer)
        self._content = reply.content
        self._until = reply.until
        self.status = reply.status
        self.content_type = "application/json" if reply.is_json else "text/plain"

    async def __aenter__(self) -> "_Exchange":
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._until is not None:
            await self._until.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def json(self, loads: Callable[[str], Any]) -> Any:
        return loads(json.dumps(self._content))

    async def text(self) -> str:
        return str(self._content)
