"""The generator for generate functions: each sample is made in its own conversation.

Functions run in their own event loop. A function that computes, or blocks without `await`, delays other samples, but
not the driver's heartbeat or control server. Unanswered requests are retried without the function's knowledge. A sample
whose turns come from different weights is started again. A function that fails is called again, some times; then its
sample is lost, and the others stay.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from rljob_api.sections import Sampling
from rljob_trainer.conversations.conversation import Conversation, Limits
from rljob_trainer.conversations.errors import GenerateError, TooSlowError
from rljob_trainer.conversations.function import Function
from rljob_trainer.conversations.turns import Tokenizer, Turns
from rljob_trainer.engines.client import (
    Continuation,
    EngineError,
    EngineRefusedError,
    Generates,
    Streams,
    TokenRequest,
)
from rljob_trainer.engines.generation import token_request
from rljob_trainer.generator import RETRY_PAUSE_S, GenerationFailedError, RolloutTimeoutError
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Cause, Outage, Trouble
from rljob_trainer.samples import Prompt, Sample

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""interval for checking how long a function has taken"""


@dataclass
class Engines:
    """All engines, behind the router: asked until one answers."""

    router: Streams
    """with a session in the event loop of those who ask"""
    deadline_s: float
    """of one request"""
    patience_s: float
    """longest time without an answer"""
    alive: Callable[[], None]
    """called on every answer"""
    clock: Callable[[], float] = time.monotonic
    carrying: Generates | None = None
    """the router behind what carries answers over publications; None: no publication cuts an answer"""
    retries: int = 0
    _last_answer_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the timer after a pause without requests."""
        self._last_answer_s = self.clock()

    async def answer(self, request: TokenRequest) -> Continuation:
        """Return one continuation. Raises EngineRefusedError if the request is invalid, and RolloutTimeoutError."""
        logged = ""
        while True:
            try:
                (said,) = await (self.carrying or self.router).generate(request, self.deadline_s)
            except EngineRefusedError:
                raise
            except EngineError as error:
                reason = str(error)
            else:
                if said.finish_reason != "abort":
                    self._last_answer_s = self.clock()
                    self.alive()
                    return said
                reason = f"aborted by engine {said.engine}"
            logged = await self._pause(reason, logged)

    async def stream(self, request: TokenRequest) -> AsyncGenerator[Continuation, None]:
        """Yield one continuation in parts; all but the last have an empty `finish_reason`.

        What an engine has said stays: where it is lost, another one goes on behind its last token. Raises as `answer`.
        With `carrying` there is one part: the last token before a publication is made again, so it cannot be given out.
        """
        if self.carrying is not None:
            yield await self.answer(request)
            return
        logged = ""
        said: tuple[int, ...] = ()
        last: Continuation | None = None
        while True:
            left = request.max_new_tokens - len(said)
            if last is not None and left < 1:
                yield replace(last, tokens_T=(), logprobs_T=(), finish_reason="length")
                return
            asked = replace(request, tokens_T=(*request.tokens_T, *said), max_new_tokens=left)
            try:
                async with aclosing(self.router.stream(asked, self.deadline_s)) as parts:
                    async for part in parts:
                        is_aborted = part.finish_reason == "abort"
                        last = replace(part, finish_reason="") if is_aborted else part
                        if last.tokens_T or last.finish_reason:
                            said += last.tokens_T
                            self._last_answer_s = self.clock()
                            self.alive()
                            yield last
                        if last.finish_reason:
                            return
                reason = f"aborted by engine {last.engine}" if last is not None else "no answer"
            except EngineRefusedError:
                raise
            except EngineError as error:
                reason = str(error)
            logged = await self._pause(reason, logged)

    async def _pause(self, reason: str, logged: str) -> str:
        """Wait before a request is repeated, and return the reason. Raises RolloutTimeoutError."""
        if logged != reason:  # without engines, the same reason repeats for minutes
            log.info("action=retry reason=%s", reason)
        self.failed(reason)
        await asyncio.sleep(RETRY_PAUSE_S)
        return reason

    def failed(self, reason: str) -> None:
        """Count a request that no engine has answered. Raises RolloutTimeoutError if none has answered any for long."""
        self.retries += 1
        if self.clock() - self._last_answer_s > self.patience_s:
            raise RolloutTimeoutError(f"no engine has answered within {self.patience_s:g} s: {reason}")


@dataclass(frozen=True, slots=True)
class SampledModel:
    """The engines with the sampling settings of one prompt."""

    engines: Engines
    prompt: Prompt
    sampling: Sampling
    greedy: bool

    async def go_on(self, tokens_T: tuple[int, ...], max_new_tokens: int, stop: Sequence[str]) -> Continuation:
        """Return the continuation of the tokens."""
        stops = (*self.sampling.stop, *stop)
        sampling = self.sampling.model_copy(update={"max_new_tokens": max_new_tokens, "stop": stops})
        asked = replace(self.prompt, tokens_T=tokens_T)
        return await self.engines.answer(token_request(asked, sampling, 1, self.greedy))


@dataclass(frozen=True, slots=True)
class FunctionGenerator:
    """Makes each sample with a function."""

    function: Function
    own_time_s: float
    """time limit of the function for one sample, without waiting for the model [s]"""
    engines: Engines
    tokenizer: Tokenizer
    turns: Turns
    limits: Limits
    apart: Background
    """where functions run"""
    clock: Callable[[], float] = time.monotonic
    outage: Outage | None = field(default_factory=lambda: Outage("the generate function"))
    """decides which samples are lost; None: an error of one is an error of all"""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return `num_samples` samples, less those that are lost.

        Raises RolloutTimeoutError where no engine answers, AwayError where the function fails for too long. If nothing
        may be lost: GenerateError where the function cannot make a sample, EngineRefusedError where it asks for what no
        engine can do.
        """
        self.engines.begin()
        model = SampledModel(self.engines, prompt, sampling, greedy)
        asked = [asyncio.ensure_future(self._sample(prompt, model, greedy)) for _ in range(num_samples)]
        try:
            return tuple(sample for sample in await asyncio.gather(*asked) if sample is not None)
        finally:
            for task in asked:
                task.cancel()

    async def _sample(self, prompt: Prompt, model: SampledModel, greedy: bool) -> Sample | None:
        """Return a sample; None: it is lost."""
        failing = self.outage.trouble() if self.outage else None
        while True:
            conversation = Conversation(prompt, greedy, model, self.tokenizer, self.turns, self.limits, self.clock)
            try:
                sample = await self._made(conversation)
            except GenerationFailedError as error:
                log.info("action=begin_again prompt=%s reason=%s", prompt.uid, error)
                await asyncio.sleep(RETRY_PAUSE_S)
            except (GenerateError, EngineRefusedError) as error:
                if self.outage is None or failing is None:
                    raise
                if (pause_s := self._pause_s(self.outage, failing, error)) is None:
                    log.warning("action=lose_sample prompt=%s reason=%s", prompt.uid, error)
                    cause = Cause.REFUSED if isinstance(error, EngineRefusedError) else Cause.GENERATE
                    self.outage.losses.note(cause, 1, error)
                    return None
                log.info("action=try_again prompt=%s seconds=%.1f reason=%s", prompt.uid, pause_s, error)
                await self.pause(pause_s)
            else:
                if self.outage is not None:
                    self.outage.worked()
                return sample

    def _pause_s(self, outage: Outage, failing: Trouble, error: Exception) -> float | None:
        return None if isinstance(error, TooSlowError) else outage.pause_s(failing, str(error))

    async def _made(self, conversation: Conversation) -> Sample:
        making = asyncio.wrap_future(self.apart.submit(self.function.sample(conversation)))
        try:
            while not (await asyncio.wait({making}, timeout=LOOK_S))[0]:
                if conversation.own_s > self.own_time_s:
                    raise TooSlowError(
                        f"{self.function.name}: prompt {conversation.prompt.uid}: took longer than "
                        f"{self.own_time_s:g} s (generateTimeoutSeconds), beside waiting for the model"
                    )
            return making.result()
        finally:
            making.cancel()
