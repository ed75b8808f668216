"""The responses that the data has to its own questions, as tokens to learn: the label as the assistant's turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import Row

NAMED_ROWS = 5


@dataclass(frozen=True, slots=True)
class Reference:
    """One response, behind the prompt of its row."""

    text: str
    tokens_T: tuple[int, ...]
    """with the token that ends the turn, and nothing after it"""


def references(rows: Sequence[Row], renderer: Renderer, longest: int) -> tuple[Reference, ...]:
    """Return the response of each row. Raises DataError, also where one is longer than `longest` tokens."""
    found = tuple(renderer.reference(row) for row in rows)
    too_long = [
        f"{row.place} ({len(tokens_T)} tokens)"
        for row, (_, tokens_T) in zip(rows, found, strict=True)
        if len(tokens_T) > longest
    ]
    if too_long:
        raise DataError(
            f"{len(too_long)} of {len(rows)} responses are longer than rollout.sampling.maxNewTokens {longest}: "
            f"{', '.join(too_long[:NAMED_ROWS])}{', …' * (len(too_long) > NAMED_ROWS)}. Raise it, or remove them"
        )
    return tuple(Reference(text, tokens_T) for text, tokens_T in found)
