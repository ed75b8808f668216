"""Partial rollouts: a response that a publication cut off continues with the new weights.

    prompt ─► 17 tokens by version 3 ─ cut off ─► prompt + 16 tokens ─► 9 tokens by version 4, end of the response

Stands where the router's client stands, so callers see whole responses, however many engines have made them. The
log-probability of a token stays that of the weights that made it. The last token of a part is made again: it may have
ended the response, which the engine did not say because the cut came first, and whether it is kept must not depend on
what it is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby

from rljob_trainer.engines.client import (
    Continuation,
    EngineError,
    EngineRefusedError,
    Generates,
    Streams,
    TokenRequest,
)
from rljob_trainer.engines.gate import Gate

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[int]], str]
"""returns the text of tokens, without special ones"""
PAUSE_S = 0.1
"""before a request is retried that failed, or was cut off before its first token [s]"""


@dataclass(frozen=True, slots=True)
class Gated:
    """Requests wait at a gate, each before it is sent."""

    router: Generates
    gate: Gate

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return the answers; `deadline_s` is for a request that has passed the gate."""
        async with self.gate.passed():
            return await self.router.generate(request, deadline_s)


@dataclass(frozen=True, slots=True)
class GatedStreams:
    """As `Gated`, for requests whose answers come in parts, too."""

    router: Streams
    gate: Gate

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return the answers; `deadline_s` is for a request that has passed the gate."""
        return await Gated(self.router, self.gate).generate(request, deadline_s)

    async def stream(self, request: TokenRequest, deadline_s: float) -> AsyncGenerator[Continuation, None]:
        """Yield the parts of an answer; `deadline_s` as above."""
        async with self.gate.passed(), aclosing(self.router.stream(request, deadline_s)) as parts:
            async for part in parts:
                yield part


@dataclass(frozen=True, slots=True)
class Carrying:
    """Requests the rest of each cut response until it is complete."""

    router: Generates
    decode: Decode
    failed: Callable[[str], None] = lambda reason: None
    """called when the rest of a response was not answered, before it is asked again; raises when that is pointless"""

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return whole responses; `deadline_s` is for each part of one.

        Raises EngineError when nothing has been made yet and another try is due, EngineRefusedError when no try helps,
        and what `failed` raises.
        """
        first = await self.router.generate(request, deadline_s)
        rest = [asyncio.ensure_future(self._whole(request, part, deadline_s)) for part in first]
        try:
            return tuple(await asyncio.gather(*rest))
        finally:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _whole(self, request: TokenRequest, part: Continuation, deadline_s: float) -> Continuation:
        parts = [part]
        while parts[-1].finish_reason == "abort":
            cut = _kept(parts.pop(), request)
            parts += [cut] if cut.tokens_T else []
            if not cut.tokens_T:
                await asyncio.sleep(PAUSE_S)
            parts.append(await self._next(_rest(request, parts), deadline_s))
            if (end := overlap(parts, request.stop, self.decode)) is not None:
                parts[-1] = replace(_first(parts[-1], end), finish_reason="stop")
        return joined(parts, request, self.decode) if len(parts) > 1 else parts[0]

    async def _next(self, request: TokenRequest, deadline_s: float) -> Continuation:
        logged = ""
        while True:
            try:
                (part,) = await self.router.generate(request, deadline_s)
            except EngineRefusedError:
                raise
            except EngineError as error:  # what was made so far is kept
                if logged != (logged := str(error)):
                    log.info("action=carry_again reason=%s", logged)
                self.failed(logged)
                await asyncio.sleep(PAUSE_S)
            else:
                return part


def overlap(parts: Sequence[Continuation], stop: Sequence[str], decode: Decode) -> int | None:
    """Return after how many tokens of the last part a stop string is complete that begins in the parts before; or None.

    No engine has seen both ends of it. A string of n bytes has at most n - 1 tokens on either side.
    """
    *before, last = parts
    reach = max((len(text.encode()) for text in stop), default=1) - 1
    if not before or not reach:
        return None
    earlier = [token for part in before for token in part.tokens_T][-reach:]
    for end in range(1, min(reach, len(last.tokens_T)) + 1):
        text = decode([*earlier, *last.tokens_T[:end]])
        if any(each in text for each in stop):
            return end
    return None


def joined(parts: Sequence[Continuation], request: TokenRequest, decode: Decode) -> Continuation:
    """Return the parts of one response as one; version, engine and end are those of the last part."""
    tokens_T = tuple(token for part in parts for token in part.tokens_T)
    runs = groupby(parts, key=lambda part: part.version)
    return replace(
        parts[-1],
        tokens_T=tokens_T,
        logprobs_T=tuple(logprob for part in parts for logprob in part.logprobs_T),
        text=_text(tokens_T, parts[-1].finish_reason, request, decode),
        cached=parts[0].cached,
        carried=tuple((version, sum(len(part.tokens_T) for part in run)) for version, run in runs),
    )


def _text(tokens_T: tuple[int, ...], finish_reason: str, request: TokenRequest, decode: Decode) -> str:
    """Return the text as SGLang does: without the token or string that ended the response."""
    ended = finish_reason == "stop" and tokens_T and tokens_T[-1] in request.stop_token_ids
    text = decode(tokens_T[:-1] if ended else tokens_T)
    return text[: min((text.index(each) for each in request.stop if each in text), default=len(text))]


def _rest(request: TokenRequest, parts: Sequence[Continuation]) -> TokenRequest:
    made = tuple(token for part in parts for token in part.tokens_T)
    return replace(
        request,
        tokens_T=(*request.tokens_T, *made),
        num_samples=1,
        max_new_tokens=request.max_new_tokens - len(made),
    )


def _kept(part: Continuation, request: TokenRequest) -> Continuation:
    """Return a part without its last token; of an answer in a forced format, nothing: the format begins with it."""
    return _first(part, max(0, len(part.tokens_T) - 1) if request.json_schema is None else 0)


def _first(part: Continuation, number: int) -> Continuation:
    return replace(part, tokens_T=part.tokens_T[:number], logprobs_T=part.logprobs_T[:number])
