"""One answer while it grows: the engine's parts as turns, and as pieces for the client. Pure, but for SGLang's parsers.

    tokens ─► characters that are complete ─► without stop texts ─► reasoning, text ─► pieces

Axes: T tokens.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from rljob_trainer.engines.client import Continuation, TokenRequest
from rljob_trainer.gateway.answers import Choice
from rljob_trainer.gateway.parsing import Parsed, Parsers
from rljob_trainer.gateway.pieces import Calls, Gave, Piece, Reasoned, Wrote

UNKNOWN_CHARACTER = "\ufffd"
MOST_WAITING = 32
"""tokens without a complete character; then they are none"""
CUT = "abort"
"""finish reason of an answer whose client went away"""


@dataclass
class GrowingText:
    """The text of tokens as they come, without the beginning of what might be a stop text."""

    decode: Callable[[list[int]], str]
    stops: Sequence[str] = ()
    text: str = ""
    """all complete characters"""
    _tokens: list[int] = field(default_factory=list)
    _begin: int = 0
    """of the tokens that are decoded again, because a token's text may depend on the one before"""
    _done: int = 0
    """tokens that are in the text"""
    _given: int = 0

    def add(self, tokens_T: Sequence[int], is_last: bool = False) -> str:
        """Take more tokens, and return the text that is certain now."""
        self._tokens += tokens_T
        before, now = (self.decode(self._tokens[self._begin : end]) for end in (self._done, len(self._tokens)))
        waiting = len(self._tokens) - self._done
        if is_last or waiting > MOST_WAITING or not now.endswith(UNKNOWN_CHARACTER):
            self.text += now[len(before) :]
            self._begin, self._done = self._done, len(self._tokens)
        certain = len(self.text) if is_last else len(self.text) - self._held()
        found = [at for each in self.stops if (at := self.text.find(each, max(0, self._given - len(each)))) >= 0]
        certain = max(self._given, min([certain, *found]))
        new, self._given = self.text[self._given : certain], certain
        return new

    def _held(self) -> int:
        """Return how many of the last characters may begin a stop text."""
        lengths = range(max(map(len, self.stops), default=1) - 1, 0, -1)
        tails = ((length, self.text[-length:]) for length in lengths if length <= len(self.text))
        return next((length for length, tail in tails if any(each.startswith(tail) for each in self.stops)), 0)


class GrowingAnswer:
    """One answer to a request."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        special: Collection[int],
        parsers: Parsers,
        tools: Sequence[Mapping[str, Any]],
        asked: TokenRequest,
    ) -> None:
        """`special` are tokens that are not text."""
        self.parts: list[Continuation] = []
        self.parsed = Parsed("")
        self.call_ids: tuple[str, ...] = ()
        self._decode, self._special, self._parsers, self._tools = decode, special, parsers, tools
        self._ends = frozenset(special).union(asked.stop_token_ids)
        self._text = GrowingText(decode, asked.stop)
        self._division = parsers.division(tools)

    @property
    def is_over(self) -> bool:
        """Whether the engine has ended it."""
        return bool(self.parts) and bool(self.parts[-1].finish_reason)

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return self.parts[-1].finish_reason if self.is_over else CUT

    @property
    def text(self) -> str:
        """All text so far, with calls and reasoning."""
        return self._division.text

    def add(self, part: Continuation) -> Iterator[Piece]:
        """Take a part, and yield the pieces that are certain with it."""
        self.parts.append(part)
        tokens = part.tokens_T
        if part.finish_reason == "stop" and tokens and tokens[-1] in self._ends:
            tokens = tokens[:-1]
        if not self._parsers.need_markers:
            tokens = tuple(token for token in tokens if token not in self._special)
        reasoning, content = self._division.add(self._text.add(tokens, bool(part.finish_reason)))
        yield from _pieces(reasoning, content)

    def end(self) -> Iterator[Piece]:
        """Yield what is left when it is over: the rest of the text, and the calls."""
        whole = self._parsers.parsed(self.text, self._tools)
        yield from _pieces(*self._division.end(whole))
        self.call_ids = tuple(f"call_{secrets.token_hex(12)}" for _ in whole.calls)
        self._keep(whole)
        for index, (number, call) in enumerate(zip(self.call_ids, whole.calls, strict=True)):
            yield Calls(index, number, call.name)
            yield Gave(index, call.arguments)

    def cut(self) -> None:
        """End it where its client has gone away: it has got no call."""
        self._keep(Parsed(""))

    def choice(self, wants_logprobs: bool) -> Choice:
        """Return it as it was given out."""
        tokens = [token for part in self.parts for token in part.tokens_T]
        logprobs_T = tuple(chain.from_iterable(part.logprobs_T for part in self.parts))
        texts = tuple(self._decode([token]) for token in tokens) if wants_logprobs else ()
        cached = self.parts[0].cached if self.parts else 0
        return Choice(self.parsed, self.call_ids, self.finish_reason, logprobs_T, texts, cached)

    def made(self) -> Iterator[Continuation]:
        """Yield what each version of the weights has made: one continuation, where they did not change."""
        for version, same in groupby(self.parts, key=lambda part: part.version):
            parts = list(same)
            yield Continuation(
                tokens_T=tuple(chain.from_iterable(part.tokens_T for part in parts)),
                logprobs_T=tuple(chain.from_iterable(part.logprobs_T for part in parts)),
                text=self.text,
                version=version,
                engine=parts[-1].engine,
                finish_reason=parts[-1].finish_reason or CUT,
                carried=parts[-1].carried,
                experts=parts[-1].experts,
                cached=parts[0].cached,
            )

    def _keep(self, whole: Parsed) -> None:
        self.parsed = Parsed(self._division.content, self._division.reasoning, whole.calls)


def _pieces(reasoning: str, content: str) -> Iterator[Piece]:
    if reasoning:
        yield Reasoned(reasoning)
    if content:
        yield Wrote(content)
