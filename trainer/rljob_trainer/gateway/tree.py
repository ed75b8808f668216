"""A session: a tree of the model's turns. Pure.

    messages of a request ─► one key for each beginning of them ─► the longest one that ends with an answer of ours

A request that extends such an answer continues its tokens. Any other request begins a new root: an edited, shortened or
compacted history is another one. So no answer is ever tokenised again.

Axes: T tokens.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rljob_trainer.gateway.requests import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model, and what it was given since the answer before."""

    number: int
    """in the session, from 0, in the order in which they were answered"""
    parent: int | None
    """the turn that it continues; None: it is the first after its prompt"""
    given_T: tuple[int, ...]
    """the whole prompt, or what follows the parent's last token"""
    given: str
    """the same as people read it"""
    tokens_T: tuple[int, ...]
    """the answer"""
    logprobs_T: tuple[float, ...]
    said: str
    """the answer as people read it, markers included"""
    text: str
    """without the token or stop string that ended it"""
    version: int
    """of the weights that made it, or the last of its tokens"""
    engine: str
    finish_reason: str
    trained: bool = True
    """False: the answer was forced into a format, so its log-probabilities are not the model's"""
    carried: tuple[tuple[int, int], ...] = ()
    """(version, tokens) of its parts, where it was carried over publications; empty: `version` made all of it"""
    experts: npt.NDArray[np.int16] | None = field(default=None, compare=False)
    cached: int = 0
    """tokens of its prompt that the engine had from earlier requests"""
    calls: tuple[str, ...] = ()
    """names of the functions that it calls"""
    began: float = field(default=0.0, compare=False)
    """unix time of its request [s]"""
    seconds: float = field(default=0.0, compare=False)
    """from the request to the whole answer, also where other weights have made a part of it"""

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """How many of its tokens, one after the other, which version made."""
        return self.carried or ((self.version, len(self.tokens_T)),)


def keys(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a key for each beginning of a history: equal for histories that say the same with the same tools."""
    found = [_digest("", list(tools))]
    for message in messages:
        found.append(following(found[-1], message))
    return tuple(found[1:])


def following(key: str, message: Message) -> str:
    """Return the key of a history with one more message."""
    return _digest(key, _compared(message))


def demand(key: str, facts: Sequence[Any]) -> str:
    """Return a key that is equal for requests that ask the same of the same history."""
    return _digest(key, list(facts))


def _compared(message: Message) -> Any:
    """Return what distinguishes messages.

    Frameworks trim answers and number their calls anew, which changes no token that the model made.
    """
    if message["role"] != "assistant":
        return message
    return [message["content"].strip(), [call["function"] for call in message.get("tool_calls", ())]]


def _digest(key: str, value: Any) -> str:
    written = json.dumps([key, value], sort_keys=True, default=str)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


@dataclass
class Tree:
    """All turns of a session."""

    turns: list[Turn] = field(default_factory=list)
    _by_key: dict[str, int] = field(default_factory=dict)
    """of histories that end with an answer"""

    def known(self, history: Sequence[str]) -> tuple[int | None, int]:
        """Return the turn that a request continues, and how many of its messages that turn covers.

        `history` are the keys of its messages. Of equal answers it continues the newest.
        """
        for covered in range(len(history) - 1, 0, -1):
            if (number := self._by_key.get(history[covered - 1])) is not None:
                return number, covered
        return None, 0

    def add(self, turn: Turn, key: str) -> None:
        """Add a turn with the key of the history that ends with it."""
        self.turns.append(turn)
        self._by_key[key] = turn.number

    def name(self, number: int, key: str) -> None:
        """Have a history with this key end with a turn that is there, too."""
        self._by_key[key] = number

    def tokens(self, number: int | None) -> tuple[int, ...]:
        """Return all tokens up to the end of a turn; none for None."""
        if number is None:
            return ()
        return tuple(token for turn in path(self.turns, number) for token in (*turn.given_T, *turn.tokens_T))


def path(turns: Sequence[Turn], number: int) -> tuple[Turn, ...]:
    """Return the turns from the root to this one."""
    found = [turns[number]]
    while (parent := found[-1].parent) is not None:
        found.append(turns[parent])
    return tuple(reversed(found))


def leaves(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Return the numbers of the turns that no other one continues, in order."""
    parents = {turn.parent for turn in turns}
    return tuple(turn.number for turn in turns if turn.number not in parents)
