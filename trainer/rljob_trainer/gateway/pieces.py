"""An answer in the pieces of a stream: reasoning, text, the beginning of a call, arguments. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_trainer.gateway.answers import Choice


@dataclass(frozen=True, slots=True)
class Reasoned:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Calls:
    """A call begins."""

    index: int
    """among the calls of the answer"""
    number: str
    name: str


@dataclass(frozen=True, slots=True)
class Gave:
    """More of the arguments of a call that has begun, as JSON."""

    index: int
    arguments: str


Piece = Reasoned | Wrote | Calls | Gave


def pieces(choice: Choice) -> Iterator[Piece]:
    """Yield a whole answer as the fewest pieces."""
    if choice.parsed.reasoning:
        yield Reasoned(choice.parsed.reasoning)
    if choice.parsed.content:
        yield Wrote(choice.parsed.content)
    for index, (number, call) in enumerate(zip(choice.call_ids, choice.parsed.calls, strict=True)):
        yield Calls(index, number, call.name)
        yield Gave(index, call.arguments)
