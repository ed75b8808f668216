"""A model that says what a script makes it say, with the tokens and log-probabilities that an engine would give."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from rljob_trainer.engines.client import Continuation, EngineUnreachableError, TokenRequest
from support.trainer.tiny_models import END_OF_TURN

LOGPROB = -0.5


@dataclass(frozen=True)
class Says:
    """One answer: a text that ends the turn, is stopped, or is cut off."""

    text: str
    ends: str = "turn"
    """`turn`, `stop`, `length`, `abort`"""
    version: int = 0
    cached: int = 0
    """tokens of the prompt that the engine had"""


async def at_once(at: int) -> None:
    """Let every token go."""


@dataclass
class ScriptedRouter:
    """Answers one request after the other from the script; an error in it is raised."""

    tokenizer: PreTrainedTokenizerBase
    script: Sequence[Says | Exception] | Callable[[str], Says | Exception]
    """what to say next, or what to say behind a text"""
    asked: list[TokenRequest] = field(default_factory=list)
    lets_go: Callable[[int], Awaitable[None]] = at_once
    """awaited before each token of a stream"""

    def __post_init__(self) -> None:
        self._left = deque(() if callable(self.script) else self.script)

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        self.asked.append(request)
        so_far = self.tokenizer.decode(list(request.tokens_T))
        said = self.script(so_far) if callable(self.script) else self._left.popleft()
        if isinstance(said, Exception):
            raise said
        return (self._answer(said, request.max_new_tokens),)

    async def stream(self, request: TokenRequest, deadline_s: float) -> AsyncGenerator[Continuation, None]:
        """Yield an answer token by token; each waits until the test lets it go."""
        (whole,) = await self.generate(request, deadline_s)
        last = len(whole.tokens_T) - 1
        for at, token in enumerate(whole.tokens_T):
            await self.lets_go(at)
            reason = whole.finish_reason if at == last else ""
            yield replace(whole, tokens_T=(token,), logprobs_T=(LOGPROB,), text="", finish_reason=reason)
        if not whole.tokens_T:
            yield whole

    def _answer(self, said: Says, most: int) -> Continuation:
        tokens = self.tokenizer.encode(said.text, add_special_tokens=False)
        if said.ends == "turn":
            tokens.append(self.tokenizer.convert_tokens_to_ids(END_OF_TURN))
        cut = len(tokens) > most
        reason = "length" if cut else {"turn": "stop"}.get(said.ends, said.ends)
        kept = tokens[:most]
        return Continuation(
            tuple(kept), (LOGPROB,) * len(kept), said.text, said.version, "engine-0", reason, cached=said.cached
        )


LOST = EngineUnreachableError("router: POST /generate: no answer")
