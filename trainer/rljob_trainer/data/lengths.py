"""Prompts and responses that are longer than they may be."""

from collections.abc import Sequence

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.rows import Row

NAMED_ROWS = 5


def require_room(
    rows: Sequence[Row], tokens: Sequence[int], longest: int, *, what: str, limit: str, advice: str
) -> None:
    """Raise DataError naming the rows that have more than `longest` tokens; `limit` says what `longest` is."""
    too_long = [f"{row.place} ({length} tokens)" for row, length in zip(rows, tokens, strict=True) if length > longest]
    if too_long:
        raise DataError(
            f"{len(too_long)} of {len(rows)} {what} are longer than {limit}: "
            f"{', '.join(too_long[:NAMED_ROWS])}{', …' * (len(too_long) > NAMED_ROWS)}. {advice}"
        )
