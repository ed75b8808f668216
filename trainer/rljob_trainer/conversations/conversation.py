"""A conversation under way: what a generate function is given, and builds a sample with.

What the model says is kept as the tokens and log-probabilities that the engine gave, and goes back to it as those very
tokens: text is made of them for people, and never tokens of that text. What the environment says is tokenised once.

Axes: T tokens of the response.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_api.room import new_tokens
from rljob_trainer.conversations.errors import ConversationOverError, GenerateError
from rljob_trainer.conversations.turns import Tokenizer, Turns
from rljob_trainer.engines.client import Continuation
from rljob_trainer.rollouts import GenerationFailedError
from rljob_trainer.samples import Prompt, Sample, Segment

Overflow = Literal["Truncate", "Drop"]
"""what becomes of a sample that outgrows the context"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a sample may become."""

    context: int
    """prompt and response [tokens]"""
    new_tokens: int
    """what the model may write, in all its answers together [tokens]"""
    overflow: Overflow = "Truncate"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model has said in one go."""

    text: str
    """without the token or the stop string that ended it"""
    marked: str
    """the same with all markers, as the model wrote it"""
    finish_reason: str
    """`stop`: it ended its turn, or wrote a stop string; `length`: it was cut off"""


class Model(Protocol):
    """Whoever continues tokens."""

    async def go_on(self, tokens_T: tuple[int, ...], max_new_tokens: int, stop: Sequence[str]) -> Continuation:
        """Return what follows; engines that fail meanwhile are not heard of."""


class Conversation:
    """One sample of one prompt, as far as it has come."""

    def __init__(
        self, prompt: Prompt, greedy: bool, model: Model, tokenizer: Tokenizer, turns: Turns, limits: Limits
    ) -> None:
        self.prompt = prompt
        """the question: `question`, `label`, `metadata`, and `text` and `tokens_T` as the engine gets them"""
        self.greedy = greedy
        """whether an evaluation asks for the likeliest tokens"""
        self._model = model
        self._tokenizer = tokenizer
        self._turns = turns
        self._limits = limits
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._segments: list[Segment] = []
        self._answers: list[Continuation] = []
        self._over = self._outgrown = False
        self._began, self._waited_s = time.monotonic(), 0.0
        self._waits_since: float | None = None

    @property
    def room(self) -> int:
        """How many tokens the model may still write."""
        return min(self._room_in_context(), self._budget)

    async def model(self, *, stop: Sequence[str] = (), max_tokens: int | None = None) -> Answer:
        """Have the model go on from here: until it ends its turn, writes one of `stop`, or has written `max_tokens`.

        `stop` is beside the manifest's stop strings. Raises ConversationOverError where there is no room.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens {max_tokens} is less than 1")
        if self._waits_since is not None:
            raise RuntimeError("the model is being asked already: a conversation has one thread")
        self._require_room(())
        most = self.room if max_tokens is None else min(self.room, max_tokens)
        with self._waiting():
            said = await self._model.go_on((*self.prompt.tokens_T, *self._tokens), most, stop)
        self._answers.append(said)
        self._check_version()
        self._add(said.tokens_T, said.logprobs_T, by_model=True)
        cut_off = said.finish_reason == "length"
        self._outgrown |= cut_off and self._room_in_context() < 1 <= self._budget
        marked = self._segments[-1].text if said.tokens_T else ""
        return Answer(said.text, marked, said.finish_reason)

    def give(self, text: str) -> None:
        """Go on with a text of the environment, which is not trained on.

        Raises ConversationOverError where it leaves the model no room.
        """
        self._given(self._tokenizer.encode(text, add_special_tokens=False))

    def reply(self, *messages: Mapping[str, Any]) -> None:
        """Go on with turns, `{"role": "user", "content": ...}`, in the chat template's form, and open the model's next.

        They are not trained on. Raises ConversationOverError where they leave the model no room, and GenerateError
        where the template cannot have them.
        """
        last = self._tokens[-1] if self._answers else None
        self._given(self._turns.after_answer(messages, last))

    def cut_off(self) -> None:
        """End the sample as one that was cut off. Raises ConversationOverError."""
        self._over = True
        raise ConversationOverError(f"prompt {self.prompt.uid}: cut off")

    @property
    def own_s(self) -> float:
        """How long the function itself has taken so far: without waiting for the model [s]."""
        since = self._waits_since
        waited_s = self._waited_s + (time.monotonic() - since if since is not None else 0.0)
        return time.monotonic() - self._began - waited_s

    def sample(self, judged: str | None = None) -> Sample:
        """Return what was made; `judged` is judged instead of the model's last answer.

        Raises GenerateError where the model was never asked, and GenerationFailedError where the answers are of
        different weights.
        """
        if not self._answers:
            raise GenerateError(f"prompt {self.prompt.uid}: the model was not asked for anything")
        self._check_version()  # again, for the function may have caught what was raised
        last = self._answers[-1]
        return Sample(
            tokens_T=tuple(self._tokens),
            logprobs_T=tuple(self._logprobs),
            text=last.text if judged is None else judged,
            version=last.version,
            finish_reason="length" if self._over else last.finish_reason,
            engine=last.engine,
            segments=tuple(self._segments),
            dropped=self._outgrown and self._limits.overflow == "Drop",
        )

    @property
    def _budget(self) -> int:
        return self._limits.new_tokens - sum(len(answer.tokens_T) for answer in self._answers)

    def _room_in_context(self, further: int = 0) -> int:
        """Return how many tokens fit into the context behind `further` ones."""
        used = len(self.prompt.tokens_T) + len(self._tokens) + further
        return new_tokens(self._limits.context, used)

    def _given(self, tokens: Sequence[int]) -> None:
        self._require_room(tokens)
        self._add(tokens, (0.0,) * len(tokens), by_model=False)

    def _require_room(self, further: Sequence[int]) -> None:
        outgrown = self._room_in_context(len(further)) < 1
        if outgrown or self._budget < 1:
            self._over, self._outgrown = True, self._outgrown or (outgrown and self._budget > 0)
            raise ConversationOverError(f"prompt {self.prompt.uid}: no room for another token")

    def _check_version(self) -> None:
        if len({answer.version for answer in self._answers}) > 1:
            raise GenerationFailedError(f"prompt {self.prompt.uid}: the weights have changed between two answers")

    def _add(self, tokens: Sequence[int], logprobs: Sequence[float], *, by_model: bool) -> None:
        if not tokens:
            return
        self._tokens += tokens
        self._logprobs += logprobs
        self._segments.append(Segment(len(tokens), self._tokenizer.decode(list(tokens)), by_model))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s += time.monotonic() - self._waits_since
            self._waits_since = None
