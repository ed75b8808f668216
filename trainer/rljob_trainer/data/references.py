"""The responses that the data has to its own questions, as tokens to learn: those of the assistant."""

from collections.abc import Sequence

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer, SftResponse
from rljob_trainer.data.rows import Row

NAMED_ROWS = 5


def references(rows: Sequence[Row], renderer: Renderer, longest: int) -> tuple[SftResponse, ...]:
    """Return the response of each row. Raises DataError, also where one is longer than `longest` tokens."""
    found = tuple(renderer.reference(row) for row in rows)
    too_long = [
        f"{row.place} ({len(reference.tokens_T)} tokens)"
        for row, reference in zip(rows, found, strict=True)
        if len(reference.tokens_T) > longest
    ]
    if too_long:
        raise DataError(
            f"{len(too_long)} of {len(rows)} responses are longer than rollout.sampling.maxNewTokens {longest}: "
            f"{', '.join(too_long[:NAMED_ROWS])}{', …' * (len(too_long) > NAMED_ROWS)}. Raise it, or remove them"
        )
    return found
