"""A conversation in progress: what a generate function receives and builds a sample with.

The model's output is kept as the engine's tokens and log-probabilities, and the same tokens are sent back to it. They
are decoded for people, but that text is never tokenised again. The environment's text is tokenised once.

Axes: T tokens of the response.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_api.sizing.token_limits import new_tokens
from rljob_trainer.conversations.errors import ConversationOverError, GenerateError
from rljob_trainer.conversations.turns import Tokenizer, Turns, decoded, encoded
from rljob_trainer.engines.client import Continuation
from rljob_trainer.generator import GenerationFailedError
from rljob_trainer.samples import Prompt, Sample, Segment

Overflow = Literal["Truncate", "Drop"]
"""what happens to a sample that exceeds the context"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a sample may become."""

    context: int
    """prompt and response [tokens]"""
    new_tokens: int
    """limit for all model turns together [tokens]"""
    overflow: Overflow = "Truncate"


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One turn of the model."""

    text: str
    """without the token or the stop string that ended it"""
    marked: str
    """the same with all markers, as the model wrote it"""
    finish_reason: str
    """`stop`: it ended its turn, or wrote a stop string; `length`: it was cut off"""


class Model(Protocol):
    """Continues a sequence of tokens: a `SampledModel`. A protocol for the fake of tests, which has no engine."""

    async def go_on(self, tokens_T: tuple[int, ...], max_new_tokens: int, stop: Sequence[str]) -> Continuation:
        """Return the continuation. Failures of engines are retried, not raised."""


class Conversation:
    """One sample of one prompt, in progress."""

    def __init__(
        self,
        prompt: Prompt,
        greedy: bool,
        model: Model,
        tokenizer: Tokenizer,
        turns: Turns,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
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
        self._clock = clock
        self._began: float | None = None
        self._waited_s = 0.0
        self._waits_since: float | None = None

    @property
    def room(self) -> int:
        """How many tokens the model may still write."""
        return min(self._room_in_context(), self._budget)

    async def model(self, *, stop: Sequence[str] = (), max_tokens: int | None = None) -> ModelTurn:
        """Let the model continue until it ends its turn, writes one of `stop`, or reaches `max_tokens`.

        `stop` adds to the manifest's stop strings. Raises ConversationOverError if there is no room.
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
        return ModelTurn(said.text, marked, said.finish_reason)

    def give(self, text: str) -> None:
        """Append text of the environment, which is not trained on.

        Raises ConversationOverError if it leaves the model no room.
        """
        self._given(encoded(self._tokenizer, text))

    def reply(self, *messages: Mapping[str, Any]) -> None:
        """Append turns, `{"role": "user", "content": ...}`, in the chat template's form, and open the model's next.

        They are not trained on. Raises ConversationOverError if they leave the model no room, and GenerateError if
        the template does not accept them.
        """
        last = self._tokens[-1] if self._answers else None
        self._given(self._turns.after_answer(messages, last))

    def cut_off(self) -> None:
        """End the sample as truncated. Raises ConversationOverError."""
        self._over = True
        raise ConversationOverError(f"prompt {self.prompt.uid}: cut off")

    def begin(self) -> None:
        """Note that the function begins to run: it may have waited behind others."""
        self._began = self._clock()

    @property
    def own_s(self) -> float:
        """Time spent in the function so far, without waiting behind others or for the model [s]."""
        if self._began is None:
            return 0.0
        since = self._waits_since
        waited_s = self._waited_s + (self._clock() - since if since is not None else 0.0)
        return self._clock() - self._began - waited_s

    def sample(self, judged: str | None = None) -> Sample:
        """Return the sample; if `judged` is given, it is judged instead of the model's last turn.

        Raises GenerateError if the model was never asked, and GenerationFailedError if its turns come from different
        weights.
        """
        if not self._answers:
            raise GenerateError(f"prompt {self.prompt.uid}: the model was not asked for anything")
        self._check_version()  # again, because the function may have caught the error
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
            experts=last.experts,
        )

    @property
    def _budget(self) -> int:
        return self._limits.new_tokens - sum(len(answer.tokens_T) for answer in self._answers)

    def _room_in_context(self, further: int = 0) -> int:
        """Return how many tokens fit into the context after `further` more."""
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
        self._segments.append(Segment(len(tokens), decoded(self._tokenizer, tokens), by_model))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits_since = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - self._waits_since
            self._waits_since = None
