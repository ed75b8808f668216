"""A service that judges: one POST for each response, many at once, asked again while it does not answer.

The body is that of slime's and Miles' remote_rm (slime/rollout/rm_hub): `{"prompt", "response", "label"}`, and
`metadata` where the manifest names its column. `prompt` is the whole text that the engine continued. The answer is a
JSON number, or an object with the number in `remote.answerKey`.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp

from rljob_api.sections import Judging, Remote
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Outage
from rljob_trainer.rewards.ahead import Room, awaited, size_of
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response, Score

BEAT_S = 1.0
MOST_BYTES = 2**20
"""of an answer"""
MOST_SHOWN = 200
"""characters of an answer that is not one"""
TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
GATEWAY = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""a proxy answers any request with these while its service is away"""


@dataclass(frozen=True, slots=True)
class RemoteReward:
    """Asks the service."""

    remote: Remote
    timeout_s: float
    concurrency: int
    with_metadata: bool
    environ: Mapping[str, str]
    alive: Callable[[], None]
    """called again and again during requests, whose time is limited"""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """waits so long before the service is asked again [s]"""
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    outage: Outage | None = None
    """None: a service that is away is not waited for"""

    def __call__(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Yield the scores. Raises RewardError when a header cannot be read, and AwayError."""
        headers = self.headers()
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            session = runner.run(self.open(headers))
            tasks = runner.run(self._ask(session, responses))
            try:
                for task in tasks:
                    yield runner.run(self._result(task))
            finally:  # also when the caller takes no further scores
                runner.run(_end(session, tasks))

    def headers(self) -> dict[str, str]:
        """Return the headers; files are read each time, for Kubernetes changes them. Raises RewardError."""
        given: dict[str, str] = {}
        for name, variable in self.remote.headers_from_env.items():
            if not self.environ.get(variable):
                raise RewardError(
                    f"reward.remote.headersFromEnv.{name}: the environment variable {variable} is not set"
                )
            given[name] = self.environ[variable]
        for name, file in self.remote.headers_from_file.items():
            try:
                given[name] = Path(file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise RewardError(f"reward.remote.headersFromFile.{name}: {file} cannot be read: {error}") from error
        return given

    async def open(self, headers: Mapping[str, str]) -> aiohttp.ClientSession:
        """Return a session for requests with these headers."""
        return aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            connector=aiohttp.TCPConnector(limit=self.concurrency),
        )

    async def _ask(self, session: aiohttp.ClientSession, responses: Sequence[Response]) -> list["asyncio.Task[Score]"]:
        room = asyncio.Semaphore(self.concurrency)

        return [asyncio.create_task(self.score(session, response, room)) for response in responses]

    async def _result(self, task: "asyncio.Task[Score]") -> Score:
        while not task.done():
            self.alive()
            await asyncio.wait({task}, timeout=BEAT_S)
        return task.result()

    async def score(self, session: aiohttp.ClientSession, response: Response, room: asyncio.Semaphore) -> Score:
        """Return the score, or a failure of this response alone: others have room while it pauses. Raises AwayError."""
        body, outage = self._body(response), self.outage or Outage(self.remote.url, tries=self.remote.retries + 1)
        failing = outage.trouble()
        while True:
            is_away = False
            try:
                async with room:
                    status, text = await self._post(session, body)
            except TimeoutError:
                trouble = f"no answer within {self.timeout_s:g} s"
            except aiohttp.InvalidURL as error:
                return self._failure(response, f"no address: {error}", failing.tries)
            except (aiohttp.ClientError, OSError) as error:
                trouble, is_away = f"{type(error).__name__}: {error}", self.outage is not None
            else:
                if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
                    outage.worked()
                    found = self._number(text)
                    wrong = self._failure(response, f"answered {_shown(text)}", failing.tries)
                    return wrong if found is None else found
                trouble = f"answered {status}: {_shown(text)}"
                if status not in TRANSIENT and status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return self._failure(response, trouble, failing.tries)
                is_away = status in GATEWAY and self.outage is not None
            pause_s = outage.pause_s(failing, trouble, is_away=is_away)
            if pause_s is None:
                return self._failure(response, trouble, failing.tries - 1)
            await self.pause(pause_s)

    def _body(self, response: Response) -> bytes:
        prompt = response.prompt
        body: dict[str, Any] = {"prompt": prompt.text, "response": response.text, "label": prompt.label}
        if self.with_metadata:
            body["metadata"] = dict(prompt.metadata)
        return json.dumps(body, default=str).encode()  # a Parquet column may hold dates

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        async with session.post(self.remote.url, data=body, headers=headers, allow_redirects=False) as answer:
            raw = bytearray()
            async for part in answer.content.iter_any():
                raw += part
                if len(raw) > MOST_BYTES:
                    break
            return answer.status, raw[:MOST_BYTES].decode("utf-8", "replace")

    def _number(self, text: str) -> float | None:
        try:
            value = json.loads(text)
        except ValueError:
            return None
        if self.remote.answer_key is not None:
            value = value.get(self.remote.answer_key) if isinstance(value, dict) else None
        if not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def _failure(self, response: Response, trouble: str, attempt: int) -> Failure:
        wanted = f"an object with a number in {self.remote.answer_key!r}" if self.remote.answer_key else "a number"
        asked = f" (asked {attempt + 1} times)" if attempt else ""
        return Failure(
            f"{self.remote.url} on prompt {response.prompt.uid}: {trouble}{asked}; a JSON answer is wanted: {wanted}"
        )


class EarlyRemote:
    """Asks the service while other responses are sampled, from a separate thread; all requests share one bound."""

    def __init__(self, reward: RemoteReward, room: Room) -> None:
        self.reward = reward
        self.room = room
        self._stack = ExitStack()
        self._background = self._stack.enter_context(Background())
        self._turns = asyncio.Semaphore(reward.concurrency)

    def __call__(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Ask for the scores at once, and yield them. Raises RewardError if a header cannot be read, and AwayError."""
        groups = groupby(responses, key=lambda response: response.prompt.uid)
        return self._scores([self._ask(tuple(group)) for _, group in groups])

    def begin(self, responses: Sequence[Response]) -> Iterator[Score] | None:
        """Ask for the scores while others are sampled; None: too many bytes of responses wait already."""
        size = size_of(responses)
        if not self.room.take(size):
            return None
        future = self._ask(responses)
        future.add_done_callback(partial(self.room.give_back, size))
        return self._scores([future])

    def close(self) -> None:
        """End the requests under way, and the thread."""
        self._stack.close()

    def _ask(self, responses: Sequence[Response]) -> "Future[list[Score]]":
        return self._background.submit(self._judged(responses))

    async def _judged(self, responses: Sequence[Response]) -> list[Score]:
        session = await self.reward.open(self.reward.headers())
        tasks = [asyncio.create_task(self.reward.score(session, each, self._turns)) for each in responses]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _end(session, tasks)

    def _scores(self, futures: "Sequence[Future[list[Score]]]") -> Iterator[Score]:
        try:
            for future in futures:
                yield from awaited(future, self.reward.alive)
        finally:
            for future in futures:
                future.cancel()


def remote_reward(
    spec: Judging,
    with_metadata: bool,
    environ: Mapping[str, str],
    alive: Callable[[], None],
    outage: Outage | None = None,
) -> RemoteReward:
    """Return the reward; raise RewardError if one of its headers cannot be read."""
    assert spec.remote is not None, "the manifest's rules ask for it"
    made = RemoteReward(
        spec.remote, spec.timeout_seconds, spec.concurrency, with_metadata, environ, alive, outage=outage
    )
    made.headers()
    return made


async def _end(session: aiohttp.ClientSession, tasks: Sequence["asyncio.Task[Score]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await session.close()


def _shown(text: str) -> str:
    return repr(text[:MOST_SHOWN])
